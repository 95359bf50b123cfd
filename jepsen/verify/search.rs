//! Linearizability of each key by search, after Wing and Gong (1993) with the memory of Lowe
//! (2017): a set of sends that were given places is never looked at twice with the same possible
//! records.
//!
//! A place is free for a send if every send that ended before it started has one. The cluster
//! clock never goes back, so of all sends without a place only those with the smallest cluster time
//! can be next; that keeps the search narrow without trusting an index. An unknown send is tried
//! before each answered one that it may precede, at any cluster time between its neighbours', and
//! need never be placed.

use std::collections::HashSet;

use super::blame;
use super::model::{Model, Span};
use super::{Judgement, Kind, Violation, by_key};
use crate::check::{Answered, answered};
use crate::history::{Event, Op, Outcome};

/// Its name in verdicts.
const CHECKER: &str = "search";
/// Looks at sets of placed sends, for one key.
const LOOKS: usize = 200_000;
/// Possible records of one set.
const STATES: usize = 5_000;
/// Sends of one key that may end unknown.
const UNKNOWN: usize = 64;

/// Searches an order for each key.
#[must_use]
pub fn search(events: &[Event]) -> Judgement {
    let mut judgement = Judgement::default();
    for (key, events) in by_key(events) {
        match Search::of(&events).run() {
            Found::Order => {}
            Found::None { .. } => judgement.violations.push(counterexample(key, &events)),
            Found::TooMuch => judgement.undecided.push(format!("{CHECKER}: {key}: too many")),
        }
    }
    judgement
}

/// What came of a search.
enum Found {
    Order,
    /// There is no order. The records before the furthest place that could not be filled.
    None {
        was: Vec<Model>,
    },
    TooMuch,
}

/// A set of sends with places, and what the record may be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Step {
    placed: Vec<u64>,
    clock_ms: u64,
    states: Vec<(Model, u64)>,
}

struct Search<'a> {
    answers: Vec<Answered<'a>>,
    /// Unknown sends.
    unknown: Vec<&'a Event>,
}

