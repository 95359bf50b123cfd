//! The only code that changes state.
//!
//! Each command is first *judged* against its record and the clock, without touching anything;
//! then the change, if there is one, goes through [`Store::replace`]. A read judges an acquire by
//! the same function, so it can never answer what apply would not.

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Answers, Completion, LeaseLost, Replay, TookOver};
use crate::command::{Acquire, Command, Complete, Entry, Extend, Purge, Release};
use crate::record::{Record, State, visible};
use crate::seeded::{self, SeededBug, seeded};
use crate::store::Store;
use crate::text::Fingerprint;
use crate::time;
use crate::token::Token;

/// What the state machine knows beside its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// The cluster clock: the largest stamp applied so far, in milliseconds.
    pub clock_ms: u64,
    /// The last token given, zero before the first.
    pub last_token: u64,
}

impl Counters {
    /// R4, I2: one more than every token before it.
    fn next_token(&mut self) -> Token {
        let token = Token::after(self.last_token);
        self.last_token = token.get();
        token
    }
}

/// Applies one entry: moves the clock to its stamp, never back (I3), then each command in turn.
///
/// # Errors
/// The store's own I/O error, after which the node must stop: see I8.
pub fn apply<S: Store>(
    counters: &mut Counters,
    store: &mut S,
    entry: &Entry,
) -> Result<Answers, S::Error> {
    counters.clock_ms = clock_after(counters.clock_ms, entry.stamp_ms);
    let now_ms = counters.clock_ms;
    let mut answers = Vec::with_capacity(entry.commands.len());
    for command in &entry.commands {
        answers.push(apply_command(counters, store, command)?);
    }
    Ok(Answers { now_ms, answers })
}

/// I3: a stamp moves the clock forward or not at all.
fn clock_after(clock_ms: u64, stamp_ms: u64) -> u64 {
    if seeded(SeededBug::ApplyReadsClock) {
        return clock_ms.max(seeded::own_clock_ms());
    }
    if seeded(SeededBug::StampNotClamped) {
        return stamp_ms;
    }
    clock_ms.max(stamp_ms)
}

fn apply_command<S: Store>(
    counters: &mut Counters,
    store: &mut S,
    command: &Command,
) -> Result<Answer, S::Error> {
    if time::is_too_late(command.not_after_ms(), counters.clock_ms) {
        return Ok(Answer::TooLate);
    }
    match command {
        Command::Acquire(acquire) => apply_acquire(counters, store, acquire),
        Command::Complete(complete) => apply_complete(counters.clock_ms, store, complete),
        Command::Release(release) => apply_release(counters.clock_ms, store, release),
        Command::Extend(extend) => apply_extend(counters.clock_ms, store, extend),
        Command::Purge(purge) => apply_purge(counters.clock_ms, store, purge),
    }
}

/// What an acquire comes to, before anything changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireVerdict {
    /// The record is free, or its lease has run out: it will be granted with a fresh token.
    Grant(Option<TookOver>),
    /// The attempt holds it already: its lease will be renewed (rule R8).
    Resume,
    /// Nothing will change. A linearizable read may give this answer as well as the log.
    Settled(Answer),
}

/// Judges an acquire by the record as stored and the clock. Rule R10 is part of it.
#[must_use]
pub fn judge_acquire(record: Option<&Record>, clock_ms: u64, acquire: &Acquire) -> AcquireVerdict {
    if time::is_too_late(acquire.not_after_ms, clock_ms) {
        return AcquireVerdict::Settled(Answer::TooLate);
    }
    let Some(record) = visible(record, clock_ms) else { return AcquireVerdict::Grant(None) };
    let (stored, received) = (record.fingerprint.as_ref(), acquire.fingerprint.as_ref());
    match &record.state {
        State::Complete { completed_ms, expires_ms, payload } => {
            AcquireVerdict::Settled(mismatch(stored, received).unwrap_or_else(|| {
                Answer::Replay(Replay {
                    token: record.token,
                    payload: payload.clone(),
                    completed_ms: *completed_ms,
                    expires_ms: *expires_ms,
                })
            }))
        }
        State::InProgress { attempt, .. } if *attempt == acquire.attempt => {
            match mismatch(stored, received) {
                Some(refusal) => AcquireVerdict::Settled(refusal),
                None => AcquireVerdict::Resume,
            }
        }
        State::InProgress { lease_until_ms, .. } if time::has_passed(*lease_until_ms, clock_ms) => {
            AcquireVerdict::Grant(Some(TookOver {
                token: record.token,
                holder: record.holder.clone(),
                acquired_ms: record.acquired_ms,
            }))
        }
        State::InProgress { lease_until_ms, .. } => AcquireVerdict::Settled(Answer::InProgress {
            retry_after_ms: time::left(*lease_until_ms, clock_ms),
            holder: record.holder.clone(),
            token: record.token,
            fingerprint_differs: mismatch(stored, received).is_some(),
        }),
    }
}

