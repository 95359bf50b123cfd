//! The order of the log, replayed.
//!
//! Sends that ended unknown have no place in the log. A record's possible states are therefore a
//! set: before each answer, every unknown send that had begun by then may have been applied or
//! not. The token that such a send was given is one that later answers show, or the next one. The
//! time is the earliest that will do: that of the thing before it, the end of a deadline before it,
//! one that makes a deadline be what an answer shows, or one that just keeps the record until an
//! answer or another unknown send. Of all times that explain a history there are earliest ones, for
//! all that bounds them is how far two of them, or one and an answer, are apart at least or at most.
//! The last kinds are many, so they are tried only if the rest explain nothing; chains of three
//! unknown sends are not. Only applications that change the record count, so the set stays small.

use std::collections::BTreeSet;

use serde_json::Value;
use tenure_api::frame::Decided;
use tenure_api::{Response, View};
use tenure_state_machine::limits::TOKEN_MAX;
use tenure_state_machine::{
    At, Attempt, Command, Counters, Entry, MemoryStore, Name, Record, State, Store as _, apply,
    visible,
};

use super::blame::{self, Was};
use super::{Judgement, Kind, Violation, by_key};
use crate::check::{self, Answered, answered};
use crate::door::command_of;
use crate::history::{Event, Op};

/// Its name in verdicts.
const CHECKER: &str = "replay";
/// Possible states of one record before the replay gives up.
const STATES: usize = 20_000;
/// Sends of one key that may end unknown.
const UNKNOWN: usize = 64;
/// Stands for the smallest token that may be given.
const NEXT: u64 = 0;
/// Words of a problem that are for people.
const PROSE: [&str; 3] = ["type", "title", "detail"];

/// Replays the log, and holds it against real time.
#[must_use]
pub fn replay(events: &[Event]) -> Judgement {
    let mut judgement = Judgement::default();
    for text in check::real_time_is_the_order_of_the_log(events) {
        judgement.violations.push(Violation {
            checker: CHECKER,
            kind: Kind::StaleRead,
            key: None,
            text,
            witnesses: Vec::new(),
        });
    }
    for (key, events) in by_key(events) {
        let mut run = Replay::of(key, &events, Times::Shown).run();
        for more in [Times::Kept, Times::Chained] {
            if let Err(Stop::Impossible { .. }) = run {
                run = Replay::of(key, &events, more).run();
            }
        }
        match run {
            Ok(()) => {}
            Err(Stop::Impossible { at, was }) => {
                judgement.violations.push(violation(key, &events, at, &was));
            }
            Err(Stop::TooMuch) => judgement.undecided.push(format!("{CHECKER}: {key}: too many")),
        }
    }
    judgement
}

fn violation(key: &str, events: &[&Event], wrong: &Event, was: &[Possible]) -> Violation {
    let seen: Vec<Was> = was.iter().map(Possible::seen).collect();
    let body = wrong.outcome.body();
    let index = body.and_then(|body| body["at"]["index"].as_u64());
    let place = |event: &Event| event.outcome.body().and_then(|body| body["at"]["index"].as_u64());
    let before = events.iter().filter(|event| match place(event) {
        Some(place) => Some(place) <= index,
        None => event.outcome.is_unknown() && event.started < wrong.ended,
    });
    let mut witnesses: Vec<Event> =
        before.filter(|event| **event != wrong).map(|event| (*event).clone()).collect();
    witnesses.sort_by_key(|event| place(event).unwrap_or(u64::MAX));
    witnesses.push(wrong.clone());
    let expected = was.first().and_then(|possible| {
        let answered = answered(std::slice::from_ref(wrong));
        Some(possible.answer(&Name::new("s", key).ok()?, answered.first()?).1)
    });
    Violation {
        checker: CHECKER,
        kind: blame::name(events, wrong, &seen),
        key: Some(key.to_owned()),
        text: format!("the log says {}, not {wrong:?}", expected.unwrap_or_default()),
        witnesses,
    }
}

/// When unknown sends may have been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    /// At what answers show.
    Shown,
    /// And when what they set just lasts until an answer.
    Kept,
    /// And when it just lasts until another unknown send.
    Chained,
}