impl<'a> Search<'a> {
    fn of(events: &[&'a Event]) -> Self {
        let mut answers: Vec<Answered<'a>> =
            events.iter().flat_map(|event| answered(std::slice::from_ref(*event))).collect();
        answers.sort_by_key(|a| a.event.started);
        let changes = |event: &&&Event| event.outcome.is_unknown() && event.op != Op::Get;
        let unknown = events.iter().filter(changes).copied().collect();
        Self { answers, unknown }
    }

    fn run(&self) -> Found {
        if self.unknown.len() > UNKNOWN {
            return Found::TooMuch;
        }
        let words = self.answers.len().div_ceil(64);
        let first =
            Step { placed: vec![0; words], clock_ms: 0, states: vec![(Model::default(), 0)] };
        let mut known = HashSet::from([first.clone()]);
        let mut stack = vec![first];
        let mut furthest = (0, Vec::new());
        while let Some(step) = stack.pop() {
            let places: u32 = step.placed.iter().map(|word| word.count_ones()).sum();
            if places as usize == self.answers.len() {
                return Found::Order;
            }
            if places >= furthest.0 {
                let was = step.states.iter().map(|(model, _)| model.clone()).collect();
                furthest = (places, was);
            }
            for number in self.next(&step) {
                let Some(after) = self.place(&step, number) else { return Found::TooMuch };
                if !after.states.is_empty() && known.insert(after.clone()) {
                    stack.push(after);
                }
            }
            if known.len() > LOOKS {
                return Found::TooMuch;
            }
        }
        Found::None { was: furthest.1 }
    }

    fn is_placed(step: &Step, number: usize) -> bool {
        step.placed[number / 64] & (1 << (number % 64)) != 0
    }

    /// The answers that may be next.
    fn next(&self, step: &Step) -> Vec<usize> {
        let left = || (0..self.answers.len()).filter(|number| !Self::is_placed(step, *number));
        let first_end = left().map(|number| self.answers[number].event.ended).min();
        let now_ms = left().map(|number| self.answers[number].now_ms).min();
        left()
            .filter(|number| {
                let a = &self.answers[*number];
                Some(a.event.started) <= first_end && Some(a.now_ms) == now_ms
            })
            .collect()
    }

    /// Gives a place to an answer, after whatever unknown sends; none if that is too much.
    fn place(&self, step: &Step, number: usize) -> Option<Step> {
        let a = &self.answers[number];
        let now = Span::between(step.clock_ms, a.now_ms);
        let left = (0..self.answers.len()).filter(|number| !Self::is_placed(step, *number));
        let first_end = left.map(|number| self.answers[number].event.ended).min()?;
        let mut before = step.states.clone();
        let mut next = 0;
        while let Some((model, applied)) = before.get(next).cloned() {
            next += 1;
            for (number, unknown) in self.unknown.iter().enumerate() {
                let bit = 1 << number;
                if applied & bit != 0 || unknown.started > first_end {
                    continue;
                }
                for guess in model.guess(&unknown.op, now) {
                    let after = (guess, applied | bit);
                    if !before.contains(&after) {
                        before.push(after);
                    }
                }
            }
            if before.len() > STATES {
                return None;
            }
        }
        let mut states: Vec<(Model, u64)> = Vec::new();
        for (model, applied) in before {
            for after in model.step(&a.event.op, a.now_ms, a.body) {
                let after = (after, applied);
                if !states.contains(&after) {
                    states.push(after);
                }
            }
        }
        let mut placed = step.placed.clone();
        placed[number / 64] |= 1 << (number % 64);
        Some(Step { placed, clock_ms: a.now_ms, states })
    }
}

fn is_impossible(events: &[Event]) -> Option<Vec<Model>> {
    let events: Vec<&Event> = events.iter().collect();
    match Search::of(&events).run() {
        Found::None { was } => Some(was),
        Found::Order | Found::TooMuch => None,
    }
}

/// What had been seen of a key at some moment: what was on its way then may have happened.
fn until(events: &[&Event], moment: u64) -> Vec<Event> {
    let begun = events.iter().filter(|event| event.started <= moment);
    let seen = begun.map(|event| match &event.outcome {
        Outcome::Answered(_) if event.ended > moment => {
            let outcome = Outcome::Unknown("not answered yet".to_owned());
            Event { outcome, ended: u64::MAX, ..(*event).clone() }
        }
        Outcome::Answered(_) | Outcome::Refused(_) | Outcome::Unknown(_) => (*event).clone(),
    });
    seen.collect()
}

/// Whether a send without it can be left out and what is left is no less possible.
fn changes_nothing(event: &Event) -> bool {
    match &event.outcome {
        Outcome::Answered(body) => {
            event.op == Op::Get || !body["code"].is_null() || body["outcome"] == "replay"
        }
        Outcome::Refused(_) => true,
        Outcome::Unknown(_) => event.op == Op::Get,
    }
}

/// The shortest beginning of a key's history that has no order, without the reads and refusals
/// that it does without.
fn counterexample(key: &str, events: &[&Event]) -> Violation {
    let mut ends: Vec<u64> = events.iter().filter_map(answered_at).collect();
    ends.sort_unstable();
    // An impossible beginning stays impossible, so the shortest one is found by halving.
    let possible = |end: &u64| is_impossible(&until(events, *end)).is_none();
    let end = ends.get(ends.partition_point(possible)).or(ends.last()).copied();
    let mut left = until(events, end.unwrap_or(u64::MAX));
    let mut was = is_impossible(&left);
    if was.is_none() {
        // Too much to be shortened.
        left = events.iter().map(|event| (*event).clone()).collect();
    }
    let mut number = left.len();
    while number > 0 && was.is_some() {
        number -= 1;
        let event = &left[number];
        if Some(event.ended) == end || !changes_nothing(event) {
            continue;
        }
        let mut fewer = left.clone();
        fewer.remove(number);
        if let Some(then) = is_impossible(&fewer) {
            (left, was) = (fewer, Some(then));
        }
    }
    left.sort_by_key(|event| (Some(event.ended) == end, event.started));
    let (kind, text) = match left.last() {
        Some(wrong) => {
            let was: Vec<_> = was.iter().flatten().map(Model::was).collect();
            let kind = blame::name(events, wrong, &was);
            (kind, format!("no order gives {wrong:?}"))
        }
        None => (Kind::WrongAnswer, "no order".to_owned()),
    };
    Violation { checker: CHECKER, kind, key: Some(key.to_owned()), text, witnesses: left }
}

fn answered_at(event: &&Event) -> Option<u64> {
    event.outcome.body().map(|_| event.ended)
}