fn mismatch(stored: Option<&Fingerprint>, received: Option<&Fingerprint>) -> Option<Answer> {
    let (stored, received) = stored.zip(received)?;
    (stored != received)
        .then(|| Answer::FingerprintMismatch { stored: stored.clone(), received: received.clone() })
}

fn apply_acquire<S: Store>(
    counters: &mut Counters,
    store: &mut S,
    acquire: &Acquire,
) -> Result<Answer, S::Error> {
    let clock_ms = counters.clock_ms;
    let old = store.get(&acquire.name)?;
    let old = old.as_deref();
    match judge_acquire(old, clock_ms, acquire) {
        AcquireVerdict::Settled(answer) => Ok(answer),
        AcquireVerdict::Grant(took_over) => {
            let mut token = counters.next_token();
            if seeded(SeededBug::TokenPerRecord) {
                token = Token::after(old.map_or(0, |old| old.token.get()));
            }
            assert!(old.is_none_or(|old| old.token < token), "I2: tokens strictly increase");
            let lease_until_ms = time::after(clock_ms, acquire.lease_ms);
            let ttl_until_ms = time::after(clock_ms, acquire.ttl_ms);
            let new = Record {
                token,
                holder: acquire.holder.clone(),
                fingerprint: acquire.fingerprint.clone(),
                acquired_ms: clock_ms,
                state: State::InProgress {
                    attempt: acquire.attempt.clone(),
                    ttl_ms: acquire.ttl_ms,
                    lease_until_ms,
                    ttl_until_ms,
                },
            };
            store.replace(&acquire.name, old, Some(new))?;
            Ok(Answer::Acquired { token, lease_until_ms, ttl_until_ms, resumed: false, took_over })
        }
        AcquireVerdict::Resume => {
            let renewed = old.and_then(|old| renew(old, clock_ms, acquire.lease_ms));
            let Some((new, lease_until_ms, ttl_until_ms)) = renewed else { unreachable!() };
            let token = new.token;
            store.replace(&acquire.name, old, Some(new))?;
            Ok(Answer::Acquired {
                token,
                lease_until_ms,
                ttl_until_ms,
                resumed: true,
                took_over: None,
            })
        }
    }
}

/// Rule R7: a lease is never shortened. Gives the renewed record and its two deadlines.
fn renew(old: &Record, clock_ms: u64, lease_ms: u64) -> Option<(Record, u64, u64)> {
    let mut new = old.clone();
    let State::InProgress { lease_until_ms, ttl_until_ms, .. } = &mut new.state else {
        return None;
    };
    *lease_until_ms = (*lease_until_ms).max(time::after(clock_ms, lease_ms));
    let (lease_until_ms, ttl_until_ms) = (*lease_until_ms, *ttl_until_ms);
    Some((new, lease_until_ms, ttl_until_ms))
}

/// What a token is worth (rule R3).
enum Held<'a> {
    /// The record is IN_PROGRESS with it.
    Mine { record: &'a Record, ttl_ms: u64 },
    /// The record is COMPLETE with it.
    Done { completed_ms: u64, expires_ms: u64 },
    /// It holds nothing.
    Lost(LeaseLost),
}

