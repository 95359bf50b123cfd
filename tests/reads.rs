//! What a read may say: never less than was acknowledged, never more than a later leader will.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tenure_api::{NodeRole, Refusal, View, ViewState};
use tenure_state_machine::{Acquire, Answer, Holder};
use tenure_tests::{
    Cluster, NoAnswer, Options, acquire, complete, eventually, holds_for, name, token_of,
};
use tokio::time::Instant;

fn is_complete(view: Option<&View>) -> bool {
    view.is_some_and(|view| matches!(view.state, ViewState::Complete { .. }))
}

fn lease_until_ms(view: Option<&View>) -> u64 {
    let Some(View { state: ViewState::InProgress { lease_until_ms, .. }, .. }) = view else {
        panic!("not in progress: {view:?}");
    };
    *lease_until_ms
}

/// C44.
#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_never_answers_from_its_old_state() {
    never_answers_from_old_state(Duration::from_millis(400)).await;
}

/// As above, when a request may take longer than an election does: that a majority answered within
/// a request's time says nothing of the present.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_deposed_a_moment_ago_does_not_go_by_its_clock() {
    never_answers_from_old_state(Duration::from_millis(2500)).await;
}

async fn never_answers_from_old_state(limit: Duration) {
    let options = Options::default().with(|config| config.request_timeout = limit);
    let cluster = Cluster::start_with(options).await;
    let old = cluster.leader().await;
    let by_old = cluster.caller(old).await;
    let held = Acquire { lease_ms: 60_000, ..acquire("k") };
    let token = token_of(&by_old.acquire(held, 0).await.unwrap());

    cluster.isolate(old);
    let rest: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != old).collect();
    let new = cluster.caller(cluster.leader_among(&rest).await).await;
    let done = new.command(complete("k", token)).await.unwrap();
    assert!(matches!(done.answer, Answer::Completed(_)), "{done:?}");
    let fresh = token_of(&new.acquire(acquire("fresh"), 0).await.unwrap());
    let done = new.command(complete("fresh", fresh)).await.unwrap();
    assert!(matches!(done.answer, Answer::Completed(_)), "{done:?}");

    // Asked while it still believes to lead, and until it has long stepped down.
    assert_eq!(cluster.node(old).status().role, NodeRole::Leader);
    let until = Instant::now() + Duration::from_secs(3);
    let mut refused = 0;
    while Instant::now() < until {
        let (k, fresh) = (name("k"), name("fresh"));
        let (got, got_fresh, again) = tokio::join!(
            by_old.get(&k),
            // No deadline has a part in this one: only a read index keeps it from being absent.
            by_old.get(&fresh),
            by_old.acquire(acquire("k"), 0),
        );
        for got in [got, got_fresh] {
            match got {
                Ok((view, at)) => assert!(is_complete(view.as_ref()), "{view:?} at {at:?}"),
                Err(NoAnswer::Refused(_)) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        if let Ok(again) = again {
            assert!(matches!(again.answer, Answer::Replay(_)), "{again:?}");
        }
    }
    assert!(refused > 0, "the old leader was never cut off");

    cluster.links.heal();
    eventually("the old leader tells the truth", async || {
        let (view, _) = by_old.get(&name("k")).await.ok()?;
        assert!(is_complete(view.as_ref()), "{view:?}");
        Some(())
    })
    .await;
}

/// What is COMPLETE stays so, but only a majority knows that this node still speaks for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_majority_replays_nothing() {
    let limit = Duration::from_millis(400);
    let options = Options::default().with(|config| config.request_timeout = limit);
    let cluster = Cluster::start_with(options).await;
    let leader = cluster.leader().await;
    let caller = cluster.caller(leader).await;
    let token = token_of(&caller.acquire(acquire("k"), 0).await.unwrap());
    caller.command(complete("k", token)).await.unwrap();
    let again = caller.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(again.answer, Answer::Replay(_)), "{again:?}");

    cluster.isolate(leader);
    let again = caller.acquire(acquire("k"), 0).await;
    assert!(matches!(again, Err(NoAnswer::Refused(Refusal::NoLeader))), "{again:?}");

    cluster.links.heal();
    eventually("it is replayed again", async || {
        let again = caller.acquire(acquire("k"), 0).await.ok()?;
        assert!(matches!(again.answer, Answer::Replay(_)), "{again:?}");
        Some(())
    })
    .await;
}

