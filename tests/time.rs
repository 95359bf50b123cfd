//! Cluster time: leases end when they should, whoever leads and whatever its clock reads.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tenure_api::frame::Change;
use tenure_api::{View, ViewState};
use tenure_state_machine::{Acquire, Answer};
use tenure_tests::{Caller, Cluster, Options, acquire, eventually, name, release, seeds, token_of};
use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What is left of the lease of `k`, as a read shows it.
async fn left_ms(caller: &Caller) -> u64 {
    let (view, at) = caller.get(&name("k")).await.unwrap();
    let Some(View { state: ViewState::InProgress { lease_until_ms, .. }, .. }) = view else {
        panic!("not in progress: {view:?}");
    };
    lease_until_ms.saturating_sub(at.now_ms)
}

/// Commits so many entries one after the other, so that every follower has heard the leader's time.
async fn let_followers_hear(cluster: &Cluster) {
    let caller = cluster.lead().await;
    for _ in 0..3 {
        let token = token_of(&caller.acquire(acquire("hear"), 0).await.unwrap());
        caller.command(release("hear", token)).await.unwrap();
        cluster.settled().await;
    }
}

/// C04. The nodes' clocks started hours apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_on_time_over_three_changes_of_leader() {
    let cluster = Cluster::start(3).await;
    let lease = ms(2400);
    let held = Acquire { lease_ms: 2400, ..acquire("k") };
    token_of(&cluster.lead().await.acquire(held, 0).await.unwrap());
    let start = Instant::now();
    let (mut transfers, mut gaps) = (0, Duration::ZERO);
    let took_over = loop {
        if transfers < 3 && start.elapsed() > lease / 4 * (transfers + 1) {
            let next = cluster.followers().await[0];
            let began = Instant::now();
            cluster.transfer(next).await;
            gaps += began.elapsed();
            transfers += 1;
        }
        let Ok(decided) = cluster.lead().await.acquire(acquire("k"), 0).await else { continue };
        match decided.answer {
            Answer::Acquired { took_over, .. } => break took_over,
            Answer::InProgress { retry_after_ms, .. } => assert!(retry_after_ms <= 2400),
            other => panic!("{other:?}"),
        }
    };
    let elapsed = start.elapsed();
    assert_eq!(transfers, 3);
    assert!(took_over.is_some(), "an expired lease was stolen");
    // The grant itself took a moment before the first look at real time.
    assert!(elapsed + ms(100) >= lease, "stolen after {elapsed:?}");
    assert!(elapsed <= lease + gaps + ms(500), "only after {elapsed:?}, gaps {gaps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_whole_cluster_counts_as_no_time() {
    let mut cluster = Cluster::start_with(Options::default().standing()).await;
    let caller = cluster.lead().await;
    token_of(&caller.acquire(Acquire { lease_ms: 1000, ..acquire("k") }, 0).await.unwrap());
    cluster.clocks.advance(ms(400));
    assert_eq!(left_ms(&caller).await, 600);

    cluster.power_cut_all().await;
    cluster.clocks.advance(HOUR);
    cluster.restart_all().await;
    let caller = cluster.lead().await;
    assert_eq!(left_ms(&caller).await, 600);
    cluster.clocks.advance(ms(599));
    let refused = caller.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(refused.answer, Answer::InProgress { retry_after_ms: 1, .. }), "{refused:?}");
    cluster.clocks.advance(ms(1));
    let stolen = caller.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(stolen.answer, Answer::Acquired { took_over: Some(_), .. }), "{stolen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_goes_on_where_the_old_one_was() {
    let mut cluster = Cluster::start_with(Options::default().standing()).await;
    token_of(
        &cluster
            .lead()
            .await
            .acquire(Acquire { lease_ms: 10_000, ..acquire("k") }, 0)
            .await
            .unwrap(),
    );
    let mut spent = 0;
    for round in 0..6 {
        cluster.clocks.advance(ms(300));
        spent += 300;
        let next = cluster.followers().await[0];
        if round % 2 == 0 {
            // One that has just started takes the time from the leader it meets.
            cluster.crash(next).await;
            cluster.restart(next).await;
        }
        let_followers_hear(&cluster).await;
        cluster.transfer(next).await;
        let left = left_ms(&cluster.caller(next).await).await;
        assert_eq!(left, 10_000 - spent, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_leader_takes_no_time_off_a_lease_and_adds_only_the_gap() {
    let mut cluster = Cluster::start_with(Options::default().standing()).await;
    token_of(
        &cluster
            .lead()
            .await
            .acquire(Acquire { lease_ms: 10_000, ..acquire("k") }, 0)
            .await
            .unwrap(),
    );
    let old = cluster.leader().await;
    let_followers_hear(&cluster).await;
    // What passes before anybody can notice is counted by those who live on.
    cluster.clocks.advance(ms(700));
    cluster.crash(old).await;
    let left = left_ms(&cluster.lead().await).await;
    assert!((9_300..=10_000).contains(&left), "{left}");
    assert_eq!(left, 9_300, "the followers' own clocks covered the gap");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_follows_the_leader_down_as_well_as_up() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    token_of(
        &cluster
            .lead()
            .await
            .acquire(Acquire { lease_ms: 60_000, ..acquire("k") }, 0)
            .await
            .unwrap(),
    );
    let next = cluster.followers().await[0];
    cluster.clocks.of(next).advance(HOUR);
    let_followers_hear(&cluster).await;
    cluster.transfer(next).await;
    assert_eq!(left_ms(&cluster.caller(next).await).await, 60_000, "the hour was a hiccup");

    let leader = next;
    let next = cluster.followers().await[0];
    cluster.clocks.of(leader).advance(ms(20_000));
    let_followers_hear(&cluster).await;
    cluster.transfer(next).await;
    assert_eq!(left_ms(&cluster.caller(next).await).await, 40_000, "the leader's time counts");
}

/// I2, I3, over twenty leaders whose clocks run at half to double speed.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_never_goes_back_over_twenty_changes_of_leader() {
    for seed in seeds("twenty leaders", 1, 1) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut cluster = Cluster::start(3).await;
        let speeds = [0.5, 1.0, 2.0];
        for (id, speed) in (1..).zip(speeds) {
            cluster.clocks.set_speed(id, speed);
        }
        let start = Instant::now();
        let (mut first, mut last, mut last_token) = (None, 0, None);
        let mut changes = 0;
        while changes < 20 {
            let leader = cluster.leader().await;
            let followers = cluster.followers().await;
            let next = followers[rng.random_range(0..followers.len())];
            if rng.random_ratio(1, 10) {
                cluster.crash(leader).await;
                cluster.leader().await;
                cluster.restart(leader).await;
            } else {
                let change = Change::Transfer { to: next };
                cluster.caller(leader).await.change(change).await.ok();
            }
            changes += 1;
            let decided = eventually("an acquire is granted", async || {
                cluster.lead().await.acquire(acquire(&changes.to_string()), 0).await.ok()
            })
            .await;
            let (token, now_ms) = (Some(token_of(&decided)), decided.at.now_ms);
            assert!(now_ms >= last, "seed {seed}: back from {last} to {now_ms}");
            assert!(token > last_token, "seed {seed}: {last_token:?}, then {token:?}");
            (first, last, last_token) = (first.or(Some(now_ms)), now_ms, token);
        }
        let told = ms(last - first.unwrap());
        let real = start.elapsed();
        assert!(told <= real * 2 + ms(100), "seed {seed}: {told:?} told in {real:?}");
    }
}
