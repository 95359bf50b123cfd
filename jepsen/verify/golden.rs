//! Golden histories of one key, good and bad. Each bad one is found by both checkers, or by the
//! one that can see it, and is called what it is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Judgement, Kind, judge, replay, search};
use crate::history::{Event, Op, Outcome};

const LEASE: u64 = 50;
const TTL: u64 = 500;

/// Index i is at cluster time 1000 + 10 i.
fn now(index: u64) -> u64 {
    1000 + 10 * index
}

fn event(times: (u64, u64), op: Op, outcome: Outcome) -> Event {
    let (started, ended) = times;
    Event { process: started, key: "k".to_owned(), op, started, ended, outcome }
}

fn said(index: u64, slot: Option<u64>, mut body: Value) -> Outcome {
    body["at"] = json!({ "index": index, "slot": slot, "term": 1, "now_ms": now(index) });
    Outcome::Answered(body)
}

fn refusal(code: &str, status: u64, more: Value) -> Value {
    let mut body = json!({ "code": code, "status": status, "outcome": "refused",
        "retryable": code == "in_progress" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn acquire(mark: &str) -> Op {
    again(mark, mark)
}

/// The attempt of another send, once more.
fn again(mark: &str, attempt: &str) -> Op {
    Op::Acquire {
        attempt: format!("attempt of {attempt}"),
        mark: mark.to_owned(),
        lease_ms: LEASE,
        ttl_ms: TTL,
    }
}

/// Granted at an index; whom it was stolen from: token, holder, index of its own grant.
fn granted(token: u64, index: u64, stolen: Option<(u64, &str, u64)>) -> Outcome {
    let took_over = stolen.map(|(token, holder, index)| {
        json!({ "token": token, "holder": holder, "acquired_ms": now(index) })
    });
    let body = json!({ "outcome": "acquired", "token": token, "resumed": false,
        "lease_until_ms": now(index) + LEASE, "ttl_until_ms": now(index) + TTL,
        "took_over": took_over });
    said(index, Some(0), body)
}

fn complete(token: u64, mark: &str) -> Op {
    Op::Complete { token, mark: mark.to_owned(), ttl_ms: None }
}

fn times(token: u64, completed: u64) -> Value {
    json!({ "token": token, "completed_ms": now(completed), "expires_ms": now(completed) + TTL })
}

fn completed(token: u64, index: u64) -> Outcome {
    let mut body = times(token, index);
    body["outcome"] = "completed".into();
    said(index, Some(0), body)
}

fn payload(text: &str) -> Value {
    json!({ "type": null, "body": STANDARD.encode(text), "attributes": {} })
}

fn replayed(token: u64, text: &str, completed: u64, index: u64) -> Outcome {
    let mut body = times(token, completed);
    body["outcome"] = "replay".into();
    body["payload"] = payload(text);
    said(index, None, body)
}

fn extended(token: u64, index: u64) -> Outcome {
    let until = now(index) + LEASE;
    let body = json!({ "outcome": "extended", "token": token, "lease_until_ms": until });
    said(index, Some(0), body)
}

fn extend(token: u64) -> Op {
    Op::Extend { token, lease_ms: LEASE }
}

fn released(index: u64) -> Outcome {
    said(index, Some(0), json!({ "outcome": "released" }))
}

fn absent(index: u64) -> Outcome {
    said(index, None, refusal("absent", 404, json!({})))
}

/// What a read at `index` shows of a grant at `granted`.
fn held(token: u64, holder: &str, granted: u64, index: u64) -> Outcome {
    let until = now(granted) + LEASE;
    let body = json!({ "state": "in_progress", "token": token, "holder": holder,
        "acquired_ms": now(granted), "lease_until_ms": until,
        "lease_left_ms": until.saturating_sub(now(index)), "ttl_until_ms": now(granted) + TTL,
        "fingerprint": null });
    said(index, None, body)
}

fn in_progress(token: u64, holder: &str, granted: u64, index: u64) -> Outcome {
    let left = now(granted) + LEASE - now(index);
    let more = json!({ "retry_after_ms": left, "holder": holder, "token": token,
        "fingerprint_differs": false });
    said(index, None, refusal("in_progress", 409, more))
}

fn lease_lost(reason: &str, current: u64, index: u64) -> Outcome {
    let more = json!({ "reason": reason, "current_token": current });
    said(index, Some(0), refusal("lease_lost", 412, more))
}

fn stolen(current: u64, index: u64) -> Outcome {
    lease_lost("stolen", current, index)
}

fn lost() -> Outcome {
    Outcome::Unknown("the connection broke".to_owned())
}

/// A grant, a steal, its completion and a replay, with what the first holder learns.
fn good() -> Vec<Event> {
    vec![
        event((0, 1), acquire("a"), granted(1, 1, None)),
        event((2, 3), acquire("b"), in_progress(1, "a", 1, 2)),
        event((4, 5), acquire("b2"), granted(2, 6, Some((1, "a", 1)))),
        event((6, 7), complete(1, "late"), stolen(2, 7)),
        event((8, 9), Op::Get, held(2, "b2", 6, 7)),
        event((10, 11), complete(2, "r"), completed(2, 8)),
        event((12, 13), acquire("c"), replayed(2, "r", 8, 8)),
        event((14, 15), acquire("d"), granted(3, 60, None)),
    ]
}

#[track_caller]
fn passes(events: &[Event]) {
    assert_eq!(judge(events), Judgement::default());
}

#[track_caller]
fn finds(judgement: &Judgement, kind: Kind) {
    let kinds: Vec<Kind> = judgement.violations.iter().map(|found| found.kind).collect();
    assert!(kinds.contains(&kind), "{kind:?} is not in {:#?}", judgement.violations);
}

/// Both checkers find it.
#[track_caller]
fn both_find(events: &[Event], kind: Kind) {
    finds(&replay::replay(events), kind);
    finds(&search::search(events), kind);
}

#[test]
fn a_good_history_passes() {
    passes(&good());
}

#[test]
fn sends_that_overlap_may_take_effect_in_either_order() {
    passes(&[
        event((0, 9), acquire("a"), granted(1, 1, None)),
        event((0, 5), Op::Get, absent(0)),
        event((0, 4), Op::Get, held(1, "a", 1, 1)),
    ]);
}

#[test]
fn an_unknown_send_may_have_happened_or_not() {
    let mut events = vec![event((0, 1), acquire("a"), lost())];
    passes(&events);
    events.push(event((2, 3), Op::Get, held(7, "a", 1, 3)));
    passes(&events);
    events.push(event((4, 5), complete(7, "r"), lost()));
    events.push(event((6, 7), extend(7), extended(7, 5)));
    passes(&events);
    events.push(event((8, 9), acquire("b"), replayed(7, "r", 9, 10)));
    passes(&events);
    events.pop();
    events.push(event((8, 9), acquire("b"), granted(9, 30, Some((7, "a", 1)))));
    passes(&events);
    events.pop();
    let shows = Outcome::Answered(json!({ "outcome": "acquired", "token": 8, "resumed": false,
        "lease_until_ms": now(6) + LEASE, "ttl_until_ms": now(6) + TTL, "took_over": null,
        "at": { "index": 6, "slot": 0, "term": 1, "now_ms": now(6) } }));
    events.push(event((8, 9), acquire("b"), shows));
    both_find(&events, Kind::DoubleGrant);
}

#[test]
fn an_attempt_that_was_released_may_be_granted_again_unseen() {
    passes(&[
        event((0, 1), acquire("a"), granted(1, 1, None)),
        event((2, 3), Op::Release { token: 1 }, released(2)),
        event((4, 5), acquire("a"), lost()),
        event((6, 7), complete(1, "late"), stolen(2, 3)),
    ]);
}

#[test]
fn an_attempt_that_was_stolen_from_unseen_is_granted_again_and_does_not_resume() {
    let with = |token| {
        [
            event((0, 1), acquire("a"), granted(1, 1, None)),
            event((2, 9), acquire("b"), lost()),
            event((3, 10), again("a2", "a"), lost()),
            event((5, 6), Op::Get, held(token, "a2", 20, 21)),
        ]
    };
    passes(&with(3));
    // The one in between had a token, too.
    finds(&replay::replay(&with(2)), Kind::StaleRead);
}

#[test]
fn an_unknown_grant_lasts_until_an_unknown_resumption() {
    let with = |resumed| {
        [
            event((0, 1), Op::Get, absent(1)),
            event((2, 50), acquire("a"), lost()),
            event((3, 4), complete(9, "late"), stolen(1, 21)),
            event((5, 51), again("a2", "a"), lost()),
            event((6, 7), acquire("c"), in_progress(1, "a", resumed, resumed + 1)),
        ]
    };
    // Granted before index 21, it is kept until before index 71.
    passes(&with(70));
    finds(&replay::replay(&with(71)), Kind::StaleRead);
}

#[test]
fn an_unknown_grant_is_as_old_as_its_steal_and_its_end_allow() {
    let with = |seen, gone| {
        [
            event((0, 1), acquire("a"), granted(1, 1, None)),
            event((2, 3), Op::Get, held(1, "a", 1, 2)),
            event((4, 9), acquire("b"), lost()),
            event((5, 6), complete(1, "late"), stolen(2, seen)),
            event((7, 8), Op::Get, absent(gone)),
        ]
    };
    // The lease of the first runs until index 6, and fifty later the second is gone.
    passes(&with(20, 56));
    finds(&replay::replay(&with(20, 55)), Kind::LostGrant);
    // It is there at index 70, and so was granted after index 20: no answer shows when.
    passes(&with(70, 75));
}

#[test]
fn an_unknown_result_is_kept_for_the_time_that_its_record_has() {
    let with = |index| {
        [
            event((0, 1), acquire("a"), granted(1, 1, None)),
            event((2, 9), complete(1, "r"), lost()),
            event((3, 4), Op::Release { token: 1 }, lease_lost("completed", 1, 52)),
            event((5, 6), Op::Get, absent(index)),
        ]
    };
    // It was complete after index 2.
    passes(&with(54));
    both_find(&with(52), Kind::LostComplete);
}

#[test]
fn an_unknown_send_does_not_happen_before_it_is_sent() {
    let events = [
        event((0, 1), acquire("a"), granted(1, 1, None)),
        event((2, 3), Op::Get, absent(2)),
        event((4, 5), Op::Release { token: 1 }, lost()),
    ];
    both_find(&events, Kind::LostGrant);
}

#[test]
fn an_unknown_heartbeat_stretches_a_lease_or_does_not() {
    let with = |index, stolen| {
        vec![
            event((0, 1), acquire("a"), granted(1, 1, None)),
            event((2, 3), extend(1), lost()),
            event((4, 5), acquire("b"), granted(2, index, stolen)),
        ]
    };
    passes(&with(6, Some((1, "a", 1))));
    passes(&with(30, Some((1, "a", 1))));
    both_find(&with(5, Some((1, "a", 1))), Kind::EarlySteal);
    let mut seen = with(11, Some((1, "a", 1)));
    seen.insert(2, event((3, 4), extend(1), extended(1, 8)));
    both_find(&seen, Kind::EarlySteal);
}

#[test]
fn a_stale_read_is_one() {
    let mut events = good();
    events.push(event((18, 19), Op::Get, held(1, "a", 1, 5)));
    both_find(&events, Kind::StaleRead);
}

#[test]
fn a_stale_read_that_claims_to_be_fresh_is_one() {
    let mut events = good();
    events[4] = event((8, 9), Op::Get, held(1, "a", 1, 7));
    both_find(&events, Kind::StaleRead);
}

#[test]
fn a_double_grant_is_one() {
    let mut events = good();
    events.truncate(2);
    events.push(event((4, 5), acquire("b2"), granted(2, 3, None)));
    both_find(&events, Kind::DoubleGrant);
}

#[test]
fn an_early_steal_is_one() {
    let mut events = good();
    events.truncate(2);
    events.push(event((4, 5), acquire("b2"), granted(2, 5, Some((1, "a", 1)))));
    both_find(&events, Kind::EarlySteal);
}

#[test]
fn a_heartbeat_that_a_steal_ignores_makes_it_early() {
    let mut events = good();
    events.truncate(2);
    events.push(event((4, 5), extend(1), extended(1, 4)));
    events.push(event((6, 7), acquire("b2"), granted(2, 6, Some((1, "a", 1)))));
    both_find(&events, Kind::EarlySteal);
}

#[test]
fn a_lost_completion_is_one() {
    let mut events = good();
    events[6] = event((12, 13), acquire("c"), granted(3, 9, None));
    events.pop();
    both_find(&events, Kind::LostComplete);
    events[6] = event((12, 13), Op::Get, absent(9));
    both_find(&events, Kind::LostComplete);
    events[6] = event((12, 13), acquire("c"), replayed(2, "another", 8, 8));
    both_find(&events, Kind::WrongAnswer);
}

#[test]
fn a_lost_grant_is_one() {
    let mut events = good();
    events[1] = event((2, 3), Op::Get, absent(2));
    events.truncate(2);
    both_find(&events, Kind::LostGrant);
}

#[test]
fn a_token_that_was_given_before_is_reuse() {
    let mut events = good();
    events[7] = event((14, 15), acquire("d"), granted(2, 60, None));
    finds(&search::search(&events), Kind::TokenReuse);
    finds(&judge(&events), Kind::TokenReuse);
}

#[test]
fn a_late_write_is_one() {
    for write in [
        event((6, 7), complete(1, "late"), completed(1, 7)),
        event((6, 7), extend(1), extended(1, 7)),
        event((6, 7), Op::Release { token: 1 }, released(7)),
    ] {
        let mut events = good();
        events.truncate(3);
        events.push(write);
        both_find(&events, Kind::LateWrite);
    }
}

#[test]
fn a_refused_send_that_shows_was_no_refusal() {
    let refused = || Outcome::Refused("no_leader".to_owned());
    let mut events =
        vec![event((0, 1), acquire("a"), refused()), event((2, 3), Op::Get, held(1, "a", 1, 2))];
    both_find(&events, Kind::RefusedCommitted);
    events[0].outcome = lost();
    passes(&events);
    let mut events = good();
    events[5].outcome = refused();
    events.truncate(7);
    both_find(&events, Kind::RefusedCommitted);
}

#[test]
fn a_release_that_is_undone_is_resurrected() {
    let mut events = vec![
        event((0, 1), acquire("a"), granted(1, 1, None)),
        event((2, 3), Op::Release { token: 1 }, released(2)),
        event((4, 5), Op::Get, held(1, "a", 1, 3)),
    ];
    both_find(&events, Kind::ResurrectedRelease);
    events[1].outcome = lost();
    passes(&events);
}

#[test]
fn a_record_past_its_ttl_is_absent_and_no_longer_done() {
    let mut events = good();
    events[7] = event((14, 15), acquire("d"), replayed(2, "r", 8, 60));
    both_find(&events, Kind::WrongAnswer);
}

#[test]
fn a_counterexample_is_minimal_and_ends_with_what_cannot_be() {
    let mut events = good();
    events.truncate(5);
    events.push(event((10, 11), acquire("c"), granted(3, 8, None)));
    events.push(event((12, 13), Op::Get, held(3, "c", 8, 9)));
    let found = search::search(&events).violations.remove(0);
    let marks: Vec<_> = found.witnesses.iter().map(|event| event.op.mark()).collect();
    assert_eq!(marks, [Some("a"), Some("b2"), Some("c")]);
}

#[test]
fn a_key_with_too_many_unknown_sends_is_not_judged() {
    let unknown = |n| event((n, n + 1), acquire(&format!("u{n}")), lost());
    let events: Vec<Event> = (0..70).map(unknown).collect();
    let judgement = judge(&events);
    assert_eq!((judgement.violations.len(), judgement.undecided.len()), (0, 2));
}
