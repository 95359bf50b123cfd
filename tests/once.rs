//! Actions that run once, by the client's own means, while what they run on fails.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_api::ViewState;
use tenure_client::{
    Client, CompleteError, Done, LeaseError, Leased, Lost, ManualBootTime, OnceError, Retry,
};
use tenure_state_machine::limits::BODY_BYTES;
use tenure_state_machine::{Acquire, Answer, Payload};
use tenure_tests::{
    Caller, Cluster, End, LIMIT, Options, acquire, eventually, name, release, token_of,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client whose leases are counted on a clock of the test's.
fn on_clock(cluster: &Cluster, clock: &ManualBootTime) -> Client {
    let endpoints = cluster.ids().into_iter().map(|id| cluster.address(id).rpc);
    let builder = Client::builder().endpoints(endpoints).timeout(LIMIT);
    builder.clock(Arc::new(clock.clone())).build().unwrap()
}

/// Whether `key` is held, free or done, as a reader sees it.
async fn state_of(caller: &Caller, key: &str) -> Option<ViewState> {
    let (view, _) = caller.get(&name(key)).await.unwrap();
    view.map(|view| view.state)
}

async fn until_free(cluster: &Cluster, key: &str) {
    let caller = cluster.lead().await;
    eventually("the record is released", async || {
        state_of(&caller, key).await.is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_all_over_run_an_action_once_and_share_its_result() {
    let cluster = Cluster::start(3).await;
    let runs = Arc::new(AtomicUsize::new(0));
    // Half of them in one client, which lets one of them speak for all.
    let shared = cluster.client();
    let calls = (0..20).map(|number| {
        let client = if number % 2 == 0 { shared.clone() } else { cluster.client() };
        let runs = Arc::clone(&runs);
        tokio::spawn(async move {
            let action =
                |_| async move { Ok::<_, Infallible>(runs.fetch_add(1, Ordering::SeqCst)) };
            client.once("test", "k").run(action).await.unwrap()
        })
    });
    let done: Vec<Done<usize>> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(done.iter().filter(|done| done.is_ran()).count(), 1);
    assert!(done.iter().all(|done| done.into_inner() == 0), "{done:?}");
    let later = cluster.client().once("test", "k").run(async |_| Ok::<_, Infallible>(9_usize));
    assert_eq!(later.await.unwrap(), Done::Replayed(0));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_or_a_panic_leaves_no_trace_and_the_next_caller_runs_at_once() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client();
    let once = || client.once("test", "k").lease(Duration::from_secs(3600));
    let failed = once().run(async |_| Err::<u8, _>("no paper")).await;
    assert!(matches!(failed, Err(OnceError::Action("no paper"))));
    let caller = cluster.lead().await;
    assert_eq!(state_of(&caller, "k").await, None);

    let background = once();
    let panicked = tokio::spawn(async move {
        background.run(async |_| -> Result<u8, Infallible> { panic!("on fire") }).await.unwrap()
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert_eq!(state_of(&caller, "k").await, None, "released before the panic went on");
    assert_eq!(once().run(async |_| Ok::<_, Infallible>(3_u8)).await.unwrap(), Done::Ran(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_outlives_its_lease_many_times_over() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.lead().await;
    let run = cluster.client().once("test", "k").lease(ms(300)).run(|lease| async move {
        let mut thief = acquire("k");
        thief.lease_ms = 60_000;
        // It waits in line for five leases, and would be granted at the first that ran out.
        let refused = leader.acquire(thief, 1500).await.unwrap();
        assert!(matches!(refused.answer, Answer::InProgress { .. }), "{refused:?}");
        Ok::<_, Infallible>(lease.token().get())
    });
    let Done::Ran(token) = run.await.unwrap() else { panic!("it ran") };
    let replayed = cluster.client().once("test", "k").run(async |_| Ok::<_, Infallible>(0));
    assert_eq!(replayed.await.unwrap(), Done::Replayed(token));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_goes_on_over_the_crash_of_its_leader() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let (begin, begun) = oneshot::channel();
    let go = Arc::new(Notify::new());
    let gone = Arc::clone(&go);
    let run = tokio::spawn(async move {
        let once = client.once("test", "k").lease(ms(3000));
        let action = |lease: tenure_client::LeaseHandle| async move {
            begin.send(lease.clone()).unwrap();
            gone.notified().await;
            Ok::<_, Infallible>(lease.token().get())
        };
        once.run(action).await
    });
    let lease = begun.await.unwrap();
    let leader = cluster.leader().await;
    cluster.crash(leader).await;
    cluster.leader().await;
    let token = lease.token();
    // Heartbeats reach the next leader: a lease is counted from then on.
    let before = lease.left();
    eventually("a heartbeat succeeds under the new leader", async || {
        (lease.left() > before).then_some(())
    })
    .await;
    cluster.restart(leader).await;
    go.notify_one();
    let ran = run.await.unwrap().unwrap();
    assert_eq!(ran, Done::Ran(token.get()));
    let (view, _) = cluster.lead().await.get(&name("k")).await.unwrap();
    assert_eq!(view.unwrap().token, token, "nobody had it in between");
}

/// A leader that is cut off from everybody closes no connection. The heartbeat after one that has no
/// answer goes to another node, in time.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_find_the_next_leader_when_theirs_is_silent() {
    let cluster = Cluster::start(3).await;
    let (client, leader) = (cluster.client(), cluster.leader().await);
    client.once("test", "warm").run(async |_| Ok::<_, Infallible>(())).await.unwrap();
    let Leased::Held(lease) = client.lease("test", "k").lease(ms(3000)).acquire().await.unwrap()
    else {
        panic!("it is held")
    };
    cluster.isolate(leader);
    cluster.links.cut(End::Client, End::Node(leader));
    let began = Instant::now();
    eventually("more than the lease that was granted has passed", async || {
        assert_eq!(lease.is_lost(), None, "after {:?}", began.elapsed());
        (began.elapsed() > ms(4500)).then_some(())
    })
    .await;
    lease.complete(None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_whose_answer_is_lost_is_recorded_once_and_not_released() {
    let cluster = Cluster::start(3).await;
    let (client, leader) = (cluster.client(), cluster.leader().await);
    let (links, watcher) = (cluster.links.clone(), cluster.lead().await);
    // A first call, so that the connection that the second one takes is the leader's.
    client.once("test", "warm").run(async |_| Ok::<_, Infallible>(())).await.unwrap();
    let background = client.clone();
    let run = tokio::spawn(async move {
        let action = |_| async move {
            links.cut_one_way(End::Node(leader), End::Client);
            Ok::<_, Infallible>("sent".to_owned())
        };
        background.once("test", "k").run(action).await
    });
    eventually("it is recorded", async || {
        let state = state_of(&watcher, "k").await;
        matches!(state, Some(ViewState::Complete { .. })).then_some(())
    })
    .await;
    assert!(!run.is_finished(), "the answer cannot have come");
    cluster.links.sever(End::Client, End::Node(leader));
    cluster.links.heal();
    assert_eq!(run.await.unwrap().unwrap(), Done::Ran("sent".to_owned()));
    assert!(matches!(state_of(&watcher, "k").await, Some(ViewState::Complete { .. })));
}

/// A holder that reaches nobody, another caller that wants its record, and clocks that move
/// together, the cluster's always first: `lost` comes before the grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_knows_before_its_record_can_be_stolen() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let clock = ManualBootTime::default();
    let client = on_clock(&cluster, &clock);
    let Leased::Held(lease) = client.lease("test", "k").lease(ms(1000)).acquire().await.unwrap()
    else {
        panic!("it is held")
    };
    let leader = cluster.lead().await;
    let lease_until_ms = match state_of(&leader, "k").await {
        Some(ViewState::InProgress { lease_until_ms, .. }) => lease_until_ms,
        other => panic!("{other:?}"),
    };
    for id in cluster.ids() {
        cluster.links.cut(End::Client, End::Node(id));
    }
    let (thief, granted_ms) = (cluster.lead().await, Arc::new(AtomicU64::new(u64::MAX)));
    let steal = tokio::spawn({
        let granted_ms = Arc::clone(&granted_ms);
        async move {
            let decided = thief.acquire(acquire("k"), 60_000).await.unwrap();
            granted_ms.store(decided.at.now_ms, Ordering::SeqCst);
            decided
        }
    });
    let leader_id = cluster.leader().await;
    cluster.waiters(leader_id, 1).await;
    let mut marks = 0;
    let lost_ms = loop {
        assert_eq!(granted_ms.load(Ordering::SeqCst), u64::MAX, "stolen from one who acts");
        if lease.is_lost().is_some() {
            // A command of its own says what time it is.
            let mark = leader.acquire(acquire(&format!("mark-{marks}")), 0).await.unwrap();
            break mark.at.now_ms;
        }
        cluster.clocks.advance(ms(10));
        let mark = leader.acquire(acquire(&format!("mark-{marks}")), 0).await.unwrap();
        assert!(mark.at.now_ms < lease_until_ms, "not lost at {}", mark.at.now_ms);
        clock.advance(ms(10));
        marks += 1;
    };
    assert_eq!(lease.lost().await, Lost::Expired);
    assert!(marks >= 80, "it was not given up in vain: after {marks} steps");
    cluster.clocks.advance(ms(200));
    let stolen = steal.await.unwrap();
    assert!(matches!(stolen.answer, Answer::Acquired { took_over: Some(_), .. }), "{stolen:?}");
    let granted_ms = stolen.at.now_ms;
    assert!(lost_ms < granted_ms, "lost at {lost_ms}, granted at {granted_ms}");
    assert!(granted_ms >= lease_until_ms);

    // What it completes late is not taken, and the thief goes on undisturbed.
    cluster.links.heal();
    let late = lease.complete(None).await;
    assert!(matches!(late, Err(CompleteError::LeaseLost(_))), "{late:?}");
    drop(lease);
    let thiefs = release("k", token_of(&stolen));
    assert_eq!(leader.command(thiefs).await.unwrap().answer, Answer::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_is_released_and_its_heartbeats_are_over() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let clock = ManualBootTime::default();
    let client = on_clock(&cluster, &clock);
    let hour = Duration::from_secs(3600);
    let lease = match client.lease("test", "k").lease(hour).acquire().await.unwrap() {
        Leased::Held(lease) => lease,
        Leased::Replay(replay) => panic!("{replay:?}"),
    };
    clock.advance(hour / 3);
    let left = hour - hour / 10;
    eventually("a heartbeat succeeds", async || (lease.left() == left).then_some(())).await;
    drop(lease);
    until_free(&cluster, "k").await;
    let applied = cluster.settled().await;
    clock.advance(24 * hour);
    let mark = cluster.lead().await.acquire(acquire("mark"), 0).await.unwrap();
    assert_eq!(mark.at.index, applied + 1, "no extend came in between");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_frees_its_record_for_the_next() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client();
    let (begin, begun) = oneshot::channel::<()>();
    let run = tokio::spawn(async move {
        let action = |_| {
            begin.send(()).unwrap();
            std::future::pending::<Result<u8, Infallible>>()
        };
        client.once("test", "k").lease(Duration::from_secs(3600)).run(action).await
    });
    begun.await.unwrap();
    run.abort();
    let next = cluster.client().once("test", "k").run(async |_| Ok::<_, Infallible>(4_u8));
    assert_eq!(next.await.unwrap(), Done::Ran(4));
    assert!(run.await.unwrap_err().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_over_the_limit_leaves_the_lease_for_a_smaller_one() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client();
    let once = || client.once("test", "k").wait(Duration::ZERO);
    let big = once().run_bytes(async |_| Ok::<_, Infallible>(vec![7; BODY_BYTES + 1])).await;
    let Err(OnceError::TooLarge { value, lease, limit: BODY_BYTES, size }) = big else {
        panic!("{big:?}")
    };
    assert_eq!((value.len(), size), (BODY_BYTES + 1, BODY_BYTES + 1));
    let other = cluster.client().once("test", "k").wait(Duration::ZERO);
    let refused = other.run_bytes(async |_| Ok::<_, Infallible>(Vec::new())).await;
    assert!(
        matches!(refused, Err(OnceError::Lease(LeaseError::InProgress { .. }))),
        "it is still held"
    );
    let whole = value[..BODY_BYTES].to_vec();
    let payload = Payload::new(None, whole.clone(), std::collections::BTreeMap::new()).unwrap();
    lease.complete(Some(Arc::new(payload))).await.unwrap();
    let replayed = once().run_bytes(async |_| Ok::<_, Infallible>(Vec::new())).await.unwrap();
    assert_eq!(replayed, Done::Replayed(whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_was_suspended_has_lost_its_lease_at_once() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let clock = ManualBootTime::default();
    let client = on_clock(&cluster, &clock);
    let (begin, begun) = oneshot::channel();
    let run = tokio::spawn(async move {
        let action = |lease: tenure_client::LeaseHandle| {
            begin.send(lease).unwrap();
            std::future::pending::<Result<u8, Infallible>>()
        };
        client.once("test", "k").lease(ms(30_000)).run(action).await
    });
    let lease = begun.await.unwrap();
    assert_eq!(lease.is_lost(), None);
    cluster.clocks.advance(ms(40_000));
    clock.advance(ms(40_000));
    assert_eq!(lease.is_lost(), Some(Lost::Expired));
    let stopped = run.await.unwrap();
    assert!(matches!(stopped, Err(OnceError::LeaseLost(Lost::Expired))), "{stopped:?}");
    let next = cluster.lead().await.acquire(Acquire { ..acquire("k") }, 0).await.unwrap();
    token_of(&next);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_client_share_one_acquire_in_the_log() {
    let cluster = Cluster::start(3).await;
    let client = Client::builder()
        .endpoints(cluster.ids().into_iter().map(|id| cluster.address(id).rpc))
        .retry(Retry { pause_min: ms(5), pause_max: ms(50) })
        .build()
        .unwrap();
    let before = cluster.settled().await;
    let calls = (0..200).map(|number| {
        let once = client.once("test", "k");
        async move { once.run(|_| async move { Ok::<_, Infallible>(number) }).await.unwrap() }
    });
    let done = join_all(calls).await;
    assert_eq!(done.iter().filter(|done| done.is_ran()).count(), 1);
    let mark = cluster.lead().await.acquire(acquire("mark"), 0).await.unwrap();
    assert_eq!(mark.at.index, before + 3, "an acquire, a complete, and the mark");
}
