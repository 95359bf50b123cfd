//! Waiters that have hung up must not be granted anything any more: a record would be held for a
//! lease by nobody.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::check::{Violations, answered};
use crate::door::HUNG_UP;
use crate::history::{Event, Op, Outcome};

/// For the leader to learn that a waiter is gone, over one hop, in nanoseconds.
const MARGIN: u64 = 1_000_000_000;

/// Grants to waiters that had hung up long before. A leader that cannot be told so, because it or
/// the node in between is cut off or stopped, may grant all the same: this is for runs without such
/// faults.
#[must_use]
pub fn never_granted(events: &[Event]) -> Violations {
    let mut gone: BTreeMap<&str, u64> = BTreeMap::new();
    for event in events {
        if let (Op::Acquire { mark, .. }, Outcome::Unknown(why)) = (&event.op, &event.outcome)
            && why == HUNG_UP
        {
            gone.insert(mark, event.ended);
        }
    }
    // Each was decided after its start, at that cluster time.
    let answers = answered(events);
    let mut starts: Vec<(u64, u64)> =
        answers.iter().map(|answer| (answer.event.started, answer.now_ms)).collect();
    starts.sort_unstable();
    let mut found = BTreeMap::new();
    for answer in &answers {
        for (mark, acquired_ms) in holders(answer.body) {
            let Some(ended) = gone.get(mark) else { continue };
            // Whoever asked after the margin, and was answered by an earlier state than the grant.
            let late = starts.iter().skip_while(|(started, _)| *started <= ended + MARGIN);
            if late.clone().any(|(_, now_ms)| *now_ms < acquired_ms) {
                let text = format!("{mark} had hung up, and was granted {}", answer.event.key);
                found.insert(mark.to_owned(), text);
            }
        }
    }
    found.into_values().collect()
}

/// Who an answer says holds or held the record, and since when.
fn holders(body: &Value) -> impl Iterator<Item = (&str, u64)> {
    [body, &body["took_over"]]
        .into_iter()
        .filter_map(|shown| Some((shown["holder"].as_str()?, shown["acquired_ms"].as_u64()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MS: u64 = 1_000_000;

    fn event(op: Op, started: u64, ended: u64, outcome: Outcome) -> Event {
        let key = "k".to_owned();
        Event { process: 0, key, op, started: started * MS, ended: ended * MS, outcome }
    }

    fn got(index: u64, now_ms: u64, started: u64, holder: &str, acquired_ms: u64) -> Event {
        let at = json!({ "index": index, "slot": null, "term": 1, "now_ms": now_ms });
        let body = json!({ "state": "in_progress", "holder": holder, "acquired_ms": acquired_ms,
            "at": at });
        event(Op::Get, started, started + 1, Outcome::Answered(body))
    }

    fn hung_up(at: u64) -> Event {
        let (attempt, mark) = ("a".to_owned(), "gone".to_owned());
        let op = Op::Acquire { attempt, mark, lease_ms: 9, ttl_ms: 9 };
        event(op, at - 1, at, Outcome::Unknown(HUNG_UP.to_owned()))
    }

    #[test]
    fn a_grant_long_after_the_hang_up_is_found() {
        let held = got(5, 7000, 2500, "other", 100);
        let granted = got(9, 8000, 3000, "gone", 7500);
        let found = never_granted(&[hung_up(1000), held, granted]);
        assert_eq!(found, ["gone had hung up, and was granted k"]);
    }

    #[test]
    fn a_grant_before_it_or_soon_after_it_is_none() {
        // Nobody was answered between the hang-up and the grant, or not after the margin.
        let granted = got(9, 8000, 3000, "gone", 7500);
        assert!(never_granted(&[hung_up(1000), granted.clone()]).is_empty());
        let soon = got(5, 7000, 1900, "other", 100);
        assert!(never_granted(&[hung_up(1000), soon, granted]).is_empty());
    }

    #[test]
    fn a_grant_to_somebody_else_is_none() {
        let held = got(5, 7000, 2500, "other", 100);
        let granted = got(9, 8000, 3000, "another", 7500);
        assert!(never_granted(&[hung_up(1000), held, granted]).is_empty());
    }
}