enum Stop<'a> {
    Impossible { at: &'a Event, was: Vec<Possible> },
    TooMuch,
}

/// A state that a record may be in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Possible {
    record: Option<Record>,
    /// The cluster clock at the last thing applied.
    clock_ms: u64,
    /// The largest token that the name has had.
    last_token: u64,
    /// The unknown sends that were applied, by their bit.
    applied: u64,
    /// It was granted to an unknown send, and nobody was answered since.
    is_unseen: bool,
    /// Who held it before that.
    before: Option<Attempt>,
}

impl Possible {
    fn seen(&self) -> Was {
        match &self.record {
            None => Was::Absent,
            Some(Record { token, state: State::InProgress { .. }, .. }) => {
                Was::Held { token: token.get() }
            }
            Some(Record { token, state: State::Complete { .. }, .. }) => {
                Was::Done { token: token.get() }
            }
        }
    }

    /// Applies a command, at which an acquisition gets `token`, or the next one that is larger than
    /// all before.
    fn apply(&self, command: &Command, now_ms: u64, token: u64) -> (Self, Decided) {
        let name = command.name().unwrap();
        let mut store = MemoryStore::default();
        let seen = visible(self.record.as_ref(), now_ms);
        store.replace(name, None, seen.cloned()).unwrap();
        let last_token = self.last_token.max(token.saturating_sub(1));
        let mut counters = Counters { clock_ms: now_ms, last_token };
        let entry = Entry { stamp_ms: now_ms, commands: vec![command.clone()] };
        let answer = apply(&mut counters, &mut store, &entry).unwrap().answers.remove(0);
        let is_granted = counters.last_token > last_token;
        let last_token = if is_granted { counters.last_token } else { self.last_token };
        let record = store.get(name).unwrap().map(|record| (*record).clone());
        let at = At { index: 0, slot: None, term: 0, now_ms };
        let after = Self { record, clock_ms: now_ms, last_token, ..self.clone() };
        (after, Decided { answer, at })
    }

    /// What the state machine answers to a send, and the record then.
    fn answer(&self, name: &Name, a: &Answered<'_>) -> (Self, Value) {
        let token = a.body["token"].as_u64().filter(|token| (1..=TOKEN_MAX).contains(token));
        let (after, response) = match command_of(&a.event.op, name.clone()) {
            Some(command) => {
                let (after, decided) = self.apply(&command, a.now_ms, token.unwrap_or(NEXT));
                (after, Response::decided(&decided))
            }
            None => {
                let at = At { index: 0, slot: None, term: 0, now_ms: a.now_ms };
                let view = visible(self.record.as_ref(), a.now_ms).map(View::from);
                let after = Self { clock_ms: a.now_ms, ..self.clone() };
                (after, Response::record(view.as_ref(), at))
            }
        };
        (after, plain(serde_json::from_slice(&response.body).unwrap_or_default()))
    }

    /// After an unknown send, which nobody saw; none if the same comes about without a grant before
    /// it that nobody saw either.
    fn unseen(self, state: &Self) -> Option<Self> {
        if self.record.is_none() {
            return Some(Self { is_unseen: false, before: None, ..self });
        }
        if self.token() <= state.token() {
            return Some(self);
        }
        // Who held it before that grant could have resumed instead.
        let could_resume = self.attempt() == state.before.as_ref();
        if state.is_unseen && !could_resume {
            return None;
        }
        Some(Self { is_unseen: true, before: state.attempt().cloned(), ..self })
    }

    fn attempt(&self) -> Option<&Attempt> {
        match self.record.as_ref().map(|record| &record.state)? {
            State::InProgress { attempt, .. } => Some(attempt),
            State::Complete { .. } => None,
        }
    }

    fn token(&self) -> Option<u64> {
        self.record.as_ref().map(|record| record.token.get())
    }

