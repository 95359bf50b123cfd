//! Logical calls of a client.

use std::time::Duration;

use tenure_api::Refusal;
use tenure_api::frame::{Ask, Consistency, Decided, Reply, ServerFrame};
use tenure_client::{
    Acquisition, CallError, Client, Config, Connection, DialError, Obstacle, Withdrawal,
    new_acquire, new_attempt,
};
use tenure_state_machine::{Answer, Command, Holder, LeaseLost, Name, Purge, Release, Token};
use tokio::time::Instant;

use crate::node::{AT, PlayedNode, Seen, acquired, attempt};

fn name() -> Name {
    Name::new("mail", "order-1").unwrap()
}

fn client(nodes: &[&PlayedNode]) -> Client {
    Client::new(Config::new(nodes.iter().map(|node| node.address.clone()).collect()))
}

fn in_progress() -> Answer {
    Answer::InProgress {
        retry_after_ms: 5,
        holder: Holder::default(),
        token: Token::new(3).unwrap(),
        fingerprint_differs: false,
    }
}

fn token_of(acquisition: &Acquisition) -> u64 {
    let Acquisition::Acquired { token, .. } = acquisition else {
        panic!("not acquired: {acquisition:?}")
    };
    token.get()
}

async fn acquire(client: &Client) -> Result<Acquisition, CallError> {
    client.acquire(new_acquire(name()), Duration::ZERO).await.map(|(acquisition, _)| acquisition)
}

#[test]
fn attempts_differ() {
    assert_ne!(new_attempt(), new_attempt());
    assert_eq!(new_attempt().as_str().len(), 36);
}

#[tokio::test]
async fn a_leader_that_is_named_beside_an_answer_is_followed() {
    let (mut follower, mut leader) = (PlayedNode::start().await, PlayedNode::start().await);
    let client = client(&[&follower]);
    let play = async {
        let (request, line) = follower.request().await;
        let reply = Ok(Reply::Answer(Decided { answer: acquired(1), at: AT }));
        line.send(&ServerFrame { id: request.id, leader: Some(leader.named()), reply });
    };
    let (first, ()) = tokio::join!(acquire(&client), play);
    assert_eq!(token_of(&first.unwrap()), 1);

    // The new connection stands once the follower sees the old one go.
    assert!(matches!(leader.next().await, Seen::Connected));
    follower.hangup().await;
    let play = async {
        let (request, line) = leader.request().await;
        line.answer(&request, acquired(2));
    };
    let (second, ()) = tokio::join!(acquire(&client), play);
    assert_eq!(token_of(&second.unwrap()), 2);
}

#[tokio::test]
async fn a_leader_that_is_named_in_a_refusal_is_asked_next() {
    let (mut follower, mut leader) = (PlayedNode::start().await, PlayedNode::start().await);
    let client = client(&[&follower]);
    let play = async {
        let (request, line) = follower.request().await;
        line.reply(&request, Err(Refusal::NotLeader { leader: Some(leader.named()) }));
        let (again, line) = leader.request().await;
        assert_eq!(attempt(&again), attempt(&request));
        line.answer(&again, acquired(4));
    };
    let (acquired, ()) = tokio::join!(acquire(&client), play);
    assert_eq!(token_of(&acquired.unwrap()), 4);
}

