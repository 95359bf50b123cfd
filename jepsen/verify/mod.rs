//! Two checkers that share nothing but the history, so that a mistake in one shows in the other.
//!
//! - [`replay`] believes what answers say of the log: it sorts them by `at` (index, slot), runs
//!   the pure state machine over them, demands every answer word for word, and then that the order
//!   of the log never contradicts the order of real time. It searches nothing.
//! - [`search`] believes no index. It asks whether *some* order of the sends of a key, each
//!   between its start and its end, gives the answers that were given, by a model of a record of
//!   its own (`model`). Of `at` it uses the cluster time alone, which says what had expired.
//!
//! # Rules
//!
//! 1. What was refused did not happen. What ended unknown happened once, at any moment after its
//!    start, or never; a checker tries both.
//! 2. A checker that gives up says so. It has then found nothing, and the run is not valid.
//! 3. Names of violations ([`Kind`]) are for people: they are found after the verdict, and never
//!    change it.
//! 4. A counterexample is minimal: it ends with the first answer that cannot be, and everything
//!    that could be left out was.
//!
//! # Caveats
//!
//! Sends carry neither fingerprints nor a deadline of their own, and no wait observes without
//! acquiring: their rules are the golden files' of the state machine. A purge changes no answer,
//! so it is not in a history. Both checkers take one send for one command; a client that sends
//! again by itself is judged by [`crate::check`].

mod blame;
pub mod floors;

#[cfg(test)]
mod golden;
mod model;
#[cfg(test)]
mod random;
pub mod replay;
pub mod search;

use std::collections::BTreeMap;

use crate::check;
use crate::history::Event;

pub use blame::Kind;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// Who found it.
    pub checker: &'static str,
    /// What it is, for people.
    pub kind: Kind,
    /// Of which key, if of one.
    pub key: Option<String>,
    /// What was seen.
    pub text: String,
    /// The sends that cannot all have ended so, the impossible one last; none for violations that
    /// are about the whole log.
    pub witnesses: Vec<Event>,
}

/// What the checkers say of a history.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judgement {
    /// What must not be.
    pub violations: Vec<Violation>,
    /// What could not be decided: key, and why.
    pub undecided: Vec<String>,
}

impl Judgement {
    /// Adds what another checker says.
    pub fn and(&mut self, other: Self) {
        self.violations.extend(other.violations);
        self.undecided.extend(other.undecided);
    }
}

/// All that is said of a history, by everybody.
#[must_use]
pub fn judge(events: &[Event]) -> Judgement {
    let mut judgement = of_the_whole_log(events);
    judgement.and(replay::replay(events));
    judgement.and(search::search(events));
    judgement
}

/// What holds for all keys together.
fn of_the_whole_log(events: &[Event]) -> Judgement {
    type Check = (Kind, fn(&[Event]) -> check::Violations);
    let checks: [Check; 4] = [
        (Kind::WrongAnswer, check::answers_have_a_place),
        (Kind::TornLog, check::one_log),
        (Kind::TokenReuse, check::tokens_grow),
        (Kind::RefusedCommitted, check::a_refused_send_never_shows),
    ];
    let found = checks.into_iter().flat_map(|(kind, check)| {
        check(events).into_iter().map(move |text| Violation {
            checker: "log",
            kind,
            key: None,
            text,
            witnesses: Vec::new(),
        })
    });
    Judgement { violations: found.collect(), undecided: Vec::new() }
}

/// The sends of each key.
fn by_key(events: &[Event]) -> BTreeMap<&str, Vec<&Event>> {
    let mut keys: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        keys.entry(&event.key).or_default().push(event);
    }
    keys
}
