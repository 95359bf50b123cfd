//! What a run must have seen to count. A run below a floor is *not tested*, which is no pass.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::check::answered;
use crate::door::HUNG_UP;
use crate::history::{Event, Op, Outcome};

/// What was seen.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    /// How often.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds what somebody else has counted.
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!(self.0)
    }

    /// The floors that were not reached, for people.
    #[must_use]
    pub fn below(&self, floors: &[(&'static str, u64)]) -> Vec<String> {
        let below = floors.iter().filter(|(what, floor)| self.of(what) < *floor);
        below.map(|(what, floor)| format!("{what}: {} of {floor}", self.of(what))).collect()
    }
}

/// Counts a history.
#[must_use]
pub fn seen(events: &[Event]) -> Seen {
    let mut seen = Seen::default();
    let mut answers = answered(events);
    answers.sort_by_key(|a| a.rank);
    let mut completed: BTreeSet<&str> = BTreeSet::new();
    for a in &answers {
        let (body, key) = (a.body, a.event.key.as_str());
        match body["outcome"].as_str().filter(|_| body["code"].is_null()) {
            Some("acquired") if body["resumed"] == true => seen.count("resumed", 1),
            Some("acquired") => {
                seen.count("grants", 1);
                let steals = body["took_over"].is_object();
                seen.count("steals", steals.into());
                // A record that was complete is granted again only when its ttl has passed.
                seen.count("expiries", (steals || completed.remove(key)).into());
            }
            Some("completed") => {
                completed.insert(key);
                seen.count("completions", 1);
            }
            Some("replay" | "already_complete") => seen.count("replays", 1),
            Some("released") => seen.count("releases", 1),
            Some("extended") => seen.count("extensions", 1),
            _ => {}
        }
        let is_late = body["code"] == "lease_lost";
        seen.count("late writes refused", is_late.into());
        let fenced = is_late && matches!(a.event.op, Op::Complete { .. });
        seen.count("late completions refused", fenced.into());
        seen.count("reads", (a.event.op == Op::Get).into());
    }
    let terms: BTreeSet<u64> = answers.iter().map(|a| a.term).collect();
    seen.count("fail-overs", (terms.len() as u64).saturating_sub(1));
    for event in events {
        let (refused, unknown) = match &event.outcome {
            Outcome::Answered(_) => (false, false),
            Outcome::Refused(_) => (true, false),
            Outcome::Unknown(_) => (false, true),
        };
        seen.count("sends", 1);
        seen.count("refused", refused.into());
        seen.count("unknown", unknown.into());
        let hung_up = matches!(&event.outcome, Outcome::Unknown(why) if why == HUNG_UP);
        seen.count("hang-ups", hung_up.into());
    }
    seen.count("keys", events.iter().map(|event| &event.key).collect::<BTreeSet<_>>().len() as u64);
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_saw_nothing_is_below_every_floor() {
        let mut seen = seen(&[]);
        assert_eq!(seen.below(&[("steals", 2), ("grants", 0)]), ["steals: 0 of 2"]);
        seen.count("steals", 2);
        assert!(seen.below(&[("steals", 2)]).is_empty());
    }

    #[test]
    fn a_grant_after_a_completion_is_an_expiry() {
        let event = |index: u64, op: Op, body: Value| {
            let mut body = body;
            body["at"] = json!({ "index": index, "slot": 0, "term": 1, "now_ms": index });
            let (key, outcome) = ("k".to_owned(), Outcome::Answered(body));
            Event { process: 0, key, op, started: index, ended: index, outcome }
        };
        let acquire = || Op::Acquire {
            attempt: "a".to_owned(),
            mark: "m".to_owned(),
            lease_ms: 9,
            ttl_ms: 9,
        };
        let granted = json!({ "outcome": "acquired", "resumed": false, "took_over": null });
        let events = [
            event(1, acquire(), granted.clone()),
            event(2, Op::Release { token: 1 }, json!({ "outcome": "completed" })),
            event(3, acquire(), granted),
        ];
        let seen = seen(&events);
        assert_eq!((seen.of("grants"), seen.of("expiries"), seen.of("steals")), (2, 1, 0));
    }
}
