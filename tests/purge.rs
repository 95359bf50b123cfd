//! Expired records go, and nothing else does.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tenure_api::frame::{Ask, Reply};
use tenure_state_machine::{Acquire, Answer, Command, Purge};
use tenure_tests::{
    Caller, Cluster, Options, acquire, complete, eventually, extend, holds_for, name, release,
    token_of,
};
use tokio::time::Instant;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn without_purger() -> Options {
    Options::default().standing().with(|config| config.purge_interval = Duration::ZERO)
}

/// Acquires and releases a fresh key, again and again until `done`; gives the latencies in order.
async fn latencies(caller: &Caller, mut done: impl AsyncFnMut(usize) -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !done(took.len()).await {
        let key = format!("probe-{}", took.len());
        let start = Instant::now();
        let token = token_of(&caller.acquire(acquire(&key), 0).await.unwrap());
        took.push(start.elapsed());
        caller.command(release(&key, token)).await.unwrap();
    }
    took.sort_unstable();
    took
}

fn p99(latencies: &[Duration]) -> Duration {
    latencies[latencies.len() * 99 / 100]
}

/// C45.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_due_records_go_while_others_hardly_notice() {
    const RECORDS: usize = 100_000;
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let leader = cluster.leader().await;
    let caller = cluster.caller(leader).await;
    let batches = (0..RECORDS).step_by(100).map(|first| {
        let commands = (first..first + 100)
            .map(|n| Command::Acquire(Acquire { ttl_ms: 500, ..acquire(&n.to_string()) }));
        Ask::Batch(commands.collect())
    });
    let mut answers = stream::iter(batches).map(|batch| caller.ask(batch)).buffer_unordered(8);
    while let Some(answer) = answers.next().await {
        let Reply::Batch(results) = answer.unwrap() else { panic!("not a batch") };
        for result in results {
            token_of(&result.unwrap());
        }
    }
    drop(answers);
    let idle = latencies(&caller, async |probes| probes == 400).await;

    cluster.clocks.advance(ms(500));
    let start = Instant::now();
    let mut backlog = u64::MAX;
    let busy = latencies(&caller, async |probes| {
        assert!(start.elapsed() < Duration::from_secs(60), "{backlog} records are still there");
        if probes % 50 == 0 {
            backlog = cluster.metric(leader, "purge_backlog").await;
        }
        backlog == 0
    })
    .await;
    assert!(busy.len() > 50, "the backlog was gone before it could be measured");
    // On a machine that runs other tests, a quiet p99 is mostly the scheduler's.
    let (idle, busy) = (p99(&idle).max(ms(10)), p99(&busy));
    assert!(busy < idle * 5, "p99 {busy:?} while purging, {idle:?} before");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nothing_due_no_entry_is_written() {
    let cluster = Cluster::start(3).await;
    let caller = cluster.lead().await;
    let token = token_of(&caller.acquire(acquire("k"), 0).await.unwrap());
    caller.command(complete("k", token)).await.unwrap();
    let before = cluster.settled().await;
    let leader = cluster.leader().await;
    holds_for(ms(600), "twelve looks of the purger write nothing", async || {
        cluster.node(leader).status().last_index == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_goes_without_anybody_asking() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let caller = cluster.lead().await;
    for key in ["a", "b"] {
        let expiring = Acquire { lease_ms: 100, ttl_ms: 200, ..acquire(key) };
        token_of(&caller.acquire(expiring, 0).await.unwrap());
    }
    token_of(&caller.acquire(Acquire { ttl_ms: 1000, ..acquire("kept") }, 0).await.unwrap());
    cluster.clocks.advance(ms(200));
    eventually("the due records are deleted on every node", async || {
        let gone = |id: u64, key| cluster.node(id).state().read(&name(key)).unwrap().0.is_none();
        let ids = cluster.ids();
        ids.iter().all(|id| gone(*id, "a") && gone(*id, "b") && !gone(*id, "kept")).then_some(())
    })
    .await;
}

/// C33, at five times the speed of a purger in a hurry.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_never_deletes_an_action_that_sends_heartbeats() {
    let cluster =
        Cluster::start_with(Options::default().standing().with(|c| c.purge_interval = ms(5))).await;
    let caller = cluster.lead().await;
    let running = Acquire { lease_ms: 1000, ttl_ms: 200, ..acquire("k") };
    let token = token_of(&caller.acquire(running, 0).await.unwrap());
    let purge = Command::Purge(Purge { limit: 100, not_after_ms: None });
    for step in 0..25 {
        cluster.clocks.advance(ms(200));
        if step % 2 == 0 {
            let extended = caller.command(extend("k", token, 1000)).await.unwrap();
            assert!(matches!(extended.answer, Answer::Extended { .. }), "{extended:?}");
        }
        let purged = caller.command(purge.clone()).await.unwrap();
        assert_eq!(purged.answer, Answer::Purged { deleted: 0, more: false });
        let refused = caller.acquire(acquire("k"), 0).await.unwrap();
        assert!(matches!(refused.answer, Answer::InProgress { .. }), "{refused:?}");
    }
    let done = caller.command(complete("k", token)).await.unwrap();
    assert!(matches!(done.answer, Answer::Completed(_)), "{done:?}");
}

/// C31.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_absent_without_any_purge() {
    let cluster = Cluster::start_with(without_purger()).await;
    let caller = cluster.lead().await;
    let expiring = Acquire { lease_ms: 200, ttl_ms: 200, ..acquire("k") };
    token_of(&caller.acquire(expiring.clone(), 0).await.unwrap());
    cluster.clocks.advance(ms(400));
    let again = caller.acquire(Acquire { ttl_ms: 200, ..acquire("k") }, 0).await.unwrap();
    assert!(matches!(again.answer, Answer::Acquired { took_over: None, .. }), "{again:?}");
    let done = caller.command(complete("k", token_of(&again))).await.unwrap();
    assert!(matches!(done.answer, Answer::Completed(_)), "{done:?}");
    cluster.clocks.advance(ms(400));
    assert_eq!(caller.get(&name("k")).await.unwrap().0, None);
    let again = caller.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(again.answer, Answer::Acquired { took_over: None, .. }), "{again:?}");
}
