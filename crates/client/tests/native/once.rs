//! An action that is to run once, against nodes that answer what a test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_api::frame::{Ask, Request};
use tenure_client::{
    Codec, CompleteError, Done, LeaseError, Lost, ManualBootTime, OnceError, UNWRITTEN,
};
use tenure_state_machine::limits::BODY_BYTES;
use tenure_state_machine::{
    Answer, Command, Complete, Completion, Fingerprint, Holder, LeaseLost, Payload, Release, Replay,
};
use tokio::sync::oneshot;

use crate::lease::{SECOND, assert_silent, client, extends, soon, token};
use crate::node::{Line, PlayedNode, acquired, attempt};

fn done(number: u64) -> Answer {
    Answer::Completed(Completion { token: token(number), completed_ms: 1, expires_ms: 2 })
}

fn replay(payload: Option<Payload>) -> Answer {
    let payload = payload.map(Arc::new);
    Answer::Replay(Replay { token: token(3), payload, completed_ms: 1, expires_ms: 2 })
}

fn json(text: &str) -> Payload {
    let kind = Some("application/json".to_owned());
    Payload::new(kind, text.as_bytes().to_vec(), BTreeMap::new()).unwrap()
}

async fn grant(node: &mut PlayedNode, token: u64) {
    let (request, line) = soon(node.request()).await;
    attempt(&request);
    line.answer(&request, acquired(token));
}

async fn completion(node: &mut PlayedNode) -> (Request, Line, Complete) {
    let (request, line) = soon(node.request()).await;
    let Ask::Command { command: Command::Complete(complete), .. } = &request.ask else {
        panic!("no complete: {request:?}")
    };
    let complete = complete.clone();
    (request, line, complete)
}

async fn released(node: &mut PlayedNode) -> Release {
    let (request, line) = soon(node.request()).await;
    let Ask::Command { command: Command::Release(release), .. } = &request.ask else {
        panic!("no release: {request:?}")
    };
    line.answer(&request, Answer::Released);
    release.clone()
}

#[tokio::test]
async fn a_result_is_recorded_as_it_is_written_and_replayed_as_it_is_read() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    for (codec, kind) in
        [(Codec::Json, "application/json"), (Codec::Bincode, "application/octet-stream")]
    {
        let once = || client.once("mail", "order-1").codec(codec);
        let value = ("sent".to_owned(), 7_u64);
        let play = async {
            grant(&mut node, 5).await;
            let (request, line, complete) = completion(&mut node).await;
            line.answer(&request, done(5));
            complete
        };
        let run = once().run(|lease| async move {
            assert_eq!(lease.token(), token(5));
            Ok::<_, Infallible>(("sent".to_owned(), 7_u64))
        });
        let (ran, complete) = soon(async { tokio::join!(run, play) }).await;
        assert_eq!(ran.unwrap(), Done::Ran(value.clone()));
        let payload = complete.payload.unwrap();
        assert_eq!(payload.kind(), Some(kind));

        let play = async {
            let (request, line) = soon(node.request()).await;
            line.answer(&request, replay(Some((*payload).clone())));
        };
        let run = once().run(async |_| -> Result<(String, u64), Infallible> { unreachable!() });
        let (replayed, ()) = soon(async { tokio::join!(run, play) }).await;
        assert_eq!(replayed.unwrap(), Done::Replayed(value));
    }
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn bytes_and_payloads_are_kept_as_they_are() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let play = async {
        grant(&mut node, 5).await;
        let (request, line, complete) = completion(&mut node).await;
        line.answer(&request, done(5));
        assert_eq!(complete.payload.unwrap().body(), [0, 255]);
        grant(&mut node, 6).await;
        let (request, line, complete) = completion(&mut node).await;
        line.answer(&request, done(6));
        assert_eq!(complete.payload, None, "none is not empty");
    };
    let run = async {
        let bytes = client.once("mail", "1").run_bytes(async |_| Ok::<_, Infallible>(vec![0, 255]));
        assert_eq!(bytes.await.unwrap(), Done::Ran(vec![0, 255]));
        let none = client.once("mail", "2").run_payload(async |_| Ok::<_, Infallible>(None));
        assert_eq!(none.await.unwrap(), Done::Ran(None));
    };
    soon(async { tokio::join!(run, play) }).await;
}

