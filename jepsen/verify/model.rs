//! A record, once more: a model that is small enough to be believed, and that shares no code with
//! the state machine.
//!
//! What an unknown send left behind is not known exactly, so each moment and each token is a
//! [`Span`] of what it may be; answers narrow it. A step gives all records that may be there
//! afterwards. Where a span stays wide, more is allowed than could be: the model never calls a
//! possible answer impossible.

use serde_json::Value;

use crate::check::payload_text;
use crate::history::Op;

/// A number between `lo` and `hi`, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Span {
    lo: u64,
    hi: u64,
}

impl Span {
    pub(super) fn exactly(value: u64) -> Self {
        Self { lo: value, hi: value }
    }

    pub(super) fn between(lo: u64, hi: u64) -> Self {
        Self { lo, hi }
    }

    fn after(self, span_ms: u64) -> Self {
        Self { lo: self.lo.saturating_add(span_ms), hi: self.hi.saturating_add(span_ms) }
    }

    fn or_later(self, other: Self) -> Self {
        Self { lo: self.lo.max(other.lo), hi: self.hi.max(other.hi) }
    }

    /// Narrowed to what an answer shows; none if it cannot be.
    fn is(self, shown: &Value) -> Option<Self> {
        let shown = shown.as_u64()?;
        (self.lo <= shown && shown <= self.hi).then_some(Self::exactly(shown))
    }

    fn is_not(self, value: u64) -> bool {
        self != Self::exactly(value)
    }

    /// Rule R1, where it may hold at some moment of `now`.
    fn passed(self, now: Self) -> Option<Self> {
        (self.lo <= now.hi).then_some(Self { lo: self.lo, hi: self.hi.min(now.hi) })
    }

    /// The opposite of it.
    fn ahead(self, now: Self) -> Option<Self> {
        (self.hi > now.lo).then_some(Self { lo: self.lo.max(now.lo + 1), hi: self.hi })
    }
}

/// What there may be under a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Record {
    Absent,
    Held(Held),
    Done(Done),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) token: Span,
    attempt: String,
    holder: String,
    acquired: Span,
    lease: Span,
    ttl: Span,
    keep_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Done {
    pub(super) token: Span,
    holder: String,
    completed: Span,
    expires: Span,
    text: String,
}

/// A record, and the largest token that it is known to have had.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Model {
    pub(super) record: Record,
    last_token: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self { record: Record::Absent, last_token: 0 }
    }
}

/// What an answer calls itself: its outcome, the state of a read, or the code of a refusal.
fn word(body: &Value) -> &str {
    let outcome = body["outcome"].as_str().filter(|_| body["code"].is_null());
    let word = outcome.or_else(|| body["state"].as_str()).or_else(|| body["code"].as_str());
    word.unwrap_or_default()
}

impl Model {
    fn with(&self, record: Record) -> Self {
        Self { record, last_token: self.last_token }
    }

    /// Rule R2: what is to be seen at a moment.
    fn seen(&self, now: Span) -> Vec<Self> {
        let mut seen = Vec::new();
        match &self.record {
            Record::Absent => seen.push(self.clone()),
            Record::Held(held) => {
                if held.ttl.passed(now).is_some() && held.lease.passed(now).is_some() {
                    seen.push(self.with(Record::Absent));
                }
                if held.ttl.ahead(now).is_some() || held.lease.ahead(now).is_some() {
                    seen.push(self.clone());
                }
            }
            Record::Done(done) => {
                if done.expires.passed(now).is_some() {
                    seen.push(self.with(Record::Absent));
                }
                if let Some(expires) = done.expires.ahead(now) {
                    seen.push(self.with(Record::Done(Done { expires, ..done.clone() })));
                }
            }
        }
        seen
    }

    /// All that may be there after a send was answered so.
    pub(super) fn step(&self, op: &Op, now_ms: u64, body: &Value) -> Vec<Self> {
        let now = Span::exactly(now_ms);
        let seen = self.seen(now);
        seen.iter().filter_map(|seen| seen.answered(op, now, body)).collect()
    }