fn held(record: Option<&Record>, clock_ms: u64, token: Token) -> Held<'_> {
    let Some(record) = visible(record, clock_ms) else { return Held::Lost(LeaseLost::Absent) };
    let current_token = record.token;
    match &record.state {
        State::InProgress { ttl_ms, .. }
            if current_token == token || seeded(SeededBug::TokenNotChecked) =>
        {
            Held::Mine { record, ttl_ms: *ttl_ms }
        }
        State::InProgress { .. } => Held::Lost(LeaseLost::Stolen { current_token }),
        State::Complete { completed_ms, expires_ms, .. } if current_token == token => {
            Held::Done { completed_ms: *completed_ms, expires_ms: *expires_ms }
        }
        State::Complete { .. } => Held::Lost(LeaseLost::Completed { current_token }),
    }
}

fn apply_complete<S: Store>(
    clock_ms: u64,
    store: &mut S,
    complete: &Complete,
) -> Result<Answer, S::Error> {
    let old = store.get(&complete.name)?;
    let token = complete.token;
    match held(old.as_deref(), clock_ms, token) {
        Held::Lost(lost) => Ok(Answer::LeaseLost(lost)),
        Held::Done { completed_ms, expires_ms } => {
            Ok(Answer::AlreadyComplete(Completion { token, completed_ms, expires_ms }))
        }
        Held::Mine { record, ttl_ms } => {
            let completed_ms = clock_ms;
            let expires_ms = time::after(clock_ms, complete.ttl_ms.unwrap_or(ttl_ms));
            let payload = complete.payload.clone();
            let new = Record {
                state: State::Complete { completed_ms, expires_ms, payload },
                ..record.clone()
            };
            store.replace(&complete.name, old.as_deref(), Some(new))?;
            Ok(Answer::Completed(Completion { token, completed_ms, expires_ms }))
        }
    }
}

fn apply_release<S: Store>(
    clock_ms: u64,
    store: &mut S,
    release: &Release,
) -> Result<Answer, S::Error> {
    let old = store.get(&release.name)?;
    match held(old.as_deref(), clock_ms, release.token) {
        Held::Lost(lost) => Ok(Answer::LeaseLost(lost)),
        Held::Done { .. } => Ok(completed_before(release.token)),
        Held::Mine { .. } => {
            store.replace(&release.name, old.as_deref(), None)?;
            Ok(Answer::Released)
        }
    }
}

fn apply_extend<S: Store>(
    clock_ms: u64,
    store: &mut S,
    extend: &Extend,
) -> Result<Answer, S::Error> {
    let old = store.get(&extend.name)?;
    match held(old.as_deref(), clock_ms, extend.token) {
        Held::Lost(lost) => Ok(Answer::LeaseLost(lost)),
        Held::Done { .. } => Ok(completed_before(extend.token)),
        Held::Mine { record, .. } => {
            let renewed = renew(record, clock_ms, extend.lease_ms);
            let Some((new, lease_until_ms, _)) = renewed else { unreachable!() };
            if !seeded(SeededBug::StealIgnoresExtend) {
                store.replace(&extend.name, old.as_deref(), Some(new))?;
            }
            Ok(Answer::Extended { token: extend.token, lease_until_ms })
        }
    }
}

fn completed_before(current_token: Token) -> Answer {
    Answer::LeaseLost(LeaseLost::Completed { current_token })
}

/// Rule R11: oldest deadline first, bounded in count. What is due is decided here and now.
fn apply_purge<S: Store>(clock_ms: u64, store: &mut S, purge: &Purge) -> Result<Answer, S::Error> {
    let limit = usize::try_from(purge.limit).unwrap_or(usize::MAX);
    let due = store.first_due(clock_ms, limit.saturating_add(1))?;
    let mut deleted = 0;
    for (deadline_ms, name) in due.iter().take(limit) {
        assert!(time::has_passed(*deadline_ms, clock_ms), "R11: {name} is not purgeable");
        store.purge(name, *deadline_ms)?;
        deleted += 1;
    }
    Ok(Answer::Purged { deleted, more: due.len() > limit })
}