#[tokio::test]
async fn an_action_that_fails_is_released_and_its_error_handed_on() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let play = async {
        grant(&mut node, 5).await;
        assert_eq!(released(&mut node).await.token, token(5));
    };
    let run = client.once("mail", "1").run(async |_| Err::<(), _>("no paper"));
    let (failed, ()) = soon(async { tokio::join!(run, play) }).await;
    assert!(matches!(failed, Err(OnceError::Action("no paper"))));
    clock.advance(3600 * SECOND);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_panic_goes_on_after_the_release() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let probe = client.clone();
    for early in [true, false] {
        let client = client.clone();
        let run = tokio::spawn(async move {
            let once = client.once("mail", "1");
            let run = once.run(|_| {
                assert!(!early, "at once");
                async { panic!("later") }
            });
            let _: Result<Done<()>, OnceError<(), Infallible>> = run.await;
        });
        grant(&mut node, 5).await;
        let (request, line) = soon(node.request()).await;
        assert!(matches!(request.ask, Ask::Command { command: Command::Release(_), .. }));
        assert_silent(&mut node, &probe).await;
        assert!(!run.is_finished(), "it waits for the release");
        line.answer(&request, Answer::Released);
        let panic = run.await.unwrap_err().into_panic();
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
        assert!(said.contains(if early { "at once" } else { "later" }), "{said}");
    }
}

#[tokio::test]
async fn a_definite_loss_drops_the_action_at_once() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let (alive, mut dropped) = oneshot::channel::<()>();
    let (begin, begun) = oneshot::channel::<()>();
    let lost = LeaseLost::Stolen { current_token: token(9) };
    let play = async {
        grant(&mut node, 5).await;
        begun.await.unwrap();
        clock.advance(10 * SECOND);
        let (request, line) = soon(node.request()).await;
        assert_eq!(extends(&request).len(), 1);
        let answer = Answer::LeaseLost(lost.clone());
        let decided = tenure_api::frame::Decided { answer, at: crate::node::AT };
        line.reply(&request, Ok(tenure_api::frame::Reply::Batch(vec![Ok(decided)])));
    };
    let run = client.once("mail", "1").run(|_| async move {
        let _alive = alive;
        begin.send(()).unwrap();
        std::future::pending::<Result<(), Infallible>>().await
    });
    let (stopped, ()) = soon(async { tokio::join!(run, play) }).await;
    let Err(OnceError::LeaseLost(Lost::Taken(found))) = stopped else { panic!("{stopped:?}") };
    assert_eq!(found, lost);
    assert!(matches!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
}

