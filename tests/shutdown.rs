//! How a node goes in order.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_api::Refusal;
use tenure_client::Acquisition;
use tenure_state_machine::{Acquire, Answer};
use tenure_tests::{
    Cluster, NoAnswer, Options, acquire, complete, eventually, name, release, token_of, within,
};
use tokio::time::Instant;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn long(key: &str) -> Acquire {
    Acquire { lease_ms: 60_000, ..acquire(key) }
}

/// With such timeouts an election would take many seconds.
fn slow_elections() -> Options {
    Options::default().with(|config| {
        config.election_min = ms(6000);
        config.election_max = ms(7000);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_hands_over_first() {
    let mut cluster = Cluster::start_with(slow_elections()).await;
    let old = cluster.leader().await;
    let client = cluster.client();
    client.acquire(long("before"), Duration::ZERO).await.unwrap();
    let start = Instant::now();
    within(ms(3000), "it stops", cluster.shutdown(old)).await;
    cluster.leader().await;
    let (acquired, _) = client.acquire(long("after"), Duration::ZERO).await.unwrap();
    assert!(matches!(acquired, Acquisition::Acquired { .. }), "{acquired:?}");
    assert!(start.elapsed() < ms(5000), "served again after {:?}", start.elapsed());
}

/// Every request that the node has taken is answered: done here, done elsewhere, or refused. What
/// came too late to be read is not answered, and not run either.
#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_are_answered_when_a_node_stops() {
    for stops_the_leader in [true, false] {
        let mut cluster = Cluster::start(3).await;
        let stopped = match stops_the_leader {
            true => cluster.leader().await,
            false => cluster.followers().await[0],
        };
        let caller = Arc::new(cluster.caller(stopped).await);
        let http = cluster.http(stopped);
        let workers: Vec<_> = (0..40)
            .map(|worker| {
                let (caller, http) = (Arc::clone(&caller), http.clone());
                tokio::spawn(async move {
                    for round in 0.. {
                        let key = format!("{worker}-{round}");
                        if worker % 4 == 0 {
                            let body = json!({"scope": "test", "key": key, "attempt": "a"});
                            // A connection that was not accepted any more was not taken.
                            let answer = http.post("/v1/acquire", body).await?;
                            match answer.status {
                                200 => {}
                                503 => return None,
                                _ => panic!("{answer:?}"),
                            }
                        } else {
                            match caller.acquire(long(&key), 0).await {
                                Ok(decided) => drop(token_of(&decided)),
                                Err(NoAnswer::Refused(Refusal::ShuttingDown)) => return None,
                                Err(NoAnswer::NotSent) => return None,
                                Err(NoAnswer::Silence) => return Some(key),
                                Err(error) => panic!("{key}: {error:?}"),
                            }
                        }
                    }
                    None
                })
            })
            .collect();
        let probe = cluster.lead().await;
        for round in 0..20 {
            let token =
                token_of(&probe.acquire(acquire(&format!("probe-{round}")), 0).await.unwrap());
            probe.command(release(&format!("probe-{round}"), token)).await.unwrap();
        }
        within(ms(8000), "it stops", cluster.shutdown(stopped)).await;
        let left = cluster.lead().await;
        for worker in workers {
            let unanswered = within(ms(2000), "every request ends", worker).await.unwrap();
            if let Some(key) = unanswered {
                assert_eq!(left.get(&name(&key)).await.unwrap().0, None, "{key} was run");
            }
        }
    }
}

/// It is in the log and cannot commit, so its caller learns that its outcome is unknown, not that
/// the connection is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_proposed_is_answered_before_its_connection_ends() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let caller = cluster.caller(leader).await;
    let before = cluster.settled().await;
    cluster.isolate(leader);
    let asked = tokio::spawn(async move { caller.acquire(long("k"), 0).await });
    eventually("it is proposed", async || {
        (cluster.node(leader).status().last_index > before).then_some(())
    })
    .await;
    within(ms(12_000), "it stops", cluster.shutdown(leader)).await;
    let told = within(ms(1000), "the caller is told", asked).await.unwrap();
    assert_eq!(told, Err(NoAnswer::Refused(Refusal::OutcomeUnknown)));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_leader_that_stops_are_told_and_go_on_elsewhere() {
    let mut cluster = Cluster::start(3).await;
    let old = cluster.leader().await;
    let caller = Arc::new(cluster.caller(old).await);
    let token = token_of(&caller.acquire(long("k"), 0).await.unwrap());
    let direct = tokio::spawn({
        let caller = Arc::clone(&caller);
        async move { caller.acquire(acquire("k"), 60_000).await }
    });
    let client = cluster.client();
    let waiting = tokio::spawn(async move { client.acquire(acquire("k"), ms(30_000)).await });
    cluster.waiters(old, 2).await;
    within(ms(5000), "it stops", cluster.shutdown(old)).await;
    let told = within(ms(1000), "the waiter is told", direct).await.unwrap();
    assert_eq!(told, Err(NoAnswer::Refused(Refusal::ShuttingDown)));
    let new = cluster.leader().await;
    cluster.waiters(new, 1).await;
    cluster.caller(new).await.command(complete("k", token)).await.unwrap();
    let (replay, _) = within(ms(3000), "the wait goes on", waiting).await.unwrap().unwrap();
    assert!(matches!(replay, Acquisition::Replay(_)), "{replay:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_cluster_starts_again_as_it_was() {
    let mut cluster = Cluster::start(3).await;
    let caller = cluster.lead().await;
    let token = token_of(&caller.acquire(long("k"), 0).await.unwrap());
    caller.command(complete("k", token)).await.unwrap();
    for id in cluster.ids() {
        within(ms(12_000), "it stops", cluster.shutdown(id)).await;
    }
    cluster.restart_all().await;
    let replay = cluster.lead().await.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(replay.answer, Answer::Replay(_)), "{replay:?}");
}
