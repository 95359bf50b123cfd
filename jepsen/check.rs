//! Checkers: pure functions of a history, each of which gives the violations that it finds.
//!
//! None of them knows the state machine's code; they rest on what the contract says of tokens,
//! leases, refusals and `at`.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::history::{Event, Op, Outcome};

/// A violation, for people.
pub type Violations = Vec<String>;

/// Where an answer was decided. A read comes after everything in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) index: u64,
    /// `u64::MAX` for a read.
    pub(crate) slot: u64,
}

impl Rank {
    pub(crate) fn is_read(self) -> bool {
        self.slot == u64::MAX
    }
}

/// An answered send.
pub(crate) struct Answered<'a> {
    pub(crate) event: &'a Event,
    pub(crate) body: &'a Value,
    pub(crate) rank: Rank,
    pub(crate) term: u64,
    pub(crate) now_ms: u64,
}

pub(crate) fn answered(events: &[Event]) -> Vec<Answered<'_>> {
    let decided = events.iter().filter_map(|event| {
        let Outcome::Answered(body) = &event.outcome else { return None };
        let at = &body["at"];
        let slot = at["slot"].as_u64().unwrap_or(u64::MAX);
        Some(Answered {
            event,
            body,
            rank: Rank { index: at["index"].as_u64()?, slot },
            term: at["term"].as_u64()?,
            now_ms: at["now_ms"].as_u64()?,
        })
    });
    decided.collect()
}

/// All acquisitions in the order of the log, resumed ones too.
fn acquired<'a>(answered: &'a [Answered<'a>]) -> Vec<&'a Answered<'a>> {
    let mut found: Vec<_> = answered.iter().filter(|a| a.body["outcome"] == "acquired").collect();
    found.sort_by_key(|a| a.rank);
    found
}

fn is_fresh(a: &Answered<'_>) -> bool {
    a.body["resumed"] == false
}