#[tokio::test]
async fn a_leader_that_cannot_be_dialled_does_not_stop_calls() {
    let (mut follower, mut gone) = (PlayedNode::start().await, PlayedNode::start().await);
    gone.stop_listening().await;
    let client = client(&[&follower]);
    for token in 1..4 {
        let play = async {
            let (request, line) = follower.request().await;
            let reply = Ok(Reply::Answer(Decided { answer: acquired(token), at: AT }));
            line.send(&ServerFrame { id: request.id, leader: Some(gone.named()), reply });
        };
        let (answer, ()) = tokio::join!(acquire(&client), play);
        assert_eq!(token_of(&answer.unwrap()), token);
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_passed_over() {
    let (mut down, mut up) = (PlayedNode::start().await, PlayedNode::start().await);
    down.stop_listening().await;
    let client = client(&[&down, &up]);
    let play = async {
        let (request, line) = up.request().await;
        line.answer(&request, acquired(1));
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    assert_eq!(token_of(&answer.unwrap()), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_sent_again_with_the_same_attempt() {
    let (mut one, mut two) = (PlayedNode::start().await, PlayedNode::start().await);
    let client = client(&[&one, &two]);
    let play = async {
        let (first, line) = one.request().await;
        line.hang_up();
        let (second, line) = two.request().await;
        assert_eq!(attempt(&second), attempt(&first));
        line.reply(&second, Err(Refusal::OutcomeUnknown));
        let (third, line) = one.request().await;
        assert_eq!(attempt(&third), attempt(&first));
        line.answer(&third, acquired(5));
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    assert_eq!(token_of(&answer.unwrap()), 5);
}

#[tokio::test]
async fn an_in_progress_after_an_unknown_outcome_stays_unknown() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let play = async {
        let (first, line) = node.request().await;
        line.reply(&first, Err(Refusal::OutcomeUnknown));
        let (second, line) = node.request().await;
        line.answer(&second, in_progress());
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    let Err(CallError::Unknown { seen: Some(seen), .. }) = answer else {
        panic!("settled: {answer:?}")
    };
    assert_eq!(seen.answer, in_progress());
}

#[tokio::test]
async fn a_release_that_is_sent_again_and_finds_nothing_has_released() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let release = Release { name: name(), token: Token::new(7).unwrap(), not_after_ms: None };
    let play = async {
        let (_, line) = node.request().await;
        line.hang_up();
        let (again, line) = node.request().await;
        line.answer(&again, Answer::LeaseLost(LeaseLost::Absent));
    };
    let (answer, ()) = tokio::join!(client.release(release), play);
    assert_eq!(answer.unwrap(), (Withdrawal::Released, AT));
}

#[tokio::test]
async fn a_refusal_is_not_sent_again() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let refusals = [
        Refusal::StorageFull,
        Refusal::PayloadTooLarge { limit: 1, size: 2 },
        Refusal::InvalidArgument { field: None, reason: "no".to_owned() },
    ];
    for refusal in refusals {
        let play = async {
            let (request, line) = node.request().await;
            line.reply(&request, Err(refusal.clone()));
        };
        let (answer, ()) = tokio::join!(acquire(&client), play);
        let Err(CallError::Refused(seen)) = answer else { panic!("not refused: {answer:?}") };
        assert_eq!(seen, refusal);
        assert!(node.seen_already().is_none());
    }
    let play = async {
        let (request, line) = node.request().await;
        line.answer(&request, in_progress());
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    assert!(matches!(answer.unwrap(), Acquisition::InProgress { retry_after_ms: 5, .. }));
    assert!(node.seen_already().is_none());
}

#[tokio::test]
async fn an_internal_error_leaves_a_command_unknown() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let play = async {
        let (request, line) = node.request().await;
        line.reply(&request, Err(Refusal::Internal { request_id: "r1".to_owned() }));
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    assert!(matches!(answer, Err(CallError::Unknown { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_purge_is_not_sent_again_after_an_unknown_outcome() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let play = async {
        let (_, line) = node.request().await;
        line.hang_up();
        node.hangup().await;
    };
    let purge = client.purge(Purge { limit: 10, not_after_ms: None });
    let (answer, ()) = tokio::join!(purge, play);
    assert!(matches!(answer, Err(CallError::Unknown { .. })), "{answer:?}");
    assert!(node.seen_already().is_none());
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_the_call_is_unavailable_at_its_deadline() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]).with_timeout(Duration::from_secs(3));
    let play = async {
        loop {
            let (request, line) = node.request().await;
            line.reply(&request, Err(Refusal::NoLeader));
        }
    };
    let began = Instant::now();
    let answer = tokio::select! {
        answer = acquire(&client) => answer,
        () = play => unreachable!(),
    };
    let Err(CallError::Unavailable { last: Obstacle::Refusal(refusal) }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(refusal, Refusal::NoLeader);
    let took = began.elapsed();
    assert!((2000..=3000).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_left_for_another_and_one_deadline_covers_all_sends() {
    let (mut silent, mut other) = (PlayedNode::start().await, PlayedNode::start().await);
    let client = client(&[&silent, &other]);
    let began = Instant::now();
    let play = async {
        let (first, _line) = silent.request().await;
        silent.hangup().await;
        let (second, line) = other.request().await;
        assert_eq!(attempt(&first), attempt(&second));
        line.answer(&second, acquired(6));
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    assert_eq!(token_of(&answer.unwrap()), 6);
    let took = began.elapsed();
    assert!((4000..5000).contains(&took.as_millis()), "{took:?}");

    // Now that one falls silent as well.
    let began = Instant::now();
    let answer = acquire(&client).await;
    assert!(matches!(answer, Err(CallError::Unknown { .. })), "{answer:?}");
    let took = began.elapsed();
    assert!((9000..=10_000).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_listening_is_unavailable_at_the_deadline() {
    let mut node = PlayedNode::start().await;
    node.stop_listening().await;
    let client = client(&[&node]).with_timeout(Duration::from_secs(2));
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { acquire(&client).await })
        })
        .collect();
    let began = Instant::now();
    for call in calls {
        let answer = call.await.unwrap();
        let Err(CallError::Unavailable { last: Obstacle::Dial(_) }) = answer else {
            panic!("{answer:?}")
        };
    }
    assert!(began.elapsed() <= Duration::from_secs(2));
    let nowhere = Client::new(Config::new(Vec::new())).with_timeout(Duration::from_secs(1));
    let answer = acquire(&nowhere).await;
    assert!(matches!(answer, Err(CallError::Unavailable { last: Obstacle::NoEndpoints })));
}

#[tokio::test(start_paused = true)]
async fn a_wait_goes_on_with_what_is_left_of_it() {
    let (mut one, mut two) = (PlayedNode::start().await, PlayedNode::start().await);
    let client = client(&[&one, &two]);
    let call = client.acquire(new_acquire(name()), Duration::from_secs(30));
    let wait = |ask: &Ask| {
        let Ask::Command { wait_ms, .. } = ask else { panic!("not a command: {ask:?}") };
        *wait_ms
    };
    let play = async {
        let (first, line) = one.request().await;
        assert!((29_900..=30_000).contains(&wait(&first.ask)));
        tokio::time::advance(Duration::from_secs(20)).await;
        line.hang_up();
        let (second, line) = two.request().await;
        assert!((9_000..=10_000).contains(&wait(&second.ask)), "{second:?}");
        line.answer(&second, acquired(8));
    };
    let (answer, ()) = tokio::join!(call, play);
    assert_eq!(token_of(&answer.unwrap().0), 8);
}

#[tokio::test]
async fn dropping_a_waiting_acquire_cancels_it() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let request = tokio::select! {
        _ = client.acquire(new_acquire(name()), Duration::from_secs(60)) => panic!("answered"),
        (request, _) = node.request() => request,
    };
    assert_eq!(node.cancel().await, request.id);
}

#[tokio::test]
async fn each_command_of_a_batch_settles_on_its_own() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let token = Token::new(7).unwrap();
    let commands = vec![
        Command::Acquire(new_acquire(name())),
        Command::Acquire(new_acquire(name())),
        Command::Release(Release { name: name(), token, not_after_ms: None }),
    ];
    let decided = |answer| Ok(Decided { answer, at: AT });
    let play = async {
        let (first, line) = node.request().await;
        line.reply(&first, Err(Refusal::OutcomeUnknown));
        let (second, line) = node.request().await;
        assert_eq!(second.ask, first.ask);
        let stolen = LeaseLost::Stolen { current_token: token };
        let answers = [acquired(9), in_progress(), Answer::LeaseLost(stolen)];
        line.reply(&second, Ok(Reply::Batch(answers.map(decided).into())));
    };
    let (answers, ()) = tokio::join!(client.batch(commands), play);
    let answers = answers.unwrap();
    assert_eq!(answers[0].as_ref().unwrap().answer, acquired(9));
    assert!(matches!(answers[1], Err(CallError::Unknown { .. })));
    assert_eq!(answers[2].as_ref().unwrap().answer, Answer::Released);
}

#[tokio::test]
async fn a_read_is_sent_again_and_never_unknown() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let play = async {
        let (_, line) = node.request().await;
        line.hang_up();
        let (again, line) = node.request().await;
        line.reply(&again, Ok(Reply::Record { view: None, at: AT }));
    };
    let name = name();
    let (answer, ()) = tokio::join!(client.get(&name, Consistency::Linearizable), play);
    assert_eq!(answer.unwrap(), (None, AT));

    let play = async {
        let (request, line) = node.request().await;
        line.reply(&request, Err(Refusal::Internal { request_id: "r".to_owned() }));
    };
    let (answer, ()) = tokio::join!(client.get(&name, Consistency::Linearizable), play);
    assert!(matches!(answer, Err(CallError::Refused(Refusal::Internal { .. }))));
}

#[tokio::test]
async fn an_answer_to_another_question_is_not_taken() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    for reply in [
        Reply::Record { view: None, at: AT },
        Reply::Answer(Decided { answer: Answer::Released, at: AT }),
    ] {
        let play = async {
            let (request, line) = node.request().await;
            line.reply(&request, Ok(reply));
        };
        let (answer, ()) = tokio::join!(acquire(&client), play);
        let Err(CallError::Unknown { last: Some(Obstacle::WrongAnswer), .. }) = answer else {
            panic!("{answer:?}")
        };
    }
}

#[tokio::test]
async fn nodes_of_another_cluster_are_refused() {
    let (mut ours, theirs) = (
        PlayedNode::start().await,
        PlayedNode::greeting(tenure_api::frame::Welcome::Accepted {
            protocol: tenure_api::frame::PROTOCOL,
            cluster_id: "c2".to_owned(),
            node_id: 2,
        })
        .await,
    );
    let client = client(&[&ours, &theirs]).with_timeout(Duration::from_secs(1));
    let play = async {
        let (request, line) = ours.request().await;
        line.answer(&request, acquired(1));
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    assert!(answer.is_ok());
    ours.stop_listening().await;
    let play = async {
        let (_, line) = ours.request().await;
        line.hang_up();
    };
    let (answer, ()) = tokio::join!(acquire(&client), play);
    let Err(CallError::Unknown { last: Some(Obstacle::Dial(error)), .. }) = answer else {
        panic!("{answer:?}")
    };
    // The last endpoint dialled may be either: one is down, the other a stranger.
    let fits = matches!(&*error, DialError::Cluster { found, .. } if found == "c2")
        || matches!(&*error, DialError::Connect { .. });
    assert!(fits, "{error:?}");
}

#[tokio::test]
async fn a_full_connection_is_followed_by_another_one() {
    let mut node = PlayedNode::start().await;
    let client = client(&[&node]);
    let count = tenure_api::frame::IN_FLIGHT + 10;
    let calls: Vec<_> = (0..count)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                client.acquire(new_acquire(name()), Duration::from_secs(60)).await
            })
        })
        .collect();
    let (mut connections, mut requests) = (0, Vec::new());
    while requests.len() < count {
        match node.next().await {
            Seen::Connected => connections += 1,
            Seen::Request(request, line) => requests.push((request, line)),
            Seen::Cancel(_) | Seen::Hangup => {}
        }
    }
    assert_eq!(connections, 2);
    for (request, line) in requests {
        line.answer(&request, acquired(1));
    }
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
}

#[test]
fn the_parts_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Client>();
    shared::<Connection>();
}