    fn answered(&self, op: &Op, now: Span, body: &Value) -> Option<Self> {
        match op {
            Op::Get => self.got(now, body),
            Op::Acquire { .. } => self.acquired(op, now, body),
            Op::Complete { token, mark, ttl_ms } => match (word(body), &self.record) {
                ("completed", Record::Held(held)) => {
                    let done = held.complete(*token, mark, *ttl_ms, now)?;
                    Some(self.with(Record::Done(done.said(body)?)))
                }
                ("already_complete", Record::Done(done)) => {
                    done.token.is(&(*token).into())?;
                    Some(self.with(Record::Done(done.clone().said(body)?)))
                }
                ("lease_lost", _) => self.lost(*token, true, body),
                _ => None,
            },
            Op::Release { token } => match (word(body), &self.record) {
                ("released", Record::Held(held)) => {
                    held.token.is(&(*token).into())?;
                    Some(self.with(Record::Absent))
                }
                ("lease_lost", _) => self.lost(*token, false, body),
                _ => None,
            },
            Op::Extend { token, lease_ms } => match (word(body), &self.record) {
                ("extended", Record::Held(held)) => {
                    let token = held.token.is(&(*token).into())?;
                    let lease = held.lease.or_later(now.after(*lease_ms));
                    let lease = lease.is(&body["lease_until_ms"])?;
                    Some(self.with(Record::Held(Held { token, lease, ..held.clone() })))
                }
                ("lease_lost", _) => self.lost(*token, false, body),
                _ => None,
            },
        }
    }

    /// Rule R3, where a token is refused.
    fn lost(&self, token: u64, completes: bool, body: &Value) -> Option<Self> {
        let reason = body["reason"].as_str()?;
        let current = &body["current_token"];
        match (&self.record, reason) {
            (Record::Absent, "absent") => Some(self.clone()),
            (Record::Held(held), "stolen") => {
                let current = held.token.is(current)?;
                let held = Held { token: current, ..held.clone() };
                current.is_not(token).then(|| self.with(Record::Held(held)))
            }
            (Record::Done(done), "completed") => {
                let current = done.token.is(current)?;
                let done = Done { token: current, ..done.clone() };
                (!completes || current.is_not(token)).then(|| self.with(Record::Done(done)))
            }
            _ => None,
        }
    }

    fn got(&self, now: Span, body: &Value) -> Option<Self> {
        let is_holder = |holder: &str| body["holder"] == holder;
        match (word(body), &self.record) {
            ("absent", Record::Absent) => Some(self.clone()),
            ("in_progress", Record::Held(held)) if is_holder(&held.holder) => {
                let held = Held {
                    token: held.token.is(&body["token"])?,
                    acquired: held.acquired.is(&body["acquired_ms"])?,
                    lease: held.lease.is(&body["lease_until_ms"])?,
                    ttl: held.ttl.is(&body["ttl_until_ms"])?,
                    ..held.clone()
                };
                let left = held.lease.lo.saturating_sub(now.lo);
                (body["lease_left_ms"] == left).then(|| self.with(Record::Held(held)))
            }
            ("complete", Record::Done(done)) if is_holder(&done.holder) => {
                Some(self.with(Record::Done(done.replayed(body)?)))
            }
            _ => None,
        }
    }

    fn acquired(&self, op: &Op, now: Span, body: &Value) -> Option<Self> {
        let Op::Acquire { attempt, .. } = op else { return None };
        match (word(body), &self.record) {
            ("replay", Record::Done(done)) => Some(self.with(Record::Done(done.replayed(body)?))),
            ("in_progress", Record::Held(held)) if held.attempt != *attempt => {
                held.lease.ahead(now)?;
                let until = body["retry_after_ms"].as_u64()? + now.lo;
                let token = held.token.is(&body["token"])?;
                let lease = held.lease.is(&until.into())?;
                let is_holder = body["holder"] == held.holder.as_str();
                let held = Held { token, lease, ..held.clone() };
                is_holder.then(|| self.with(Record::Held(held)))
            }
            ("acquired", Record::Held(held)) if body["resumed"] == true => {
                let held = held.resume(op, now)?;
                let token = held.token.is(&body["token"])?;
                Some(self.with(Record::Held(Held { token, ..held }.said(body)?)))
            }
            ("acquired", record) if body["resumed"] == false => {
                match record {
                    Record::Absent => body["took_over"].is_null().then_some(())?,
                    Record::Held(held) => held.stolen(attempt, now, &body["took_over"])?,
                    Record::Done(_) => return None,
                }
                let token = body["token"].as_u64().filter(|token| *token > self.last_token)?;
                let held = Held::fresh(op, Span::exactly(token), now)?;
                Some(Self { record: Record::Held(held.said(body)?), last_token: token })
            }
            _ => None,
        }
    }

    /// All that an unknown send may have made of it, applied at some moment of `now`. What it
    /// would not have changed is not among them.
    pub(super) fn guess(&self, op: &Op, now: Span) -> Vec<Self> {
        self.seen(now).iter().filter_map(|seen| seen.applied(op, now)).collect()
    }