/// The text of a payload in an answer.
#[must_use]
pub fn payload_text(body: &Value) -> Option<String> {
    let bytes = STANDARD.decode(body["payload"]["body"].as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

/// Everything below, but for what needs a sink.
#[must_use]
pub fn all(events: &[Event]) -> Violations {
    let checks: [fn(&[Event]) -> Violations; 7] = [
        answers_have_a_place,
        one_log,
        real_time_is_the_order_of_the_log,
        tokens_grow,
        a_lease_is_not_stolen_early,
        a_refused_send_never_shows,
        one_result_per_key,
    ];
    checks.into_iter().flat_map(|check| check(events)).collect()
}

/// Every answer says where it was decided.
#[must_use]
pub fn answers_have_a_place(events: &[Event]) -> Violations {
    let count = answered(events).len();
    let said = |event: &&Event| matches!(event.outcome, Outcome::Answered(_));
    let all = events.iter().filter(said).count();
    if count == all { Vec::new() } else { vec![format!("{} answers without at", all - count)] }
}

/// Term and cluster time are functions of the log index, and never go back; a slot is one
/// command's.
#[must_use]
pub fn one_log(events: &[Event]) -> Violations {
    let mut answers = answered(events);
    answers.sort_by_key(|a| a.rank);
    let mut found = Vec::new();
    for pair in answers.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        if a.term > b.term || a.now_ms > b.now_ms {
            found.push(format!("time or term goes back: {:?} then {:?}", a.event, b.event));
        }
        if a.rank.index == b.rank.index && (a.term, a.now_ms) != (b.term, b.now_ms) {
            found.push(format!("two entries with one index: {:?}, {:?}", a.event, b.event));
        }
        if a.rank == b.rank && !a.rank.is_read() {
            found.push(format!("two answers from one slot: {:?}, {:?}", a.event, b.event));
        }
    }
    found
}

/// What was asked after something else was answered is decided after it.
#[must_use]
pub fn real_time_is_the_order_of_the_log(events: &[Event]) -> Violations {
    let answers = answered(events);
    let mut by_start: Vec<_> = answers.iter().collect();
    by_start.sort_by_key(|a| a.event.started);
    let mut by_end: Vec<_> = answers.iter().collect();
    by_end.sort_by_key(|a| a.event.ended);
    let mut ended = by_end.into_iter().peekable();
    let mut last: Option<&Answered<'_>> = None;
    let mut found = Vec::new();
    for b in by_start {
        while let Some(a) = ended.next_if(|a| a.event.ended < b.event.started) {
            if last.is_none_or(|last| last.rank < a.rank) {
                last = Some(a);
            }
        }
        let Some(a) = last else { continue };
        let follows = if b.rank.is_read() { b.rank.index >= a.rank.index } else { b.rank > a.rank };
        if !follows {
            found.push(format!("stale: {:?} was answered, then {:?}", a.event, b.event));
        }
    }
    found
}

/// Tokens strictly grow with the log, and each is one attempt's on one key.
#[must_use]
pub fn tokens_grow(events: &[Event]) -> Violations {
    let answers = answered(events);
    let mut found = Vec::new();
    let fresh: Vec<_> = acquired(&answers).into_iter().filter(|a| is_fresh(a)).collect();
    for pair in fresh.windows(2) {
        if pair[0].body["token"].as_u64() >= pair[1].body["token"].as_u64() {
            found.push(format!("tokens: {:?} then {:?}", pair[0].event, pair[1].event));
        }
    }
    let mut owners = BTreeMap::new();
    for a in answers.iter().filter(|a| a.body["outcome"] == "acquired") {
        let Op::Acquire { attempt, .. } = &a.event.op else { continue };
        let owner = (&a.event.key, attempt);
        let first = *owners.entry(a.body["token"].as_u64()).or_insert(owner);
        if first != owner {
            found.push(format!("one token for {first:?} and {owner:?}"));
        }
    }
    found
}

/// A record changes hands only by a steal after the lease's end, or by a release.
#[must_use]
pub fn a_lease_is_not_stolen_early(events: &[Event]) -> Violations {
    let answers = answered(events);
    let mut leases: BTreeMap<u64, Vec<(Rank, u64)>> = BTreeMap::new();
    for a in &answers {
        let (token, until) = (a.body["token"].as_u64(), a.body["lease_until_ms"].as_u64());
        if let (Some(token), Some(until), false) = (token, until, a.rank.is_read()) {
            leases.entry(token).or_default().push((a.rank, until));
        }
    }
    let may_have_released: BTreeSet<u64> = events
        .iter()
        .filter_map(|event| match (&event.op, &event.outcome) {
            (Op::Release { token }, Outcome::Answered(body)) if body["outcome"] == "released" => {
                Some(*token)
            }
            (Op::Release { token }, Outcome::Unknown(_)) => Some(*token),
            _ => None,
        })
        .collect();
    let mut found = Vec::new();
    let mut holders: BTreeMap<&str, u64> = BTreeMap::new();
    for a in acquired(&answers) {
        let Some(token) = a.body["token"].as_u64() else { continue };
        let before = holders.insert(&a.event.key, token);
        match a.body["took_over"]["token"].as_u64() {
            Some(stolen) => {
                for (rank, until) in leases.get(&stolen).into_iter().flatten() {
                    if *rank < a.rank && *until > a.now_ms {
                        found.push(format!("stolen before {until}: {:?}", a.event));
                    }
                }
            }
            None if is_fresh(a)
                && before.is_some_and(|token| !may_have_released.contains(&token)) =>
            {
                found.push(format!("two holders: token {before:?}, and {:?}", a.event));
            }
            None => {}
        }
    }
    found
}

/// A send that was refused changed nothing: no record ever carries its mark.
#[must_use]
pub fn a_refused_send_never_shows(events: &[Event]) -> Violations {
    let mut refused = BTreeSet::new();
    let mut shown = Vec::new();
    for event in events {
        let changed = match &event.outcome {
            Outcome::Refused(_) => false,
            Outcome::Unknown(_) => true,
            Outcome::Answered(body) => {
                let holders = [&body["holder"], &body["took_over"]["holder"]];
                shown.extend(holders.into_iter().filter_map(|h| h.as_str().map(str::to_owned)));
                shown.extend(payload_text(body));
                // A call that was resumed or replayed may have changed something by an earlier
                // send, which is not in the history when a client sends again by itself.
                body["code"].is_null()
            }
        };
        if let (Op::Acquire { mark, .. } | Op::Complete { mark, .. }, false) = (&event.op, changed)
        {
            refused.insert(mark.clone());
        }
    }
    shown.sort();
    shown.dedup();
    let lies = shown.into_iter().filter(|mark| refused.contains(mark));
    lies.map(|mark| format!("{mark} was refused, and took effect")).collect()
}

/// A completed key has one result, for ever, and one that was acknowledged is that one.
#[must_use]
pub fn one_result_per_key(events: &[Event]) -> Violations {
    let mut results: BTreeMap<&str, (u64, String, u64)> = BTreeMap::new();
    let mut found = Vec::new();
    let answers = answered(events);
    let mut completions = BTreeMap::new();
    for a in &answers {
        let Op::Complete { token, mark, .. } = &a.event.op else { continue };
        let outcome = &a.body["outcome"];
        if outcome == "completed" {
            results.insert(&a.event.key, (*token, mark.clone(), a.rank.index));
        }
        if outcome == "completed" || outcome == "already_complete" {
            completions.entry(a.event.key.as_str()).or_insert(a.rank);
        }
    }
    for a in &answers {
        let key = a.event.key.as_str();
        let replays = a.body["outcome"] == "replay" || a.body["state"] == "complete";
        if replays {
            let (Some(token), Some(text)) = (a.body["token"].as_u64(), payload_text(a.body)) else {
                found.push(format!("a result without a payload: {:?}", a.event));
                continue;
            };
            let first = results.entry(key).or_insert((token, text.clone(), a.rank.index));
            if (first.0, &first.1) != (token, &text) {
                found.push(format!("two results: {first:?} and {:?}", a.event));
            }
        } else if completions.get(key).is_some_and(|completed| *completed < a.rank) {
            let outcome = a.body["outcome"].as_str().unwrap_or_default();
            let reason = &a.body["reason"];
            let forgotten = outcome == "acquired"
                || a.body["state"] == "in_progress"
                || ["in_progress", "absent"].contains(&a.body["code"].as_str().unwrap_or_default())
                || reason == "absent"
                || reason == "stolen";
            if forgotten {
                found.push(format!("a completed record is forgotten: {:?}", a.event));
            }
        }
    }
    found
}

/// What a run must have seen to count.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Acknowledged completions.
    pub completions: usize,
    /// Duplicates that were handed a result.
    pub replays: usize,
    /// Expired leases taken over.
    pub steals: usize,
    /// Sends that ended unknown.
    pub unknown: usize,
    /// Sends that a node refused, or that could not be sent.
    pub refused: usize,
    /// Terms in which something was answered.
    pub terms: usize,
    /// Holders that learned that they had lost their lease.
    pub lost: usize,
}