#[tokio::test]
async fn a_complete_without_an_answer_is_sent_again_and_nothing_is_released() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let play = async {
        grant(&mut node, 5).await;
        let (_, line, first) = completion(&mut node).await;
        line.hang_up();
        let (request, line, second) = completion(&mut node).await;
        assert_eq!(second, first);
        let done = Completion { token: token(5), completed_ms: 1, expires_ms: 2 };
        line.answer(&request, Answer::AlreadyComplete(done));
    };
    let run = client.once("mail", "1").run(async |_| Ok::<_, Infallible>(7));
    let (ran, ()) = soon(async { tokio::join!(run, play) }).await;
    assert_eq!(ran.unwrap(), Done::Ran(7));
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_result_that_cannot_be_recorded_in_time_is_handed_back_and_not_released() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let play = async {
        grant(&mut node, 5).await;
        completion(&mut node).await
    };
    let once = client.once("mail", "1").record_within(Duration::from_millis(60));
    let (ran, _) = tokio::join!(once.run(async |_| Ok::<_, Infallible>(7)), play);
    let Err(OnceError::NotRecorded { value: 7, lease, source: CompleteError::Call(_) }) = ran
    else {
        panic!("{ran:?}")
    };
    assert_eq!(lease.is_lost(), None, "it may be tried again");
    let play = async {
        let (request, line, _) = completion(&mut node).await;
        line.answer(&request, done(5));
    };
    let (completed, ()) = tokio::join!(lease.complete(None), play);
    completed.unwrap();

    let play = async {
        grant(&mut node, 6).await;
        let (request, line, _) = completion(&mut node).await;
        line.answer(&request, Answer::LeaseLost(LeaseLost::Absent));
    };
    let (ran, ()) =
        tokio::join!(client.once("mail", "1").run(async |_| Ok::<_, Infallible>(7)), play);
    assert!(
        matches!(&ran, Err(OnceError::NotRecorded { source: CompleteError::LeaseLost(_), .. })),
        "{ran:?}"
    );
    assert_eq!(ran.unwrap_err().into_value(), Some(7));
    clock.advance(3600 * SECOND);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_result_goes_on_to_be_recorded_when_nobody_waits_for_it_any_more() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let background = client.clone();
    let run = tokio::spawn(async move {
        background.once("mail", "1").run(async |_| Ok::<_, Infallible>(7)).await.unwrap()
    });
    grant(&mut node, 5).await;
    let (_, line, _) = completion(&mut node).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    line.hang_up();
    let (request, line, complete) = completion(&mut node).await;
    assert_eq!(complete.payload.unwrap().body(), b"7");
    line.answer(&request, done(5));
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_dropped_call_releases_what_it_holds() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let background = client.clone();
    let (begin, begun) = oneshot::channel::<()>();
    let run = tokio::spawn(async move {
        let never = |_| {
            begin.send(()).unwrap();
            std::future::pending::<Result<(), Infallible>>()
        };
        background.once("mail", "1").run(never).await.unwrap()
    });
    grant(&mut node, 5).await;
    begun.await.unwrap();
    clock.advance(10 * SECOND);
    let (beat, line) = soon(node.request()).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    line.reply(&beat, Err(tenure_api::Refusal::NoLeader));
    assert_eq!(released(&mut node).await.token, token(5));
    clock.advance(3600 * SECOND);
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn a_result_over_the_limit_keeps_the_lease_for_a_smaller_one() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let big = || "x".repeat(BODY_BYTES);
    let run = client.once("mail", "1").run(|_| async { Ok::<_, Infallible>(big()) });
    let (ran, ()) = tokio::join!(run, grant(&mut node, 5));
    let Err(OnceError::TooLarge { value, lease, limit: BODY_BYTES, size }) = ran else {
        panic!("{ran:?}")
    };
    assert_eq!((value.len(), size), (BODY_BYTES, BODY_BYTES + 2), "with its quotes");
    clock.advance(10 * SECOND);
    let (beat, _) = soon(node.request()).await;
    assert_eq!(extends(&beat)[0].token, token(5), "heartbeats go on");
    let small = Some(Arc::new(json("\"x\"")));
    let play = async {
        let (request, line, complete) = completion(&mut node).await;
        line.answer(&request, done(5));
        complete.payload
    };
    let (completed, stored) = tokio::join!(lease.complete(small.clone()), play);
    completed.unwrap();
    assert_eq!(stored, small);
}

#[tokio::test]
async fn a_result_that_cannot_be_written_completes_the_record_without_it() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    // JSON has no such keys.
    let value = || BTreeMap::from([((1_u8, 2_u8), 3_u8)]);
    let play = async {
        grant(&mut node, 5).await;
        let (request, line, complete) = completion(&mut node).await;
        line.answer(&request, done(5));
        complete.payload.unwrap()
    };
    let run = client.once("mail", "1").run(|_| async { Ok::<_, Infallible>(value()) });
    let (ran, stored) = soon(async { tokio::join!(run, play) }).await;
    let Err(OnceError::Unwritten { value: found, .. }) = ran else { panic!("{ran:?}") };
    assert_eq!(found, value());
    assert!(stored.attributes()[UNWRITTEN].contains("key must be a string"), "{stored:?}");

    let play = async {
        let (request, line) = soon(node.request()).await;
        line.answer(&request, replay(Some((*stored).clone())));
        let (request, line) = soon(node.request()).await;
        line.answer(&request, replay(Some(json("\"text\""))));
        let (request, line) = soon(node.request()).await;
        line.answer(&request, replay(None));
    };
    let run = async {
        for is_readable in [false, true, false] {
            let run = client.once("mail", "1").run(async |_| Ok::<u8, Infallible>(1));
            let Err(OnceError::Unreadable { source, .. }) = run.await else { panic!("it ran") };
            assert_eq!(source.is_some(), is_readable);
        }
    };
    soon(async { tokio::join!(run, play) }).await;
}

