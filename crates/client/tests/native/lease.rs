//! Leases and their heartbeats, on a clock that the test moves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::Refusal;
use tenure_api::frame::{Ask, Consistency, Decided, Reply, Request};
use tenure_client::{AdoptError, Client, Lease, LeaseError, Leased, Lost, ManualBootTime};
use tenure_state_machine::{Answer, Command, Completion, Extend, LeaseLost, Name, Token};
use tokio::time::{sleep, timeout};

use crate::node::{AT, Line, PlayedNode, acquired, attempt};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn client(node: &PlayedNode, clock: &ManualBootTime) -> Client {
    Client::builder()
        .endpoints([node.address.clone()])
        .clock(Arc::new(clock.clone()))
        .holder("a test")
        .build()
        .unwrap()
}

pub(crate) fn token(token: u64) -> Token {
    Token::new(token).unwrap()
}

/// What is about to come.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(20 * SECOND, future).await.expect("it does not come")
}

/// A lease of 30 s on `mail/{key}`: usable for 27 s, with a heartbeat each 10 s.
async fn held(node: &mut PlayedNode, client: &Client, key: &str, token: u64) -> Lease {
    let play = async {
        let (request, line) = soon(node.request()).await;
        line.answer(&request, acquired(token));
    };
    let (leased, ()) = tokio::join!(client.lease("mail", key).acquire(), play);
    let Leased::Held(lease) = leased.unwrap() else { panic!("it is held") };
    lease
}

pub(crate) fn extends(request: &Request) -> Vec<Extend> {
    let Ask::Batch(commands) = &request.ask else { panic!("no heartbeats: {request:?}") };
    let extend = |command: &Command| {
        let Command::Extend(extend) = command else { panic!("no heartbeat: {command:?}") };
        extend.clone()
    };
    commands.iter().map(extend).collect()
}

/// Answers every heartbeat of a frame alike.
fn answer_all(request: &Request, line: &Line, answer: impl Fn(Token) -> Answer) {
    let answers = extends(request)
        .iter()
        .map(|extend| Ok(Decided { answer: answer(extend.token), at: AT }))
        .collect();
    line.reply(request, Ok(Reply::Batch(answers)));
}

pub(crate) fn extended(lease_until_ms: u64) -> impl Fn(Token) -> Answer {
    move |token| Answer::Extended { token, lease_until_ms }
}

/// The next request, while the clock goes on a little at a time.
async fn request_in_time(node: &mut PlayedNode, clock: &ManualBootTime) -> (Request, Line) {
    let tick = async {
        loop {
            sleep(Duration::from_millis(1)).await;
            clock.advance(Duration::from_millis(5));
        }
    };
    tokio::select! {
        request = soon(node.request()) => request,
        () = tick => unreachable!("it goes on"),
    }
}

/// Waits until a heartbeat's answer has been taken in.
async fn until_left(lease: &Lease, left: Duration) {
    let look = async {
        while lease.left() != left {
            sleep(Duration::from_millis(1)).await;
        }
    };
    soon(look).await;
}

/// Asserts that nothing is sent but what is asked here.
pub(crate) async fn assert_silent(node: &mut PlayedNode, client: &Client) {
    for _ in 0..3 {
        let play = async {
            let (request, line) = soon(node.request()).await;
            assert!(matches!(request.ask, Ask::Get { .. }), "not silent: {request:?}");
            line.reply(&request, Ok(Reply::Record { view: None, at: AT }));
        };
        let name = Name::new("mail", "probe").unwrap();
        let (got, ()) = tokio::join!(client.get(&name, Consistency::Stale), play);
        got.unwrap();
    }
}

#[tokio::test]
async fn heartbeats_that_are_due_together_share_a_frame_at_a_third_of_the_lease() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let mut leases = Vec::new();
    for number in 1..=3 {
        leases.push(held(&mut node, &client, &number.to_string(), number).await);
        clock.advance(Duration::from_millis(100));
    }
    clock.advance(Duration::from_millis(9_699));
    assert_silent(&mut node, &client).await;
    clock.advance(Duration::from_millis(1));
    let (request, line) = soon(node.request()).await;
    let tokens: BTreeSet<_> = extends(&request).iter().map(|extend| extend.token.get()).collect();
    assert_eq!(tokens, BTreeSet::from([1, 2, 3]));
    for extend in extends(&request) {
        assert_eq!(extend.lease_ms, 30_000);
        assert_eq!(extend.not_after_ms, Some(31_000), "it revives no lease that has expired");
    }
    answer_all(&request, &line, extended(41_000));
    for lease in &leases {
        until_left(lease, 27 * SECOND).await;
    }
    clock.advance(10 * SECOND);
    let (request, line) = soon(node.request()).await;
    assert_eq!(extends(&request).len(), 3, "they stay together");
    assert!(extends(&request).iter().all(|extend| extend.not_after_ms == Some(41_000)));
    answer_all(&request, &line, extended(51_000));
}