/// Counts.
#[must_use]
pub fn seen(events: &[Event]) -> Seen {
    let answers = answered(events);
    let count = |outcome: &str| answers.iter().filter(|a| a.body["outcome"] == outcome).count();
    let of = |is: fn(&Outcome) -> bool| events.iter().filter(|event| is(&event.outcome)).count();
    Seen {
        completions: count("completed") + count("already_complete"),
        replays: count("replay"),
        steals: answers.iter().filter(|a| a.body["took_over"].is_object()).count(),
        unknown: of(|outcome| matches!(outcome, Outcome::Unknown(_))),
        refused: of(|outcome| matches!(outcome, Outcome::Refused(_))),
        terms: answers.iter().map(|a| a.term).collect::<BTreeSet<_>>().len(),
        lost: answers.iter().filter(|a| a.body["code"] == "lease_lost").count(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(index: u64, slot: Option<u64>) -> Value {
        json!({ "index": index, "slot": slot, "term": 1, "now_ms": 1000 + index * 10 })
    }

    fn event(times: (u64, u64), op: Op, body: Value) -> Event {
        let (started, ended) = times;
        let (key, outcome) = ("k".to_owned(), Outcome::Answered(body));
        Event { process: started, key, op, started, ended, outcome }
    }

    fn acquire(times: (u64, u64), mark: &str, body: Value) -> Event {
        let attempt = format!("attempt of {mark}");
        event(
            times,
            Op::Acquire { attempt, mark: mark.to_owned(), lease_ms: 50, ttl_ms: 1000 },
            body,
        )
    }

    fn granted(token: u64, index: u64, took_over: Option<u64>) -> Value {
        let took_over = took_over.map(|token| json!({ "token": token, "holder": "a" }));
        json!({ "outcome": "acquired", "token": token, "resumed": false, "took_over": took_over,
            "lease_until_ms": 1050 + index * 10, "at": at(index, Some(0)) })
    }

    fn replay(token: u64, text: &str, index: u64) -> Value {
        json!({ "outcome": "replay", "token": token, "payload": { "body": STANDARD.encode(text) },
            "at": at(index, None) })
    }

    fn complete(times: (u64, u64), token: u64, mark: &str, body: Value) -> Event {
        event(times, Op::Complete { token, mark: mark.to_owned(), ttl_ms: None }, body)
    }

    fn good() -> Vec<Event> {
        vec![
            acquire((0, 1), "a", granted(1, 1, None)),
            acquire((2, 3), "b", granted(2, 6, Some(1))),
            complete((4, 5), 2, "r", json!({ "outcome": "completed", "at": at(7, Some(0)) })),
            acquire((6, 7), "c", replay(2, "r", 7)),
        ]
    }

    #[test]
    fn a_good_history_passes() {
        assert_eq!(all(&good()), Violations::new());
        let seen = seen(&good());
        assert_eq!((seen.completions, seen.replays, seen.steals, seen.terms), (1, 1, 1, 1));
    }

    fn caught(check: fn(&[Event]) -> Violations, events: &[Event]) {
        assert_eq!(check(events).len(), 1, "{events:?}");
    }

    #[test]
    fn a_stale_read_is_caught() {
        let mut events = good();
        events.push(event((8, 9), Op::Get, json!({ "state": "complete", "at": at(6, None) })));
        caught(real_time_is_the_order_of_the_log, &events);
    }

    #[test]
    fn a_write_decided_before_an_earlier_read_is_caught() {
        let mut events = good();
        events.push(event((8, 9), Op::Release { token: 2 }, json!({ "at": at(7, Some(1)) })));
        caught(real_time_is_the_order_of_the_log, &events);
    }

    #[test]
    fn a_token_that_does_not_grow_is_caught() {
        let mut events = good();
        events[1].outcome = Outcome::Answered(granted(1, 6, Some(1)));
        assert!(!tokens_grow(&events).is_empty());
    }

    #[test]
    fn an_early_steal_is_caught() {
        let mut events = good();
        events[1].outcome = Outcome::Answered(granted(2, 2, Some(1)));
        caught(a_lease_is_not_stolen_early, &events);
    }

    #[test]
    fn a_second_holder_is_caught_and_one_after_a_release_is_not() {
        let mut events = good();
        events[1].outcome = Outcome::Answered(granted(2, 6, None));
        caught(a_lease_is_not_stolen_early, &events);
        let released = json!({ "outcome": "released", "at": at(2, Some(0)) });
        events.push(event((1, 2), Op::Release { token: 1 }, released));
        assert_eq!(a_lease_is_not_stolen_early(&events), Violations::new());
    }

    #[test]
    fn a_refused_send_that_took_effect_is_caught() {
        let mut events = good();
        events.push(complete((4, 5), 2, "r", Value::Null));
        events[4].outcome = Outcome::Refused("no_leader".to_owned());
        caught(a_refused_send_never_shows, &events);
        events[4].outcome = Outcome::Unknown("lost".to_owned());
        assert_eq!(a_refused_send_never_shows(&events), Violations::new());
    }

    #[test]
    fn a_holder_that_was_told_in_progress_and_holds_is_caught() {
        let mut events = good();
        let held = json!({ "code": "in_progress", "holder": "a", "at": at(2, None) });
        events.push(acquire((1, 2), "b2", held));
        let shows = json!({ "code": "in_progress", "holder": "b2", "at": at(6, None) });
        events.push(acquire((3, 4), "d", shows));
        caught(a_refused_send_never_shows, &events);
    }

    #[test]
    fn a_second_result_is_caught() {
        let mut events = good();
        events.push(acquire((8, 9), "d", replay(2, "other", 8)));
        caught(one_result_per_key, &events);
    }

    #[test]
    fn a_forgotten_completion_is_caught() {
        let mut events = good();
        events.push(acquire((8, 9), "d", granted(3, 8, None)));
        caught(one_result_per_key, &events);
    }

    #[test]
    fn two_commands_in_one_slot_are_caught() {
        let mut events = good();
        events.push(event(
            (2, 3),
            Op::Extend { token: 2, lease_ms: 50 },
            json!({ "at": at(6, Some(0)) }),
        ));
        caught(one_log, &events);
    }
}