#[tokio::test]
async fn calls_of_one_client_at_once_make_one_acquire() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let runs = AtomicUsize::new(0);
    let once = || {
        client.clone().once("mail", "1").run(async |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(7)
        })
    };
    let play = async {
        grant(&mut node, 5).await;
        let (request, line, _) = completion(&mut node).await;
        line.answer(&request, done(5));
    };
    let (ran, ()) = tokio::join!(join_all((0..50).map(|_| once())), play);
    let ran: Vec<Done<u8>> = ran.into_iter().map(Result::unwrap).collect();
    assert_eq!(ran.iter().filter(|done| done.is_ran()).count(), 1);
    assert!(ran.iter().all(|done| done.into_inner() == 7));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_silent(&mut node, &client).await;

    // Later ones ask the cluster: the record may have expired.
    let play = async {
        let (request, line) = soon(node.request()).await;
        line.answer(&request, replay(Some(json("8"))));
    };
    let (ran, ()) = tokio::join!(join_all((0..50).map(|_| once())), play);
    assert!(ran.into_iter().all(|done| matches!(done, Ok(Done::Replayed(8)))));
}

#[tokio::test]
async fn when_one_of_the_calls_fails_the_next_one_tries() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let tries = AtomicUsize::new(0);
    let once = || {
        client.clone().once("mail", "1").run(async |_| {
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 => Err("no paper"),
                _ => Ok(7),
            }
        })
    };
    let play = async {
        grant(&mut node, 5).await;
        released(&mut node).await;
        grant(&mut node, 6).await;
        let (request, line, _) = completion(&mut node).await;
        line.answer(&request, done(6));
    };
    let (ran, ()) = tokio::join!(join_all((0..10).map(|_| once())), play);
    let failed = ran.iter().filter(|ran| matches!(ran, Err(OnceError::Action(_)))).count();
    let replayed = ran.iter().filter(|ran| matches!(ran, Ok(Done::Replayed(7)))).count();
    assert_eq!((failed, replayed, tries.load(Ordering::Relaxed)), (1, 8, 2));
    assert_silent(&mut node, &client).await;
}

#[tokio::test]
async fn calls_with_other_fingerprints_are_for_the_cluster_to_judge() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let print = |digit: &str| Fingerprint::new(digit.repeat(16)).unwrap();
    let once = |digit| {
        let once = client.once("mail", "1").fingerprint(print(digit));
        once.run(|_| async { Ok::<u8, Infallible>(7) })
    };
    let play = async {
        let (first, line) = soon(node.request()).await;
        let (second, other_line) = soon(node.request()).await;
        let (stored, received) = (print("a"), print("b"));
        line.answer(&first, replay(Some(json("7"))));
        other_line.answer(&second, Answer::FingerprintMismatch { stored, received });
    };
    let (first, second, ()) = tokio::join!(once("a"), once("b"), play);
    assert!(matches!(first, Ok(Done::Replayed(7))));
    assert!(matches!(second, Err(OnceError::Lease(LeaseError::FingerprintMismatch { .. }))));
}

#[tokio::test]
async fn a_call_that_may_not_wait_for_another_one_asks_the_cluster() {
    let (mut node, clock) = (PlayedNode::start().await, ManualBootTime::default());
    let client = client(&node, &clock);
    let (go, gone) = oneshot::channel::<()>();
    let slow = client.once("mail", "1").run(|_| async {
        gone.await.unwrap();
        Ok::<_, Infallible>(7)
    });
    let play = async {
        grant(&mut node, 5).await;
        let hasty = client.once("mail", "1").wait(Duration::ZERO);
        let ask = async {
            let (request, line) = soon(node.request()).await;
            let (holder, token) = (Holder::default(), token(5));
            let fingerprint_differs = false;
            let retry_after_ms = 30_000;
            let answer = Answer::InProgress { retry_after_ms, holder, token, fingerprint_differs };
            line.answer(&request, answer);
        };
        let (refused, ()) = tokio::join!(hasty.run(async |_| Ok::<_, Infallible>(8)), ask);
        assert!(matches!(refused, Err(OnceError::Lease(LeaseError::InProgress { .. }))));
        go.send(()).unwrap();
        let (request, line, _) = completion(&mut node).await;
        line.answer(&request, done(5));
    };
    let (ran, ()) = tokio::join!(slow, play);
    assert_eq!(ran.unwrap(), Done::Ran(7));
}