#[tokio::test]
async fn more_leases_than_fit_into_a_batch_take_several() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let mut leases = Vec::new();
    for number in 1..=300 {
        leases.push(held(&mut node, &client, &number.to_string(), number).await);
    }
    clock.advance(10 * SECOND);
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let (request, line) = soon(node.request()).await;
        seen.extend(extends(&request).iter().map(|extend| extend.token.get()));
        answer_all(&request, &line, extended(41_000));
    }
    assert_eq!(seen, (1..=300).collect());
}

#[tokio::test]
async fn what_decides_nothing_does_not_stop_heartbeats() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    clock.advance(10 * SECOND);
    let (_, line) = soon(node.request()).await;
    line.hang_up();
    for refusal in [
        Refusal::NoLeader,
        Refusal::OutcomeUnknown,
        Refusal::StorageFull,
        Refusal::NotLeader { leader: None },
        Refusal::ShuttingDown,
        Refusal::Internal { request_id: "r".to_owned() },
    ] {
        let (request, line) = request_in_time(&mut node, &clock).await;
        line.reply(&request, Err(refusal));
    }
    let (request, line) = request_in_time(&mut node, &clock).await;
    line.reply(&request, Ok(Reply::Batch(vec![Err(Refusal::NoLeader)])));
    let (request, line) = request_in_time(&mut node, &clock).await;
    assert_eq!(lease.is_lost(), None);
    answer_all(&request, &line, extended(50_000));
    until_left(&lease, 27 * SECOND).await;
}

#[tokio::test]
async fn a_node_that_asks_for_a_pause_gets_it() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    clock.advance(10 * SECOND);
    let (request, line) = soon(node.request()).await;
    let refusal = Refusal::Overloaded { reason: "requests".to_owned(), retry_after_ms: 4000 };
    line.reply(&request, Err(refusal));
    let before = lease.left();
    let (request, line) = request_in_time(&mut node, &clock).await;
    assert!(before - lease.left() >= 4 * SECOND, "{before:?}, then {:?}", lease.left());
    answer_all(&request, &line, extended(50_000));
}

#[tokio::test]
async fn the_deadline_counts_from_before_the_send_of_the_last_heartbeat_that_succeeded() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    assert_eq!(lease.left(), 27 * SECOND);
    clock.advance(10 * SECOND);
    let (request, line) = soon(node.request()).await;
    clock.advance(5 * SECOND);
    answer_all(&request, &line, extended(41_000));
    until_left(&lease, 22 * SECOND).await;
    clock.advance(5 * SECOND);
    let (_unanswered, _line) = soon(node.request()).await;
    clock.advance(17 * SECOND - Duration::from_millis(1));
    assert_eq!(lease.is_lost(), None);
    clock.advance(Duration::from_millis(1));
    assert_eq!(soon(lease.lost()).await, Lost::Expired);
    assert_eq!((lease.is_lost(), lease.left()), (Some(Lost::Expired), Duration::ZERO));
}

#[tokio::test]
async fn a_suspended_holder_has_lost_its_lease_when_it_wakes() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    let handle = lease.handle();
    clock.advance(3600 * SECOND);
    assert_eq!(handle.is_lost(), Some(Lost::Expired), "before any task has run");
    assert_eq!(soon(lease.lost()).await, Lost::Expired);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_heartbeat_that_succeeds_after_the_deadline_revives_nothing() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    clock.advance(10 * SECOND);
    let (request, line) = soon(node.request()).await;
    clock.advance(17 * SECOND);
    assert_eq!(soon(lease.lost()).await, Lost::Expired);
    answer_all(&request, &line, extended(41_000));
    assert_silent(&mut node, &client).await;
    assert_eq!(lease.left(), Duration::ZERO);
}

