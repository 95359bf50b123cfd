//! Waiting: who is woken, in which order, and what becomes of those who are gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tenure_api::Refusal;
use tenure_api::frame::{Decided, IN_FLIGHT, Waited};
use tenure_client::Acquisition;
use tenure_state_machine::{Acquire, Answer, LeaseLost, Token};
use tenure_tests::{
    Caller, Cluster, End, NoAnswer, Options, acquire, complete, eventually, holds_for, name,
    payload, release, seeds, token_of, within,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

type Waiting = JoinHandle<Result<Decided, NoAnswer>>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Long enough for a busy machine, far below every wait and lease of these tests.
const SOON: Duration = Duration::from_secs(2);

fn long(key: &str) -> Acquire {
    Acquire { lease_ms: 60_000, ..acquire(key) }
}

/// Acquires `key` for a minute.
async fn hold(caller: &Caller, key: &str) -> Token {
    token_of(&caller.acquire(long(key), 0).await.unwrap())
}

fn wait_for(caller: &Arc<Caller>, acquire: Acquire, wait_ms: u64) -> Waiting {
    let caller = Arc::clone(caller);
    tokio::spawn(async move { caller.acquire(acquire, wait_ms).await })
}

async fn soon(what: &str, waiting: Waiting) -> Result<Decided, NoAnswer> {
    within(SOON, what, waiting).await.unwrap()
}

/// A cluster, its leader, and a connection to it.
async fn three() -> (Cluster, u64, Arc<Caller>) {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let caller = Arc::new(cluster.caller(leader).await);
    (cluster, leader, caller)
}

fn is_replay(decided: &Decided) -> bool {
    matches!(&decided.answer, Answer::Replay(replay) if replay.payload == Some(payload("k")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_wakes_all_with_the_result() {
    let (cluster, leader, caller) = three().await;
    let token = hold(&caller, "k").await;
    let waiting: Vec<Waiting> = (0..50).map(|_| wait_for(&caller, acquire("k"), 30_000)).collect();
    let observer = Arc::clone(&caller);
    let observing = tokio::spawn(async move { observer.wait(&name("k"), 30_000).await });
    cluster.waiters(leader, 51).await;
    let done = caller.command(complete("k", token)).await.unwrap();
    for waiting in waiting {
        let replay = soon("a waiter is woken", waiting).await.unwrap();
        assert!(is_replay(&replay), "{replay:?}");
        assert!(replay.at.slot.is_none() && replay.at.index >= done.at.index, "{replay:?}");
    }
    let (waited, _) = within(SOON, "the observer is woken", observing).await.unwrap().unwrap();
    assert!(matches!(waited, Waited::Complete(_)), "{waited:?}");
    cluster.waiters(leader, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_hands_over_in_the_order_of_arrival() {
    let (cluster, leader, caller) = three().await;
    let mut token = hold(&caller, "k").await;
    let mut waiting = Vec::new();
    for place in 1..=6 {
        waiting.push(wait_for(&caller, long("k"), 30_000));
        cluster.waiters(leader, place).await;
    }
    for (place, waiter) in waiting.into_iter().enumerate() {
        caller.command(release("k", token)).await.unwrap();
        let granted = soon(&format!("place {place} is next"), waiter).await.unwrap();
        assert!(token_of(&granted) > token, "place {place}");
        token = token_of(&granted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_holders_lease_steals_without_another_round_trip() {
    let (_cluster, _, caller) = three().await;
    let start = Instant::now();
    let lease = Acquire { lease_ms: 600, ..acquire("k") };
    let first = token_of(&caller.acquire(lease, 0).await.unwrap());
    // One send; its answer is the steal.
    let stolen = caller.acquire(acquire("k"), 30_000).await.unwrap();
    let elapsed = start.elapsed();
    let Answer::Acquired { took_over: Some(took_over), .. } = &stolen.answer else {
        panic!("{stolen:?}");
    };
    assert_eq!(took_over.token, first);
    assert!(elapsed >= ms(550) && elapsed < ms(600) + SOON, "after {elapsed:?}");
}

/// C01, with a client that freezes: nobody can know, so a grant stands for one lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_waiter_costs_at_most_one_lease_from_its_grant() {
    let (cluster, leader, caller) = three().await;
    let token = hold(&caller, "k").await;
    let frozen = Arc::new(cluster.caller_through(leader).await.unwrap());
    let asked = wait_for(&frozen, Acquire { lease_ms: 800, ..acquire("k") }, 30_000);
    cluster.waiters(leader, 1).await;
    cluster.links.cut(End::Client, End::Node(leader));
    caller.command(release("k", token)).await.unwrap();
    let released = Instant::now();
    let next = caller.acquire(acquire("k"), 20_000).await.unwrap();
    assert!(released.elapsed() < ms(800) + SOON, "{:?}", released.elapsed());

    cluster.links.heal();
    let thawed = soon("the frozen client thaws", asked).await.unwrap();
    assert!(token_of(&next) > token_of(&thawed), "never two live tokens");
    let late = caller.command(complete("k", token_of(&thawed))).await.unwrap();
    assert!(matches!(late.answer, Answer::LeaseLost(LeaseLost::Stolen { .. })), "{late:?}");
}

/// C01 with a connection that is known closed, and (b) of C23: a dead waiter at the head.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_connection_is_closed_is_dropped_before_it_is_proposed() {
    let (cluster, leader, caller) = three().await;
    let follower = cluster.followers().await[0];
    let token = hold(&caller, "k").await;
    let native = Arc::new(cluster.caller_through(leader).await.unwrap());
    let by_native = wait_for(&native, long("k"), 60_000);
    cluster.waiters(leader, 1).await;
    let forwarded = Arc::new(cluster.caller(follower).await);
    let by_forward = wait_for(&forwarded, long("k"), 60_000);
    cluster.waiters(leader, 2).await;
    let http = cluster.http(follower);
    let body = json!({"scope": "test", "key": "k", "wait_ms": 60_000});
    let by_http = tokio::spawn(async move { http.post("/v1/acquire", body).await });
    cluster.waiters(leader, 3).await;
    let alive = wait_for(&caller, long("k"), 60_000);
    cluster.waiters(leader, 4).await;

    cluster.links.sever(End::Client, End::Node(leader));
    assert_eq!(by_native.await.unwrap(), Err(NoAnswer::Silence));
    by_forward.abort();
    drop(forwarded);
    by_http.abort();
    cluster.waiters(leader, 1).await;
    caller.command(release("k", token)).await.unwrap();
    let granted = soon("the living waiter is next", alive).await.unwrap();
    assert_eq!(token_of(&granted).get(), token.get() + 1, "nobody else was granted");
}

/// Who is not the front does not watch the lease; whoever becomes it must.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_in_line_steals_when_the_front_has_gone() {
    let (cluster, leader, caller) = three().await;
    let lease = Acquire { lease_ms: 1500, ..acquire("k") };
    let first = token_of(&caller.acquire(lease, 0).await.unwrap());
    let front = wait_for(&caller, long("k"), 60_000);
    cluster.waiters(leader, 1).await;
    let next = wait_for(&caller, long("k"), 60_000);
    cluster.waiters(leader, 2).await;
    front.abort();
    cluster.waiters(leader, 1).await;
    let stolen = within(ms(1500) + SOON, "the lease runs out", next).await.unwrap().unwrap();
    assert_eq!(token_of(&stolen).get(), first.get() + 1);
}

/// Cancelling and hanging up must be noticed behind any number of requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_full_of_waiters_can_still_cancel_and_close() {
    let (cluster, leader, caller) = three().await;
    let _token = hold(&caller, "k").await;
    let full = Arc::new(cluster.caller(leader).await);
    let waiting: Vec<Waiting> =
        (0..IN_FLIGHT).map(|_| wait_for(&full, acquire("k"), 60_000)).collect();
    let count = u64::try_from(IN_FLIGHT).unwrap();
    cluster.waiters(leader, count).await;
    waiting[0].abort();
    cluster.waiters(leader, count - 1).await;
    waiting.iter().for_each(JoinHandle::abort);
    drop(full);
    cluster.waiters(leader, 0).await;
}

/// C14.
#[tokio::test(flavor = "multi_thread")]
async fn no_wake_up_is_lost_in_a_thousand_rounds() {
    let (_cluster, _, caller) = three().await;
    for seed in seeds("lost wake-ups", 14, 0) {
        let rounds = (0..10_u64).map(|task| {
            let caller = Arc::clone(&caller);
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed + task);
            tokio::spawn(async move {
                for round in 0..100 {
                    let key = format!("{task}-{round}");
                    let token = hold(&caller, &key).await;
                    let offset = Duration::from_micros(rng.random_range(0..3000));
                    let completes = rng.random();
                    let waits = async {
                        sleep(Duration::from_micros(1500)).await;
                        let (acquired, observed) =
                            tokio::join!(caller.acquire(acquire(&key), 5000), async {
                                caller.wait(&name(&key), 5000).await
                            },);
                        (acquired.unwrap(), observed.unwrap())
                    };
                    let ends = async {
                        sleep(offset).await;
                        let end = if completes { complete } else { release };
                        caller.command(end(&key, token)).await.unwrap();
                        Instant::now()
                    };
                    let ((acquired, observed), ended) = tokio::join!(waits, ends);
                    let took = ended.elapsed();
                    assert!(took < SOON, "seed {seed}, round {key}: woken after {took:?}");
                    match (completes, &acquired.answer) {
                        (true, Answer::Replay(_)) | (false, Answer::Acquired { .. }) => {}
                        other => panic!("seed {seed}, round {key}: {other:?}"),
                    }
                    if completes {
                        assert!(matches!(observed.0, Waited::Complete(_)), "{observed:?}");
                    }
                }
            })
        });
        for round in join_all(rounds).await {
            round.unwrap();
        }
    }
}

/// C23 (a).
#[tokio::test(flavor = "multi_thread")]
async fn late_releases_after_a_takeover_disturb_nobody() {
    let (_cluster, _, caller) = three().await;
    let lease = Acquire { lease_ms: 100, ..acquire("k") };
    let first = token_of(&caller.acquire(lease, 0).await.unwrap());
    let second = token_of(&caller.acquire(long("k"), 5000).await.unwrap());
    for _ in 0..5 {
        let late = caller.command(release("k", first)).await.unwrap();
        let lost = LeaseLost::Stolen { current_token: second };
        assert_eq!(late.answer, Answer::LeaseLost(lost));
    }
    for other in 0..100 {
        let key = other.to_string();
        let token = hold(&caller, &key).await;
        let released = caller.command(release(&key, token)).await.unwrap();
        assert_eq!(released.answer, Answer::Released);
    }
    let done = caller.command(complete("k", second)).await.unwrap();
    assert!(matches!(done.answer, Answer::Completed(_)), "{done:?}");
}

/// C37.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_loses_every_race_still_ends_with_its_budget() {
    let (_cluster, _, caller) = three().await;
    let racers: Vec<JoinHandle<()>> = (0..20)
        .map(|_| {
            let caller = Arc::clone(&caller);
            tokio::spawn(async move {
                loop {
                    let decided = caller.acquire(long("k"), 0).await.unwrap();
                    if let Answer::Acquired { token, .. } = decided.answer {
                        caller.command(release("k", token)).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let start = Instant::now();
        let victim = caller.acquire(acquire("k"), 200).await.unwrap();
        let elapsed = start.elapsed();
        assert!(elapsed < ms(200) + SOON, "after {elapsed:?}");
        match victim.answer {
            Answer::Acquired { token, .. } => {
                caller.command(release("k", token)).await.unwrap();
            }
            Answer::InProgress { .. } => assert!(elapsed >= ms(195), "gave up after {elapsed:?}"),
            other => panic!("{other:?}"),
        }
    }
    racers.iter().for_each(JoinHandle::abort);
}

/// C38.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_sent_again_keeps_its_place() {
    let (cluster, leader, caller) = three().await;
    let token = hold(&caller, "k").await;
    let (first, second) = (long("k"), long("k"));
    let before = wait_for(&caller, first.clone(), 30_000);
    cluster.waiters(leader, 1).await;
    let behind = wait_for(&caller, second, 30_000);
    cluster.waiters(leader, 2).await;
    let other = Arc::new(cluster.caller(leader).await);
    let again = wait_for(&other, first, 30_000);
    let superseded = soon("the older send is answered", before).await.unwrap();
    assert!(matches!(superseded.answer, Answer::InProgress { .. }), "{superseded:?}");
    cluster.waiters(leader, 2).await;
    caller.command(release("k", token)).await.unwrap();
    let granted = soon("the attempt that came first is first", again).await.unwrap();
    assert!(!behind.is_finished());
    caller.command(release("k", token_of(&granted))).await.unwrap();
    token_of(&soon("then the other", behind).await.unwrap());
}

/// C39.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_reconnects_is_granted_once() {
    let (cluster, leader, caller) = three().await;
    let token = hold(&caller, "k").await;
    let client = cluster.client();
    let waiting = tokio::spawn(async move { client.acquire(long("k"), ms(30_000)).await });
    cluster.waiters(leader, 1).await;
    for _ in 0..2 {
        for id in cluster.ids() {
            cluster.links.sever(End::Client, End::Node(id));
        }
        cluster.waiters(leader, 0).await;
        cluster.waiters(leader, 1).await;
    }
    caller.command(release("k", token)).await.unwrap();
    let (acquired, _) = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
    let Acquisition::Acquired { token: granted, .. } = acquired else { panic!("{acquired:?}") };
    assert_eq!(granted.get(), token.get() + 1);
    caller.command(release("k", granted)).await.unwrap();
    let next = caller.acquire(acquire("k"), 0).await.unwrap();
    assert_eq!(token_of(&next).get(), granted.get() + 1, "no phantom stands in the way");
}

/// p99 of acquire and release of keys that nobody else wants.
async fn others_p99(caller: &Caller) -> Duration {
    let mut took = Vec::new();
    for probe in 0..200 {
        let key = format!("other-{probe}");
        let start = Instant::now();
        let token = hold(caller, &key).await;
        took.push(start.elapsed());
        caller.command(release(&key, token)).await.unwrap();
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// On a machine that runs other tests, a quiet p99 is mostly the scheduler's.
fn assert_unaffected(idle: Duration, loaded: Duration) {
    assert!(loaded < idle.max(ms(10)) * 3, "p99 {loaded:?} with waiters, {idle:?} without");
}

/// C47.
#[tokio::test(flavor = "multi_thread")]
async fn over_the_waiter_quota_a_caller_is_told_and_others_are_unaffected() {
    let options = Options::default().with(|config| config.max_waiters = 2000);
    let cluster = Cluster::start_with(options).await;
    let leader = cluster.leader().await;
    let caller = Arc::new(cluster.caller(leader).await);
    let token = hold(&caller, "k").await;
    let idle = others_p99(&caller).await;
    let waiting: Vec<Waiting> =
        (0..2000).map(|_| wait_for(&caller, acquire("k"), 30_000)).collect();
    cluster.waiters(leader, 2000).await;
    let refused = caller.acquire(acquire("k"), 30_000).await;
    let Err(NoAnswer::Refused(Refusal::Overloaded { .. })) = refused else { panic!("{refused:?}") };
    let body = json!({"scope": "test", "key": "k", "wait_ms": 30_000});
    for id in cluster.ids() {
        let refused = cluster.http(id).post("/v1/acquire", body.clone()).await.unwrap();
        assert_eq!(refused.status, 429, "{refused:?}");
        assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
        assert_eq!(refused.json()["outcome"], "refused");
    }
    // Who does not wait is not in the way of the quota.
    let refused = caller.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(refused.answer, Answer::InProgress { .. }), "{refused:?}");
    assert_unaffected(idle, others_p99(&caller).await);
    caller.command(complete("k", token)).await.unwrap();
    for waiting in waiting {
        assert!(is_replay(&soon("all are woken", waiting).await.unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_waiters_on_one_key_leave_other_keys_fast() {
    let (cluster, leader, caller) = three().await;
    let follower = cluster.followers().await[0];
    let token = hold(&caller, "k").await;
    let by_follower = cluster.caller(follower).await;
    let idle = others_p99(&caller).await.max(others_p99(&by_follower).await);
    // Half of them at a follower, which forwards: more than fit into one connection.
    let mut waiting = Vec::new();
    for door in [leader, leader, follower, follower] {
        let caller = Arc::new(cluster.caller(door).await);
        waiting.extend((0..2500).map(|_| wait_for(&caller, acquire("k"), 60_000)));
    }
    cluster.waiters(leader, 10_000).await;
    assert_unaffected(idle, others_p99(&caller).await);
    assert_unaffected(idle, others_p99(&by_follower).await);
    caller.command(complete("k", token)).await.unwrap();
    let woken = within(SOON * 5, "all are woken", join_all(waiting)).await;
    for replay in woken {
        assert!(is_replay(&replay.unwrap().unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_changes_of_the_leader() {
    let (mut cluster, leader, caller) = three().await;
    let token = hold(&caller, "k").await;
    let client = cluster.client();
    let by_client = tokio::spawn({
        let client = client.clone();
        async move { client.acquire(acquire("k"), ms(50_000)).await }
    });
    let follower = cluster.followers().await[0];
    let forwarded = wait_for(&Arc::new(cluster.caller(follower).await), acquire("k"), 50_000);
    let direct = wait_for(&caller, acquire("k"), 50_000);
    let observed = tokio::spawn(async move { client.wait(&name("k"), ms(50_000)).await });
    cluster.waiters(leader, 4).await;

    let other = cluster.followers().await[1];
    cluster.transfer(other).await;
    cluster.waiters(other, 4).await;
    cluster.waiters(leader, 0).await;
    // The old leader forwards for those who asked it; now the new one dies.
    cluster.crash(other).await;
    let last = cluster.leader().await;
    eventually("the waiters that may be sent again stand at the last leader", async || {
        (cluster.metric(last, "waiters").await >= 2).then_some(())
    })
    .await;
    cluster.caller(last).await.command(complete("k", token)).await.unwrap();
    let (acquired, _) = within(SOON, "the client's wait", by_client).await.unwrap().unwrap();
    assert!(matches!(acquired, Acquisition::Replay(_)), "{acquired:?}");
    let (waited, _) = within(SOON, "the observer's wait", observed).await.unwrap().unwrap();
    assert!(matches!(waited, Waited::Complete(_)), "{waited:?}");
    // A node says at once that it cannot know what a leader did that died.
    for waiting in [forwarded, direct] {
        match soon("a wait at a node", waiting).await {
            Ok(replay) => assert!(is_replay(&replay), "{replay:?}"),
            Err(error) => assert!(error.is_unknown(), "{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_deposed_leader_are_handed_back_and_never_see_its_old_state() {
    let (cluster, old, caller) = three().await;
    let token = hold(&caller, "k").await;
    let short = wait_for(&caller, acquire("k"), 700);
    let long = wait_for(&caller, acquire("k"), 40_000);
    let observed = tokio::spawn({
        let caller = Arc::clone(&caller);
        async move { caller.wait(&name("k"), 40_000).await }
    });
    cluster.waiters(old, 3).await;
    cluster.isolate(old);
    let rest: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != old).collect();
    let new = cluster.caller(cluster.leader_among(&rest).await).await;
    new.command(complete("k", token)).await.unwrap();
    match short.await.unwrap() {
        Ok(decided) => assert!(is_replay(&decided), "{decided:?}"),
        Err(error) => assert_eq!(error, NoAnswer::Refused(Refusal::NoLeader)),
    }
    holds_for(ms(800), "nobody is answered by old state", async || {
        !long.is_finished() && !observed.is_finished()
    })
    .await;
    cluster.links.heal();
    assert!(is_replay(&within(SOON * 3, "it is forwarded", long).await.unwrap().unwrap()));
    let (waited, _) = within(SOON * 3, "it is forwarded", observed).await.unwrap().unwrap();
    assert!(matches!(waited, Waited::Complete(_)), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_told_what_it_waited_for() {
    let (_cluster, _, caller) = three().await;
    let wait = async |key: &str, timeout_ms| {
        let (waited, at) = caller.wait(&name(key), timeout_ms).await.unwrap();
        assert_eq!(at.slot, None);
        waited
    };
    assert_eq!(wait("absent", 5000).await, Waited::Absent);

    let token = hold(&caller, "k").await;
    let start = Instant::now();
    let Waited::TimedOut { retry_after_ms } = wait("k", 300).await else { panic!("not in time") };
    assert!(start.elapsed() >= ms(295), "{:?}", start.elapsed());
    assert!((50_000..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
    caller.command(complete("k", token)).await.unwrap();
    let Waited::Complete(replay) = wait("k", 5000).await else { panic!("not complete") };
    assert_eq!((replay.token, replay.payload), (token, Some(payload("k"))));

    let short = Acquire { lease_ms: 300, ..acquire("short") };
    token_of(&caller.acquire(short, 0).await.unwrap());
    assert_eq!(
        within(SOON, "the lease runs out", wait("short", 30_000)).await,
        Waited::LeaseExpired
    );

    let token = hold(&caller, "released").await;
    let (waited, released) =
        tokio::join!(wait("released", 30_000), caller.command(release("released", token)));
    assert_eq!((waited, released.unwrap().answer), (Waited::Absent, Answer::Released));
}