/// The time that decides an answer is in the log before the answer is out: leaders to come, even
/// those without any memory of time, say the same.
#[tokio::test(flavor = "multi_thread")]
async fn absent_is_not_taken_back_by_a_leader_that_knows_only_the_log() {
    let mut cluster = Cluster::start_with(Options::default().standing()).await;
    let leader = cluster.leader().await;
    let caller = cluster.caller(leader).await;
    let expiring = Acquire { lease_ms: 1000, ttl_ms: 1000, ..acquire("k") };
    let token = token_of(&caller.acquire(expiring, 0).await.unwrap());
    let done = caller.command(complete("k", token)).await.unwrap();
    let Answer::Completed(done) = done.answer else { panic!("{done:?}") };

    cluster.clocks.of(leader).advance(Duration::from_millis(999));
    let (view, _) = caller.get(&name("k")).await.unwrap();
    assert!(is_complete(view.as_ref()), "a millisecond too early: {view:?}");
    cluster.clocks.of(leader).advance(Duration::from_millis(1));
    let (view, at) = caller.get(&name("k")).await.unwrap();
    assert_eq!(view, None);
    assert!(at.now_ms >= done.expires_ms && at.slot.is_none(), "judged by the log: {at:?}");

    cluster.power_cut_all().await;
    cluster.restart_all().await;
    let (view, later) = cluster.lead().await.get(&name("k")).await.unwrap();
    assert_eq!(view, None, "absent at {at:?}, and then at {later:?}");
}