#[tokio::test]
async fn a_definite_loss_is_told_at_once_and_nothing_is_released() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    for (number, lost) in [
        (1, LeaseLost::Stolen { current_token: token(9) }),
        (2, LeaseLost::Absent),
        (3, LeaseLost::Completed { current_token: token(9) }),
    ] {
        let lease = held(&mut node, &client, "1", number).await;
        clock.advance(10 * SECOND);
        let (request, line) = soon(node.request()).await;
        answer_all(&request, &line, |_| Answer::LeaseLost(lost.clone()));
        assert_eq!(soon(lease.lost()).await, Lost::Taken(lost));
        drop(lease);
        clock.advance(60 * SECOND);
        assert_silent(&mut node, &client).await;
    }
}

#[tokio::test]
async fn a_record_that_was_lost_once_is_kept_when_it_is_held_again() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lost = held(&mut node, &client, "1", 1).await;
    clock.advance(10 * SECOND);
    // This one is never answered.
    soon(node.request()).await;
    clock.advance(20 * SECOND);
    assert_eq!(soon(lost.lost()).await, Lost::Expired);
    drop(lost);
    let lease = held(&mut node, &client, "1", 2).await;
    for beat in 1..=4 {
        clock.advance(10 * SECOND);
        let (request, line) = loop {
            let (request, line) = soon(node.request()).await;
            // What is left of the first lease may still be sent, and frees nothing.
            if matches!(&request.ask, Ask::Batch(_)) && extends(&request)[0].token == token(2) {
                break (request, line);
            }
        };
        answer_all(&request, &line, extended(31_000 + beat * 10_000));
        until_left(&lease, 27 * SECOND).await;
        assert_eq!(lease.is_lost(), None);
    }
}

#[tokio::test]
async fn a_heartbeat_that_finds_the_holders_own_completion_is_no_loss() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    let done = Completion { token: token(1), completed_ms: 1, expires_ms: 2 };
    let play = async {
        let (complete, line) = soon(node.request()).await;
        assert!(matches!(complete.ask, Ask::Command { command: Command::Complete(_), .. }));
        clock.advance(10 * SECOND);
        let (beat, beat_line) = soon(node.request()).await;
        let own = LeaseLost::Completed { current_token: token(1) };
        answer_all(&beat, &beat_line, |_| Answer::LeaseLost(own.clone()));
        assert_silent(&mut node, &client).await;
        assert_eq!(lease.is_lost(), None);
        line.answer(&complete, Answer::Completed(done.clone()));
    };
    let (completed, ()) = tokio::join!(lease.complete(None), play);
    assert_eq!(completed.unwrap(), done);
    drop(lease);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_dropped_lease_is_released_and_no_heartbeat_follows() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    drop(lease);
    let (request, line) = soon(node.request()).await;
    let Ask::Command { command: Command::Release(release), .. } = &request.ask else {
        panic!("no release: {request:?}")
    };
    assert_eq!(release.token, token(1));
    line.answer(&request, Answer::Released);
    clock.advance(3600 * SECOND);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn the_release_of_a_dropped_lease_follows_its_last_heartbeat() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    clock.advance(10 * SECOND);
    let (beat, line) = soon(node.request()).await;
    drop(lease);
    assert_silent(&mut node, &client).await;
    answer_all(&beat, &line, extended(41_000));
    let (request, line) = soon(node.request()).await;
    assert!(matches!(request.ask, Ask::Command { command: Command::Release(_), .. }));
    line.answer(&request, Answer::Released);
    clock.advance(3600 * SECOND);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_heartbeat_that_could_not_be_sent_yet_is_not_sent_after_a_drop() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let mut lease = held(&mut node, &client, "1", 1).await;
    lease.expire_on_drop();
    clock.advance(10 * SECOND);
    let (_, line) = soon(node.request()).await;
    // It fails, and the next one would come after a pause.
    line.hang_up();
    soon(node.hangup()).await;
    drop(lease);
    clock.advance(SECOND);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_lease_that_is_dropped_with_its_client_is_released_all_the_same() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let lease = held(&mut node, &client, "1", 1).await;
    drop((client, lease));
    let (request, line) = soon(node.request()).await;
    assert!(matches!(request.ask, Ask::Command { command: Command::Release(_), .. }));
    line.answer(&request, Answer::Released);
    soon(node.hangup()).await;
}

#[test]
fn a_lease_whose_runtime_ends_is_lost() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (nodes, holders) = (runtime(), runtime());
    let clock = ManualBootTime::default();
    let mut node = nodes.block_on(PlayedNode::start());
    let client = client(&node, &clock);
    let lease = holders.block_on(held(&mut node, &client, "1", 1));
    drop(holders);
    assert_eq!(lease.is_lost(), Some(Lost::Stopped));
    let again = runtime();
    let lease = again.block_on(held(&mut node, &client, "1", 2));
    clock.advance(10 * SECOND);
    let (beat, line) = nodes.block_on(node.request());
    answer_all(&beat, &line, extended(41_000));
    assert_eq!(lease.is_lost(), None, "another runtime, another task");
}

