//! What a caller may conclude: refused never commits, acknowledged never vanishes, and all else is
//! said to be unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use openraft::{EntryPayload, RaftLogReader};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tenure_api::frame::{Ask, Change, Decided};
use tenure_api::{Refusal, ViewState};
use tenure_client::{CallError, Withdrawal};
use tenure_state_machine::{Acquire, Answer, Command, LeaseLost, Release, Token};
use tenure_tests::{
    Caller, Cluster, End, NoAnswer, Options, acquire, complete, eventually, extend, name, payload,
    release, seeds, token_of, within,
};
use tokio::time::{Instant, sleep};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn answered_within(limit: Duration) -> Options {
    Options::default().with(|config| config.request_timeout = limit)
}

fn long(key: &str) -> Acquire {
    Acquire { lease_ms: 60_000, ..acquire(key) }
}

/// Attempts by the log index and slot of their acquires, in any node's log, committed or not.
/// Stops the cluster.
async fn attempts_in_logs(cluster: &mut Cluster) -> BTreeMap<String, BTreeSet<(u64, usize)>> {
    let mut found: BTreeMap<String, BTreeSet<(u64, usize)>> = BTreeMap::new();
    for id in cluster.ids() {
        cluster.crash(id).await;
        let mut log = cluster.open(id).await.log;
        let (first, last) = log.bounds();
        for index in first..=last {
            let entries = log.try_get_log_entries(index..index + 1).await.unwrap();
            let Some(EntryPayload::Normal(entry)) = entries.first().map(|entry| &entry.payload)
            else {
                continue;
            };
            for (slot, command) in entry.commands.iter().enumerate() {
                if let Command::Acquire(acquire) = command {
                    let attempt = acquire.attempt.as_str().to_owned();
                    found.entry(attempt).or_default().insert((index, slot));
                }
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_a_request_is_held_and_then_refused_and_never_proposed() {
    let mut cluster = Cluster::start_with(answered_within(ms(300))).await;
    let leader = cluster.leader().await;
    cluster.crash(leader).await;
    let ids = cluster.ids();
    ids.iter().for_each(|id| cluster.isolate(*id));
    let mut refused = Vec::new();
    for id in &ids {
        let body = json!({"scope": "test", "key": "k", "attempt": format!("http-{id}")});
        refused.push(format!("http-{id}"));
        let start = Instant::now();
        let answer = cluster.http(*id).post("/v1/acquire", body).await.unwrap();
        let body = answer.json();
        assert_eq!((answer.status, &body["code"]), (503, &json!("no_leader")), "{body}");
        assert_eq!((&body["outcome"], &body["retryable"]), (&json!("refused"), &json!(true)));
        assert!(answer.headers.contains_key("retry-after"));
        assert!(start.elapsed() >= ms(290), "it was held: {:?}", start.elapsed());

        let acquire = acquire("k");
        refused.push(acquire.attempt.as_str().to_owned());
        let native = cluster.caller(*id).await.acquire(acquire, 0).await;
        assert_eq!(native, Err(NoAnswer::Refused(Refusal::NoLeader)));
        let read = cluster.caller(*id).await.get(&name("k")).await;
        assert_eq!(read, Err(NoAnswer::Refused(Refusal::NoLeader)));
    }
    cluster.links.heal();
    cluster.restart(leader).await;
    let (view, _) = cluster.lead().await.get(&name("k")).await.unwrap();
    assert_eq!(view, None);
    let found = attempts_in_logs(&mut cluster).await;
    assert!(refused.iter().all(|attempt| !found.contains_key(attempt)), "{found:?}");
}

/// Entries on their way are unknown; what was still waiting behind them is withdrawn.
#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_leader_calls_unknown_what_it_proposed_and_refuses_the_rest() {
    let mut cluster = Cluster::start_with(answered_within(ms(400))).await;
    let leader = cluster.leader().await;
    let caller = Arc::new(cluster.caller(leader).await);
    let before = cluster.settled().await;
    cluster.isolate(leader);
    let (mut attempts, mut asked) = (Vec::new(), Vec::new());
    for place in 1..=12 {
        let acquire = long(&place.to_string());
        attempts.push(acquire.attempt.as_str().to_owned());
        let caller = Arc::clone(&caller);
        asked.push(tokio::spawn(async move { caller.acquire(acquire, 0).await }));
        if place <= 8 {
            eventually("it is proposed", async || {
                (cluster.node(leader).status().last_index == before + place).then_some(())
            })
            .await;
        }
    }
    let mut refused = Vec::new();
    for (attempt, asked) in attempts.iter().zip(asked) {
        match within(ms(2500), "an answer in time", asked).await.unwrap() {
            Err(NoAnswer::Refused(Refusal::OutcomeUnknown)) => {}
            Err(NoAnswer::Refused(Refusal::NoLeader)) => refused.push(attempt.clone()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, attempts[8..], "the first eight were proposed, the others were not");
    cluster.links.heal();
    cluster.settled().await;
    let found = attempts_in_logs(&mut cluster).await;
    assert!(refused.iter().all(|attempt| !found.contains_key(attempt)), "{found:?}");
}

/// A leader to come might still have it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_new_leader_discards_is_unknown_as_soon_as_that_is_seen() {
    let cluster = Cluster::start_with(answered_within(ms(20_000))).await;
    let old = cluster.leader().await;
    let caller = cluster.caller(old).await;
    let before = cluster.settled().await;
    cluster.isolate(old);
    let asked = tokio::spawn(async move { caller.acquire(long("k"), 0).await });
    eventually("it is proposed", async || {
        (cluster.node(old).status().last_index > before).then_some(())
    })
    .await;
    let rest: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != old).collect();
    let new = cluster.caller(cluster.leader_among(&rest).await).await;
    for round in 0..5 {
        token_of(&new.acquire(long(&format!("other-{round}")), 0).await.unwrap());
    }
    assert!(!asked.is_finished());
    cluster.links.heal();
    let discarded = within(ms(5000), "it is told", asked).await.unwrap();
    assert_eq!(discarded, Err(NoAnswer::Refused(Refusal::OutcomeUnknown)));
}

/// Nothing grows without bound while nothing commits.
#[tokio::test(flavor = "multi_thread")]
async fn beyond_what_may_wait_to_be_proposed_a_caller_is_refused_at_once() {
    let cluster = Cluster::start_with(answered_within(ms(1500))).await;
    let leader = cluster.leader().await;
    cluster.isolate(leader);
    let mut asked = Vec::new();
    for connection in 0..4 {
        let caller = Arc::new(cluster.caller(leader).await);
        asked.extend((0..3500).map(|n| {
            let (caller, key) = (Arc::clone(&caller), format!("{connection}-{n}"));
            tokio::spawn(async move { caller.acquire(long(&key), 0).await })
        }));
    }
    let answers = within(ms(15_000), "all are answered", join_all(asked)).await;
    let (mut overloaded, mut refused, mut unknown) = (0, 0, 0);
    for answer in answers {
        match answer.unwrap() {
            Err(NoAnswer::Refused(Refusal::Overloaded { .. })) => overloaded += 1,
            Err(NoAnswer::Refused(Refusal::NoLeader)) => refused += 1,
            Err(NoAnswer::Refused(Refusal::OutcomeUnknown)) => unknown += 1,
            other => panic!("{other:?}"),
        }
    }
    eprintln!("{overloaded} overloaded, {refused} refused, {unknown} unknown");
    assert!(overloaded > 0 && refused > 0, "{overloaded}, {refused}");
    assert!((1..=8 * 256).contains(&unknown), "eight entries on their way, not {unknown} commands");
    cluster.links.heal();
    token_of(&cluster.lead().await.acquire(long("after"), 0).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_is_504_and_the_same_attempt_settles_it() {
    let cluster = Cluster::start_with(answered_within(ms(300))).await;
    let leader = cluster.leader().await;
    cluster.isolate(leader);
    let body = json!({"scope": "test", "key": "k", "attempt": "a"});
    let answer = cluster.http(leader).post("/v1/acquire", body.clone()).await.unwrap();
    let problem = answer.json();
    assert_eq!((answer.status, &problem["code"]), (504, &json!("outcome_unknown")), "{problem}");
    assert_eq!((&problem["outcome"], &problem["retryable"]), (&json!("unknown"), &json!(true)));
    cluster.links.heal();
    let settled = eventually("the same attempt is granted", async || {
        let again = cluster.http(leader).post("/v1/acquire", body.clone()).await.unwrap();
        (again.status == 200).then(|| again.json())
    })
    .await;
    assert_eq!(settled["outcome"], "acquired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_request_whose_connection_breaks_is_unknown_at_once() {
    let cluster = Cluster::start_with(answered_within(ms(20_000))).await;
    let leader = cluster.leader().await;
    let follower = cluster.followers().await[0];
    let caller = Arc::new(cluster.caller(follower).await);
    token_of(&caller.acquire(long("warm"), 0).await.unwrap());
    cluster.links.cut_one_way(End::Node(leader), End::Client);
    let asked = tokio::spawn({
        let caller = Arc::clone(&caller);
        async move { caller.acquire(long("k"), 0).await }
    });
    let read = tokio::spawn(async move { caller.get(&name("warm")).await });
    eventually("the leader has run it", async || {
        cluster.node(leader).state().read(&name("k")).unwrap().0
    })
    .await;
    assert!(!asked.is_finished());
    cluster.links.sever(End::Client, End::Node(leader));
    let broken = within(ms(1000), "it does not wait for its timeout", asked).await.unwrap();
    assert_eq!(broken, Err(NoAnswer::Refused(Refusal::OutcomeUnknown)));
    // A read is asked again.
    cluster.links.heal();
    let (view, _) = within(ms(5000), "the read goes on", read).await.unwrap().unwrap();
    assert!(view.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_command_is_sent_once_however_late_its_answer_comes() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let caller = cluster.caller(cluster.followers().await[0]).await;
    cluster.links.delay(End::Node(leader), End::Client, ms(800));
    let start = Instant::now();
    let sent = acquire("k");
    let attempt = sent.attempt.as_str().to_owned();
    token_of(&caller.acquire(sent, 0).await.unwrap());
    assert!(start.elapsed() >= ms(800), "its answer was not late");
    let found = attempts_in_logs(&mut cluster).await;
    assert_eq!(found[&attempt].len(), 1, "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_forbids_forwarding_is_told_who_leads() {
    let cluster = Cluster::start(3).await;
    let old = cluster.leader().await;
    let new = cluster.followers().await[0];
    cluster.transfer(new).await;
    let body = json!({"scope": "test", "key": "k"}).to_string();
    let told = eventually("the old leader knows the new one", async || {
        let headers = [("X-No-Forward", "1")];
        let http = cluster.http(old);
        let told = http.ask(hyper::Method::POST, "/v1/acquire", &headers, body.clone()).await;
        told.filter(|told| told.status == 421)
    })
    .await;
    let problem = told.json();
    let address = cluster.address(new);
    let leader = json!({"id": new, "http": problem["leader"]["http"], "rpc": address.rpc});
    assert_eq!(problem["leader"], leader);
    assert_eq!((&problem["code"], &problem["outcome"]), (&json!("not_leader"), &json!("refused")));
    assert_eq!(told.headers["x-tenure-leader"], problem["leader"]["http"].as_str().unwrap());

    let command = Command::Acquire(acquire("k"));
    let ask = Ask::Command { command, wait_ms: 0 };
    let native = cluster.caller(old).await.ask_as(ask, ms(5000), true).await;
    let Err(NoAnswer::Refused(Refusal::NotLeader { leader: Some(leader) })) = native else {
        panic!("{native:?}");
    };
    assert_eq!((leader.id, leader.rpc), (new, address.rpc));
    // Allowed to, it forwards.
    token_of(&cluster.caller(old).await.acquire(acquire("k"), 0).await.unwrap());
}

/// C13.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_lost_on_the_wire_can_be_sent_again() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let direct = cluster.caller(leader).await;
    let client = cluster.client();
    for drops_only_the_answer in [false, true] {
        // A first call finds the leader.
        eventually("the client has found the leader", async || {
            let (acquired, _) = client.acquire(long("find"), Duration::ZERO).await.unwrap();
            drop(acquired);
            let forwarded = cluster.metric(leader, "forwarded_total").await;
            (forwarded == 0).then_some(())
        })
        .await;
        let token = token_of(&direct.acquire(long("k"), 0).await.unwrap());
        let withdraw = Release { name: name("k"), token, not_after_ms: None };
        for id in cluster.ids() {
            cluster.links.cut_one_way(End::Node(id), End::Client);
            if !drops_only_the_answer {
                cluster.links.cut_one_way(End::Client, End::Node(id));
            }
        }
        let lost = client.with_timeout(ms(400)).release(withdraw.clone()).await;
        assert!(matches!(lost, Err(CallError::Unknown { .. })), "{lost:?}");
        if drops_only_the_answer {
            eventually("it was applied", async || {
                cluster.node(leader).state().read(&name("k")).unwrap().0.is_none().then_some(())
            })
            .await;
        } else {
            assert!(cluster.node(leader).state().read(&name("k")).unwrap().0.is_some());
        }
        cluster.links.heal();
        let (again, _) = client.release(withdraw).await.unwrap();
        match again {
            Withdrawal::Released => {}
            Withdrawal::LeaseLost(LeaseLost::Absent) => {}
            other => panic!("{other:?}"),
        }
        let next = direct.acquire(acquire("k"), 0).await.unwrap();
        direct.command(release("k", token_of(&next))).await.unwrap();
    }
}

/// C13, within one call: absent after a lost answer means released.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resends_a_release_reports_success() {
    let cluster = Cluster::start(3).await;
    let (client, direct) = (cluster.client(), cluster.lead().await);
    let token = token_of(&direct.acquire(long("k"), 0).await.unwrap());
    client.get(&name("k"), tenure_api::frame::Consistency::Linearizable).await.unwrap();
    for id in cluster.ids() {
        cluster.links.cut_one_way(End::Node(id), End::Client);
    }
    let withdraw = Release { name: name("k"), token, not_after_ms: None };
    let calling = tokio::spawn(async move { client.release(withdraw).await });
    let leader = cluster.leader().await;
    eventually("it was applied", async || {
        cluster.node(leader).state().read(&name("k")).unwrap().0.is_none().then_some(())
    })
    .await;
    for id in cluster.ids() {
        cluster.links.sever(End::Client, End::Node(id));
    }
    cluster.links.heal();
    let (withdrawn, _) = within(ms(10_000), "the call ends", calling).await.unwrap().unwrap();
    assert_eq!(withdrawn, Withdrawal::Released);
}

/// C17.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_does_not_free_the_next_holders_record() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let caller = cluster.lead().await;
    let first =
        token_of(&caller.acquire(Acquire { lease_ms: 300, ..acquire("k") }, 0).await.unwrap());
    cluster.clocks.advance(ms(500));
    let second =
        token_of(&caller.acquire(Acquire { lease_ms: 5000, ..acquire("k") }, 0).await.unwrap());
    let late = caller.command(release("k", first)).await.unwrap();
    assert_eq!(late.answer, Answer::LeaseLost(LeaseLost::Stolen { current_token: second }));
    let third = caller.acquire(acquire("k"), 0).await.unwrap();
    let Answer::InProgress { token, retry_after_ms, .. } = third.answer else {
        panic!("{third:?}")
    };
    assert_eq!((token, retry_after_ms), (second, 5000));
}

/// C18.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_can_be_extended_again_and_again() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let caller = cluster.lead().await;
    let token =
        token_of(&caller.acquire(Acquire { lease_ms: 300, ..acquire("k") }, 0).await.unwrap());
    for _ in 0..20 {
        cluster.clocks.advance(ms(150));
        caller.command(extend("k", token, 300)).await.unwrap();
        let refused = caller.acquire(acquire("k"), 0).await.unwrap();
        assert!(matches!(refused.answer, Answer::InProgress { retry_after_ms: 300, .. }));
    }
    cluster.clocks.advance(ms(350));
    assert!(token_of(&caller.acquire(acquire("k"), 0).await.unwrap()) > token);
}

/// C24, C35.
#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_holder_blocks_for_one_lease_and_a_new_client_steals_at_once() {
    let cluster = Cluster::start_with(Options::default().standing()).await;
    let caller = cluster.lead().await;
    let crashed = Acquire { ttl_ms: 86_400_000, ..acquire("k") };
    let first = token_of(&caller.acquire(crashed, 0).await.unwrap());
    cluster.clocks.advance(ms(500));
    let (stolen, _) = cluster.client().acquire(acquire("k"), Duration::ZERO).await.unwrap();
    let tenure_client::Acquisition::Acquired { token, took_over, .. } = stolen else {
        panic!("{stolen:?}");
    };
    assert_eq!(took_over.map(|took_over| took_over.token), Some(first));
    caller.command(complete("k", token)).await.unwrap();
    let replay = caller.acquire(acquire("k"), 0).await.unwrap();
    assert!(matches!(replay.answer, Answer::Replay(_)), "{replay:?}");
}

/// One logical try of a worker: each key is used once, so every answer but one is wrong.
#[derive(Debug, Clone)]
struct Tried {
    key: String,
    attempt: String,
    acquired: Told,
    ended: Option<(Ending, Told)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Complete,
    Release,
}

#[derive(Debug, Clone)]
enum Told {
    Done(Decided),
    Refused,
    Unknown,
}

fn told(answer: Result<Decided, NoAnswer>) -> Told {
    match answer {
        Ok(decided) => Told::Done(decided),
        Err(error) if error.is_unknown() => Told::Unknown,
        Err(_) => Told::Refused,
    }
}

/// Tries fresh keys through random nodes, one send each, until it is told to stop.
async fn work(
    callers: Arc<Vec<Caller>>,
    worker: u64,
    mut rng: Xoshiro256PlusPlus,
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<Vec<Tried>>>,
) {
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("{worker}-{round}");
        let acquire = Acquire { ttl_ms: 600_000, lease_ms: 600_000, ..acquire(&key) };
        let attempt = acquire.attempt.as_str().to_owned();
        let any = |rng: &mut Xoshiro256PlusPlus| rng.random_range(0..callers.len());
        let acquired = told(callers[any(&mut rng)].acquire(acquire, 0).await);
        let mut ended = None;
        if let Told::Done(Decided { answer: Answer::Acquired { token, .. }, .. }) = &acquired {
            let how = if rng.random_ratio(1, 4) { Ending::Release } else { Ending::Complete };
            let command = match how {
                Ending::Complete => complete(&key, *token),
                Ending::Release => release(&key, *token),
            };
            ended = Some((how, told(callers[any(&mut rng)].command(command).await)));
        }
        history.lock().unwrap().push(Tried { key, attempt, acquired, ended });
    }
}

/// Holds every outcome against the final state and every log. Stops the cluster.
async fn check(cluster: &mut Cluster, history: &[Tried], seed: u64) {
    cluster.settled().await;
    let caller = cluster.lead().await;
    let mut granted: BTreeMap<(u64, u32), Token> = BTreeMap::new();
    for tried in history {
        let wrong = |what: &str| -> ! { panic!("seed {seed}: {what}: {tried:?}") };
        let (view, at) = caller.get(&name(&tried.key)).await.unwrap();
        let state = view.as_ref().map(|view| (view.token, &view.state));
        let token = match &tried.acquired {
            Told::Refused if state.is_some() => wrong("refused, and there it is"),
            Told::Refused | Told::Unknown => continue,
            Told::Done(decided) => {
                let Answer::Acquired { token, resumed, .. } = decided.answer else {
                    wrong("not acquired")
                };
                if resumed {
                    wrong("sent once, and resumed");
                }
                let place = (decided.at.index, decided.at.slot.unwrap_or(u32::MAX));
                if granted.insert(place, token).is_some() || place.0 > at.index {
                    wrong("an impossible place in the log");
                }
                token
            }
        };
        let held = matches!(state, Some((t, ViewState::InProgress { .. })) if t == token);
        let done = matches!(
            state,
            Some((t, ViewState::Complete { payload: found, .. }))
                if t == token && *found == Some(payload(&tried.key))
        );
        match &tried.ended {
            Some((Ending::Complete, Told::Done(decided))) => {
                let completed = matches!(decided.answer, Answer::Completed(_));
                if !completed || !done {
                    wrong("acknowledged, and not complete");
                }
            }
            Some((Ending::Release, Told::Done(decided))) => {
                if decided.answer != Answer::Released || state.is_some() {
                    wrong("acknowledged, and not released");
                }
            }
            Some((_, Told::Refused)) | None if !held => wrong("it should still be held"),
            Some((_, Told::Refused)) | None => {}
            Some((Ending::Complete, Told::Unknown)) if !held && !done => wrong("neither nor"),
            Some((Ending::Release, Told::Unknown)) if !held && state.is_some() => {
                wrong("neither nor");
            }
            Some((_, Told::Unknown)) => {}
        }
    }
    let tokens: Vec<Token> = granted.into_values().collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "seed {seed}: I2, in log order");
    let hashes: BTreeSet<String> = cluster.hashes().await.into_values().collect();
    assert_eq!(hashes.len(), 1, "seed {seed}: I7");

    let found = attempts_in_logs(cluster).await;
    for tried in history {
        let places = found.get(&tried.attempt);
        let once = places.is_none_or(|places| places.len() == 1);
        assert!(once, "seed {seed}: sent once, and at {places:?}: {tried:?}");
        match &tried.acquired {
            Told::Refused => assert_eq!(places, None, "seed {seed}: refused: {tried:?}"),
            Told::Done(decided) => {
                let slot = usize::try_from(decided.at.slot.unwrap()).unwrap();
                let place = (decided.at.index, slot);
                assert!(places.is_some_and(|places| places.contains(&place)), "{tried:?}");
            }
            Told::Unknown => {}
        }
    }
}

/// Runs workers while `disturb` does what it does, then checks everything. Gives how many were
/// acknowledged, refused and unknown.
async fn run(
    seed: u64,
    disturb: impl AsyncFnOnce(&Cluster, &mut Xoshiro256PlusPlus),
) -> (usize, usize, usize) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut cluster = Cluster::start_with(answered_within(ms(400))).await;
    let callers = join_all(cluster.ids().into_iter().map(|id| cluster.caller(id))).await;
    let callers = Arc::new(callers);
    let (stop, history) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let workers: Vec<_> = (0..12)
        .map(|worker| {
            let rng = Xoshiro256PlusPlus::seed_from_u64(rng.random());
            let (callers, stop) = (Arc::clone(&callers), Arc::clone(&stop));
            tokio::spawn(work(callers, worker, rng, stop, Arc::clone(&history)))
        })
        .collect();
    disturb(&cluster, &mut rng).await;
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let history = std::mem::take(&mut *history.lock().unwrap());
    check(&mut cluster, &history, seed).await;
    let ends = history.iter().filter_map(|tried| tried.ended.as_ref().map(|(_, told)| told));
    let all = history.iter().map(|tried| &tried.acquired).chain(ends);
    all.fold((0, 0, 0), |(done, refused, unknown), told| match told {
        Told::Done(_) => (done + 1, refused, unknown),
        Told::Refused => (done, refused + 1, unknown),
        Told::Unknown => (done, refused, unknown + 1),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_cut_refused_never_commits_and_acknowledged_stays() {
    for seed in seeds("cuts under load", 20, 1) {
        let counts = run(seed, async |cluster, rng| {
            for _ in 0..7 {
                let ids = cluster.ids();
                let victim = match rng.random_range(0..3) {
                    0 => ids[rng.random_range(0..ids.len())],
                    _ => cluster.leader().await,
                };
                match rng.random_range(0..4) {
                    0 | 1 => cluster.isolate(victim),
                    2 => {
                        let inwards = rng.random();
                        for other in ids.into_iter().filter(|id| *id != victim) {
                            let (mut from, mut to) = (End::Node(victim), End::Node(other));
                            if inwards {
                                std::mem::swap(&mut from, &mut to);
                            }
                            cluster.links.cut_one_way(from, to);
                        }
                    }
                    _ => {
                        cluster.links.sever(End::Client, End::Node(victim));
                        cluster.links.cut(End::Client, End::Node(victim));
                        let delay = ms(rng.random_range(1..40));
                        for other in ids.into_iter().filter(|id| *id != victim) {
                            cluster.links.delay(End::Node(victim), End::Node(other), delay);
                        }
                    }
                }
                sleep(ms(rng.random_range(200..1600))).await;
                cluster.links.heal();
                sleep(ms(rng.random_range(50..400))).await;
            }
        })
        .await;
        eprintln!("seed {seed}: (acknowledged, refused, unknown) = {counts:?}");
        assert!(counts.0 > 200 && counts.1 > 0 && counts.2 > 0, "not tested: {counts:?}");
    }
}

/// Requests that meet a leader on its way out are taken elsewhere, or told the truth.
#[tokio::test(flavor = "multi_thread")]
async fn transfers_under_load_lose_and_double_nothing() {
    for seed in seeds("transfers under load", 21, 0) {
        let counts = run(seed, async |cluster, rng| {
            for _ in 0..20 {
                let followers = cluster.followers().await;
                let to = followers[rng.random_range(0..followers.len())];
                let leader = cluster.leader().await;
                cluster.caller(leader).await.change(Change::Transfer { to }).await.ok();
                sleep(ms(rng.random_range(0..100))).await;
            }
        })
        .await;
        eprintln!("seed {seed}: (acknowledged, refused, unknown) = {counts:?}");
        assert!(counts.0 > 500, "not tested: {counts:?}");
    }
}