    /// The moments at which time alone changes what may be done with the record.
    fn deadlines(&self) -> Vec<u64> {
        match self.record.as_ref().map(|record| &record.state) {
            None => Vec::new(),
            Some(State::InProgress { lease_until_ms, ttl_until_ms, .. }) => {
                vec![*lease_until_ms, *ttl_until_ms]
            }
            Some(State::Complete { expires_ms, .. }) => vec![*expires_ms],
        }
    }

    /// What a complete that names no ttl inherits.
    fn ttl_ms(&self) -> Option<u64> {
        match &self.record.as_ref()?.state {
            State::InProgress { ttl_ms, .. } => Some(*ttl_ms),
            State::Complete { .. } => None,
        }
    }

    /// Whether a record is the same to all who look from a moment on.
    fn looks_like(&self, other: &Self, now_ms: u64) -> bool {
        visible(self.record.as_ref(), now_ms) == visible(other.record.as_ref(), now_ms)
    }
}

/// An answer without its place and without prose.
fn plain(mut body: Value) -> Value {
    if let Some(members) = body.as_object_mut() {
        members.remove("at");
        for word in PROSE {
            members.remove(word);
        }
    }
    body
}

struct Replay<'a> {
    name: Name,
    answers: Vec<Answered<'a>>,
    unknown: Vec<Unknown>,
    /// Every moment at which a deadline may lie.
    moments: BTreeSet<u64>,
}

/// A send whose outcome is not known.
struct Unknown {
    command: Command,
    /// What it adds to the clock where it shows.
    spans: BTreeSet<u64>,
    /// Those that it may have been given, for an acquire.
    tokens: Vec<u64>,
    /// Answers of the key that it comes after.
    from: usize,
}

impl<'a> Replay<'a> {
    fn of(key: &str, events: &[&'a Event], times: Times) -> Self {
        let name = Name::new("s", key).unwrap();
        let mut answers: Vec<Answered<'a>> =
            events.iter().flat_map(|event| answered(std::slice::from_ref(*event))).collect();
        answers.sort_by_key(|a| a.rank);
        let moments = answers.iter().flat_map(|a| moments(a.body, a.now_ms));
        let after = answers.iter().filter(|_| times != Times::Shown).map(|a| a.now_ms + 1);
        let mut moments: BTreeSet<u64> = moments.chain(after).collect();
        let unknown = events.iter().filter(|event| event.outcome.is_unknown());
        let unknown = unknown.filter_map(|event| {
            let command = command_of(&event.op, name.clone())?;
            let ended_before = |a: &Answered<'_>| a.event.ended < event.started;
            let from = answers.iter().rposition(ended_before).map_or(0, |last| last + 1);
            let spans = match &event.op {
                Op::Acquire { lease_ms, ttl_ms, .. } => BTreeSet::from([0, *lease_ms, *ttl_ms]),
                Op::Complete { ttl_ms, .. } => ttl_ms.iter().copied().chain([0]).collect(),
                Op::Extend { lease_ms, .. } => BTreeSet::from([*lease_ms]),
                Op::Release { .. } | Op::Get => BTreeSet::new(),
            };
            let tokens = tokens(&event.op, &answers);
            Some(Unknown { command, spans, tokens, from })
        });
        let unknown: Vec<Unknown> = unknown.collect();
        if times == Times::Chained {
            let spans: BTreeSet<u64> = unknown.iter().flat_map(|u| u.spans.clone()).collect();
            let sent = moments
                .iter()
                .flat_map(|moment| spans.iter().map(move |s| (moment + 1).saturating_sub(*s)));
            moments.extend(sent.collect::<Vec<_>>());
        }
        Self { name, answers, unknown, moments }
    }

    fn run(&self) -> Result<(), Stop<'a>> {
        if self.unknown.len() > UNKNOWN {
            return Err(Stop::TooMuch);
        }
        let mut states = vec![Possible::default()];
        for (place, a) in self.answers.iter().enumerate() {
            self.add_unknown(&mut states, place, a.now_ms)?;
            let said = plain(a.body.clone());
            let mut next = Vec::new();
            for state in &states {
                let (after, answer) = state.answer(&self.name, a);
                let after = Possible { is_unseen: false, before: None, ..after };
                let read_changes = a.rank.is_read() && !after.looks_like(state, a.now_ms);
                if answer == said && !read_changes && !next.contains(&after) {
                    next.push(after);
                }
            }
            if next.is_empty() {
                return Err(Stop::Impossible { at: a.event, was: states });
            }
            states = next;
        }
        Ok(())
    }