#[tokio::test]
async fn an_acquire_that_took_long_is_confirmed_before_it_counts() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let play = async {
        let (request, line) = soon(node.request()).await;
        clock.advance(20 * SECOND);
        line.answer(&request, acquired(1));
        let (request, line) = soon(node.request()).await;
        let Ask::Command { command: Command::Extend(extend), .. } = &request.ask else {
            panic!("not confirmed: {request:?}")
        };
        assert_eq!(extend.token, token(1));
        clock.advance(SECOND);
        line.answer(&request, extended(41_000)(token(1)));
    };
    let request = client.lease("mail", "1").wait(30 * SECOND);
    let (leased, ()) = tokio::join!(request.acquire(), play);
    let Leased::Held(lease) = leased.unwrap() else { panic!("it is held") };
    assert_eq!(lease.left(), 26 * SECOND, "counted from before the extend");
}

#[tokio::test]
async fn a_token_is_taken_up_by_a_heartbeat_that_succeeds() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let name = Name::new("mail", "1").unwrap();
    for answer in
        [extended(41_000)(token(7)), Answer::LeaseLost(LeaseLost::Absent), Answer::TooLate]
    {
        let play = async {
            let (request, line) = soon(node.request()).await;
            line.answer(&request, answer.clone());
        };
        let (adopted, ()) = tokio::join!(client.adopt(name.clone(), token(7), 30 * SECOND), play);
        match (answer, adopted) {
            (Answer::Extended { .. }, Ok(mut lease)) => {
                assert_eq!((lease.token(), lease.left()), (token(7), 27 * SECOND));
                lease.expire_on_drop();
            }
            (Answer::LeaseLost(_), Err(AdoptError::LeaseLost(LeaseLost::Absent)))
            | (Answer::TooLate, Err(AdoptError::Call(None))) => {}
            (answer, adopted) => panic!("{answer:?} made it {adopted:?}"),
        }
    }
}

#[tokio::test]
async fn an_acquire_ends_with_its_caller_where_cluster_time_is_known() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock).with_timeout(10 * SECOND);
    let not_after = |request: &Request| {
        let Ask::Command { command, .. } = &request.ask else { panic!("{request:?}") };
        command.not_after_ms()
    };
    let play = async {
        let (first, line) = soon(node.request()).await;
        assert_eq!(not_after(&first), None);
        line.answer(&first, acquired(1));
        let (second, line) = soon(node.request()).await;
        // 1000 ms at the send of the first, a wait and a timeout of 10 s each, the drift, a ms;
        // what is left of the wait is a little less than 10 s.
        let latest = 1000 + 20_000 + 40 + 1;
        assert!((latest - 500..=latest).contains(&not_after(&second).unwrap()), "{second:?}");
        line.answer(&second, Answer::TooLate);
        let (third, line) = soon(node.request()).await;
        assert_eq!((not_after(&third), attempt(&third)), (None, attempt(&second)));
        line.answer(&third, acquired(2));
    };
    let acquire = |key| client.lease("mail", key).wait(10 * SECOND).acquire();
    let both = async { (acquire("1").await.unwrap(), acquire("2").await.unwrap()) };
    let (_held, ()) = tokio::join!(both, play);
}

#[tokio::test]
async fn what_is_out_of_bounds_is_refused_before_anything_is_sent() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let good = || client.lease("mail", "1");
    for bad in [
        client.lease("ma:il", "1"),
        client.lease("mail", ""),
        good().lease(Duration::from_millis(1)),
        good().lease(Duration::from_micros(2500)),
        good().lease(Duration::MAX),
        good().ttl(Duration::ZERO),
        good().margin(16 * SECOND),
        good().holder("x".repeat(129)),
    ] {
        assert!(matches!(bad.acquire().await, Err(LeaseError::Invalid(_))));
    }
    let name = Name::new("mail", "1").unwrap();
    let adopted = client.adopt(name, token(1), Duration::MAX).await;
    assert!(matches!(adopted, Err(AdoptError::Invalid(_))));
    assert_silent(&mut node, &client).await;
    assert!(Client::builder().build().is_err(), "without endpoints");
    let long = Client::builder().endpoints(["a:1"]).holder("x".repeat(129)).build();
    assert!(long.is_err());
}