/// The same for a lease: whoever was told that it can be stolen finds it so.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_expired_for_every_later_leader() {
    let mut cluster = Cluster::start_with(Options::default().standing()).await;
    let leader = cluster.leader().await;
    let caller = cluster.caller(leader).await;
    token_of(&caller.acquire(Acquire { lease_ms: 1000, ..acquire("k") }, 0).await.unwrap());
    cluster.clocks.of(leader).advance(Duration::from_millis(1000));
    let (view, at) = caller.get(&name("k")).await.unwrap();
    assert!(lease_until_ms(view.as_ref()) <= at.now_ms, "{view:?} at {at:?}");

    cluster.power_cut_all().await;
    cluster.restart_all().await;
    let (view, later) = cluster.lead().await.get(&name("k")).await.unwrap();
    assert!(lease_until_ms(view.as_ref()) <= later.now_ms, "{view:?} at {later:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_shows_a_lease_run_down_on_an_idle_cluster() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let leader = cluster.leader().await;
    let (caller, clock) = (cluster.caller(leader).await, cluster.clocks.of(leader));
    token_of(&caller.acquire(Acquire { lease_ms: 4000, ..acquire("k") }, 0).await.unwrap());
    let mut elapsed = 0;
    for step in [0, 1, 99, 100, 101, 700, 1000, 2000] {
        clock.advance(Duration::from_millis(step));
        elapsed += step;
        let (view, at) = caller.get(&name("k")).await.unwrap();
        let left = lease_until_ms(view.as_ref()).saturating_sub(at.now_ms);
        let truth = 4000_u64.saturating_sub(elapsed);
        assert!((truth..=truth + 100).contains(&left), "{left} left instead of {truth}");
        assert_eq!(at.slot, None);
    }
    let (view, at) = caller.get(&name("k")).await.unwrap();
    assert_eq!(lease_until_ms(view.as_ref()).saturating_sub(at.now_ms), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_writes_no_entry_and_stale_reads_cost_none() {
    let cluster = Cluster::start(3).await;
    let caller = cluster.lead().await;
    token_of(&caller.acquire(Acquire { lease_ms: 60_000, ..acquire("k") }, 0).await.unwrap());
    let before = cluster.settled().await;
    let leader = cluster.leader().await;
    holds_for(Duration::from_millis(600), "the log does not grow", async || {
        let stale = cluster.http(leader).get("/v1/scopes/test/keys/k?consistency=stale").await;
        assert_eq!(stale.unwrap().json()["state"], "in_progress");
        cluster.node(leader).status().last_index == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_nothing_is_answered_without_a_log_entry() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let caller = cluster.lead().await;
    let held = Acquire { lease_ms: 60_000, ..acquire("held") };
    token_of(&caller.acquire(held, 0).await.unwrap());
    let token = token_of(&caller.acquire(acquire("done"), 0).await.unwrap());
    caller.command(complete("done", token)).await.unwrap();
    let before = cluster.settled().await;
    for _ in 0..20 {
        let replay = caller.acquire(acquire("done"), 0).await.unwrap();
        assert!(matches!(replay.answer, Answer::Replay(_)), "{replay:?}");
        let refused = caller.acquire(acquire("held"), 0).await.unwrap();
        assert!(matches!(refused.answer, Answer::InProgress { .. }), "{refused:?}");
        let late = Acquire { not_after_ms: Some(1), ..acquire("done") };
        let late = caller.acquire(late, 0).await.unwrap();
        assert_eq!(late.answer, Answer::TooLate);
        for decided in [replay, refused, late] {
            assert_eq!((decided.at.slot, decided.at.index), (None, before));
        }
        let (_, at) = caller.get(&name("absent")).await.unwrap();
        assert_eq!((at.slot, at.index), (None, before));
    }
    assert_eq!(cluster.settled().await, before);
}

/// C42.
#[tokio::test(flavor = "multi_thread")]
async fn every_duplicate_is_told_of_the_first_attempt_by_every_node() {
    let cluster = Cluster::start(3).await;
    let caller = cluster.lead().await;
    let holder = Holder::new("the first").unwrap();
    let first = Acquire { holder, lease_ms: 60_000, ..acquire("k") };
    let token = token_of(&caller.acquire(first, 0).await.unwrap());
    let duplicate = json!({"scope": "test", "key": "k"});
    for id in cluster.ids() {
        let refused = cluster.http(id).post("/v1/acquire", duplicate.clone()).await.unwrap();
        assert_eq!(refused.status, 409, "{refused:?}");
        let body = refused.json();
        assert_eq!((&body["code"], &body["token"]), (&json!("in_progress"), &json!(token.get())));
        assert_eq!(body["holder"], "the first");
    }
    caller.command(complete("k", token)).await.unwrap();
    let mut replays = Vec::new();
    for id in cluster.ids().into_iter().chain(cluster.ids()) {
        let replay = cluster.http(id).post("/v1/acquire", duplicate.clone()).await.unwrap();
        let got = cluster.http(id).get("/v1/scopes/test/keys/k").await.unwrap();
        assert_eq!((replay.status, got.status), (200, 200), "{replay:?} {got:?}");
        let (replay, got) = (replay.json(), got.json());
        for member in ["token", "completed_ms", "expires_ms", "payload"] {
            assert_eq!(replay[member], got[member], "{member} by node {id}");
        }
        assert_eq!((&replay["outcome"], &replay["token"]), (&json!("replay"), &json!(token.get())));
        replays.push((replay["completed_ms"].clone(), replay["payload"].clone()));
    }
    assert!(replays.windows(2).all(|pair| pair[0] == pair[1]), "{replays:?}");
}

/// C05. The paused leader's process stands still: its clock does, and no peer hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_lease_stays_within_it_while_a_leader_is_paused() {
    let limit = Duration::from_millis(600);
    let options = Options::default().with(|config| config.request_timeout = limit);
    let cluster = Cluster::start_with(options).await;
    let leader = cluster.leader().await;
    let lease_ms = 2500;
    let held = Acquire { lease_ms, ..acquire("k") };
    token_of(&cluster.caller(leader).await.acquire(held, 0).await.unwrap());
    let start = Instant::now();
    let paused = Duration::from_millis(400)..Duration::from_millis(1900);
    let (mut is_paused, mut answers, mut stolen) = (false, 0, false);
    while !stolen {
        assert!(start.elapsed() < Duration::from_secs(20), "the lease never ended");
        if paused.contains(&start.elapsed()) != is_paused {
            is_paused = !is_paused;
            cluster.clocks.set_speed(leader, if is_paused { 0.0 } else { 1.0 });
            if is_paused { cluster.isolate(leader) } else { cluster.links.heal() }
        }
        let asked = cluster.ids().into_iter().map(async |id| {
            let get = cluster.http(id).get("/v1/scopes/test/keys/k").await.unwrap();
            let stale = "/v1/scopes/test/keys/k?consistency=stale";
            (get, cluster.http(id).get(stale).await.unwrap())
        });
        let told = join_all(asked).await;
        for answer in told.iter().flat_map(|(get, stale)| [get, stale]) {
            let body = answer.json();
            match answer.status {
                200 => {
                    let left = body["lease_left_ms"].as_u64().expect("never negative");
                    assert!(left <= lease_ms, "{body}");
                    answers += 1;
                }
                _ => assert_eq!(body["retryable"], true, "{body}"),
            }
        }
        match cluster.lead().await.acquire(acquire("k"), 0).await.map(|decided| decided.answer) {
            Ok(Answer::InProgress { retry_after_ms, .. }) => {
                assert!(retry_after_ms <= lease_ms, "{retry_after_ms} ms left");
            }
            Ok(Answer::Acquired { took_over, .. }) => stolen = took_over.is_some(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(matches!(error, NoAnswer::Refused(_)), "{error:?}"),
        }
    }
    assert!(answers > 20, "only {answers} answers");
}