    /// Adds the states that unknown sends may have made before the answer at `place`.
    fn add_unknown(
        &self,
        states: &mut Vec<Possible>,
        place: usize,
        now_ms: u64,
    ) -> Result<(), Stop<'a>> {
        let mut next = 0;
        while let Some(state) = states.get(next).cloned() {
            next += 1;
            for (number, unknown) in self.unknown.iter().enumerate() {
                let bit = 1 << number;
                if unknown.from > place || state.applied & bit != 0 {
                    continue;
                }
                for clock_ms in self.clocks(unknown, &state, now_ms) {
                    for token in &unknown.tokens {
                        let (after, _) = state.apply(&unknown.command, clock_ms, *token);
                        let after = Possible { applied: state.applied | bit, ..after };
                        let Some(after) = after.unseen(&state) else { continue };
                        if !after.looks_like(&state, clock_ms) && !states.contains(&after) {
                            states.push(after);
                        }
                    }
                }
            }
            if states.len() > STATES {
                return Err(Stop::TooMuch);
            }
        }
        Ok(())
    }

    /// When an unknown send may have been applied, between two answers.
    fn clocks(&self, unknown: &Unknown, state: &Possible, to_ms: u64) -> BTreeSet<u64> {
        // Before the first answer of a key its clock is not known.
        let from_ms = match state.clock_ms {
            0 => to_ms.saturating_sub(60_000),
            clock_ms => clock_ms,
        };
        let turns = state.deadlines().into_iter().filter(|turn| (from_ms..=to_ms).contains(turn));
        let spans = unknown.spans.iter().copied().chain(state.ttl_ms());
        let shown = spans.flat_map(|span| {
            let moments = self.moments.range(from_ms.saturating_add(span)..);
            moments.map(move |moment| moment - span).take_while(|moment| *moment <= to_ms)
        });
        shown.chain(turns).chain([from_ms]).collect()
    }
}

/// Every moment of cluster time that an answer shows.
fn moments(body: &Value, now_ms: u64) -> Vec<u64> {
    let members = ["acquired_ms", "lease_until_ms", "ttl_until_ms", "completed_ms", "expires_ms"];
    let shown = members.iter().filter_map(|member| body[*member].as_u64());
    let retry = body["retry_after_ms"].as_u64().map(|left| now_ms + left);
    let stolen = body["took_over"]["acquired_ms"].as_u64();
    shown.chain(retry).chain(stolen).collect()
}

/// The tokens that an unknown acquire may have been given: the one that answers show beside its
/// mark; if none does, one of its attempt, one that nobody accounts for, or one that nobody saw.
fn tokens(op: &Op, answers: &[Answered<'_>]) -> Vec<u64> {
    let Op::Acquire { attempt, mark, .. } = op else { return vec![NEXT] };
    let mut shown = BTreeSet::new();
    // An attempt gets a token again for its grant, and another one after that has ended.
    let mut resumed = BTreeSet::new();
    let mut given = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for a in answers {
        let token = a.body["token"].as_u64();
        seen.extend(token);
        seen.extend(a.body["current_token"].as_u64());
        if a.body["holder"] == mark.as_str() {
            shown.extend(token);
        }
        if a.body["took_over"]["holder"] == mark.as_str() {
            shown.extend(a.body["took_over"]["token"].as_u64());
        }
        if a.body["outcome"] == "acquired" {
            let same =
                matches!(&a.event.op, Op::Acquire { attempt: other, .. } if other == attempt);
            if same {
                resumed.extend(token);
            } else if a.body["resumed"] == false {
                given.extend(token);
            }
        }
    }
    if !shown.is_empty() {
        return shown.into_iter().collect();
    }
    let unaccounted: BTreeSet<u64> = seen.difference(&given).copied().collect();
    resumed.union(&unaccounted).copied().chain([NEXT]).collect()
}