    fn applied(&self, op: &Op, now: Span) -> Option<Self> {
        let mine = |held: &Held, token: u64| held.token.is(&token.into());
        match (op, &self.record) {
            (Op::Acquire { .. }, Record::Absent) => self.granted(op, now),
            (Op::Acquire { attempt, .. }, Record::Held(held)) => {
                if held.attempt == *attempt {
                    return Some(self.with(Record::Held(held.resume(op, now)?)));
                }
                held.lease.passed(now)?;
                self.granted(op, now)
            }
            (Op::Complete { token, mark, ttl_ms }, Record::Held(held)) => {
                Some(self.with(Record::Done(held.complete(*token, mark, *ttl_ms, now)?)))
            }
            (Op::Release { token }, Record::Held(held)) => {
                mine(held, *token)?;
                Some(self.with(Record::Absent))
            }
            (Op::Extend { token, lease_ms }, Record::Held(held)) => {
                let token = mine(held, *token)?;
                let lease = held.lease.or_later(now.after(*lease_ms));
                Some(self.with(Record::Held(Held { token, lease, ..held.clone() })))
            }
            (Op::Acquire { .. } | Op::Get, _)
            | (
                Op::Complete { .. } | Op::Release { .. } | Op::Extend { .. },
                Record::Absent | Record::Done(_),
            ) => None,
        }
    }

    fn granted(&self, op: &Op, now: Span) -> Option<Self> {
        let last_token = self.last_token + 1;
        let held = Held::fresh(op, Span::between(last_token, u64::MAX), now)?;
        Some(Self { record: Record::Held(held), last_token })
    }
}

impl Held {
    fn fresh(op: &Op, token: Span, now: Span) -> Option<Self> {
        let Op::Acquire { attempt, mark, lease_ms, ttl_ms } = op else { return None };
        Some(Self {
            token,
            attempt: attempt.clone(),
            holder: mark.clone(),
            acquired: now,
            lease: now.after(*lease_ms),
            ttl: now.after(*ttl_ms),
            keep_ms: *ttl_ms,
        })
    }

    /// Rule R8.
    fn resume(&self, op: &Op, now: Span) -> Option<Self> {
        let Op::Acquire { attempt, lease_ms, .. } = op else { return None };
        let lease = self.lease.or_later(now.after(*lease_ms));
        (self.attempt == *attempt).then(|| Self { lease, ..self.clone() })
    }

    /// The deadlines that an acquisition says.
    fn said(self, body: &Value) -> Option<Self> {
        let lease = self.lease.is(&body["lease_until_ms"])?;
        let ttl = self.ttl.is(&body["ttl_until_ms"])?;
        Some(Self { lease, ttl, ..self })
    }

    /// Whether another attempt may steal it, and says so.
    fn stolen(&self, attempt: &str, now: Span, took_over: &Value) -> Option<()> {
        self.lease.passed(now)?;
        self.token.is(&took_over["token"])?;
        self.acquired.is(&took_over["acquired_ms"])?;
        (self.attempt != attempt && took_over["holder"] == self.holder.as_str()).then_some(())
    }

    fn complete(&self, token: u64, mark: &str, ttl_ms: Option<u64>, now: Span) -> Option<Done> {
        Some(Done {
            token: self.token.is(&token.into())?,
            holder: self.holder.clone(),
            completed: now,
            expires: now.after(ttl_ms.unwrap_or(self.keep_ms)),
            text: mark.to_owned(),
        })
    }
}

impl Done {
    /// The token and the times that an answer says.
    fn said(self, body: &Value) -> Option<Self> {
        Some(Self {
            token: self.token.is(&body["token"])?,
            completed: self.completed.is(&body["completed_ms"])?,
            expires: self.expires.is(&body["expires_ms"])?,
            ..self
        })
    }

    /// And the result.
    fn replayed(&self, body: &Value) -> Option<Self> {
        let is_result = payload_text(body).as_ref() == Some(&self.text);
        is_result.then(|| self.clone())?.said(body)
    }
}

impl Model {
    /// What it is, for whoever names a violation.
    pub(super) fn was(&self) -> super::blame::Was {
        use super::blame::Was;
        match &self.record {
            Record::Absent => Was::Absent,
            Record::Held(held) => Was::Held { token: held.token.lo },
            Record::Done(done) => Was::Done { token: done.token.lo },
        }
    }
}
