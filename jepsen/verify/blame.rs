//! What to call a violation: read off the impossible answer and what had been seen before it.

use serde_json::Value;

use crate::check::payload_text;
use crate::history::{Event, Op, Outcome};

/// What a violation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An answer from a state that had been left before it was asked for.
    StaleRead,
    /// A record was granted while somebody held it.
    DoubleGrant,
    /// A lease was stolen before its end.
    EarlySteal,
    /// A token was given twice, or does not grow.
    TokenReuse,
    /// An acknowledged completion is gone before its ttl.
    LostComplete,
    /// An acknowledged grant is gone before its end.
    LostGrant,
    /// A write was accepted from who held nothing.
    LateWrite,
    /// A send was refused, and took effect.
    RefusedCommitted,
    /// A released record is held again by the token that released it.
    ResurrectedRelease,
    /// Two entries, times or terms at one place of the log.
    TornLog,
    /// An answer that nothing explains.
    WrongAnswer,
}

impl Kind {
    /// Its name in verdicts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StaleRead => "stale read",
            Self::DoubleGrant => "double grant",
            Self::EarlySteal => "early steal",
            Self::TokenReuse => "token reuse",
            Self::LostComplete => "lost complete",
            Self::LostGrant => "lost grant",
            Self::LateWrite => "late write accepted",
            Self::RefusedCommitted => "refused, and committed",
            Self::ResurrectedRelease => "resurrected release",
            Self::TornLog => "torn log",
            Self::WrongAnswer => "wrong answer",
        }
    }
}

/// What a checker held for possible just before the impossible answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Was {
    Absent,
    Held { token: u64 },
    Done { token: u64 },
}

/// The token that an answer shows as a record's own, or had given.
fn shown_token(body: &Value) -> Option<u64> {
    body["token"].as_u64().or_else(|| body["current_token"].as_u64())
}

fn word(body: &Value) -> &str {
    let word = |field: &str| body[field].as_str().filter(|word| *word != "refused");
    word("outcome").or_else(|| word("state")).or_else(|| word("code")).unwrap_or_default()
}

/// Whether an answer shows the record complete.
fn shows_done(body: &Value) -> bool {
    ["replay", "complete", "completed", "already_complete"].contains(&word(body))
        || body["reason"] == "completed"
}

fn shows_nothing(body: &Value) -> bool {
    word(body) == "absent" || body["reason"] == "absent"
}

/// Names the violation of a key whose sends are `events`, where `wrong` was answered though the
/// record was one of `was`.
pub(super) fn name(events: &[&Event], wrong: &Event, was: &[Was]) -> Kind {
    let Some(body) = wrong.outcome.body() else { return Kind::WrongAnswer };
    let token = shown_token(body);
    if shows_a_refused_mark(events, body) {
        return Kind::RefusedCommitted;
    }
    let before = |event: &&&Event| event.ended < wrong.started;
    let answers_before = || events.iter().filter(before).filter_map(|event| event.outcome.body());
    let now_ms = |body: &Value| body["at"]["now_ms"].as_u64();
    if answers_before().any(|before| now_ms(before) > now_ms(body)) {
        return Kind::StaleRead;
    }
    let released = |token: Option<u64>| {
        events.iter().filter(before).any(|event| {
            let Op::Release { token: given } = event.op else { return false };
            Some(given) == token
                && event.outcome.body().is_some_and(|body| body["outcome"] == "released")
        })
    };
    let held = was.iter().any(|was| matches!(was, Was::Held { .. }));
    let done = was.iter().any(|was| matches!(was, Was::Done { .. }));
    // Somebody who asked later still sees what this answer lacks.
    let seen_later = events.iter().any(|event| {
        let shows = event.outcome.body().is_some_and(|body| {
            was.iter().any(|was| match was {
                Was::Absent => shows_nothing(body),
                Was::Held { token } => shown_token(body) == Some(*token),
                Was::Done { token } => shown_token(body) == Some(*token) && shows_done(body),
            })
        });
        shows && event.started > wrong.ended
    });
    let is_write = ["completed", "extended", "released"].contains(&word(body));
    if word(body) == "acquired" && body["resumed"] == false {
        let given = answers_before()
            .filter(|body| body["outcome"] == "acquired")
            .any(|body| body["token"].as_u64() >= token);
        return match (given, held, done) {
            (true, ..) => Kind::TokenReuse,
            (_, true, _) if body["took_over"].is_null() => Kind::DoubleGrant,
            (_, true, _) => Kind::EarlySteal,
            (_, _, true) => Kind::LostComplete,
            _ => Kind::WrongAnswer,
        };
    }
    if is_write {
        let asked = wrong.op.token();
        let owns = |was: &Was| matches!(was, Was::Held { token } if Some(*token) == asked);
        return if was.iter().any(owns) { Kind::WrongAnswer } else { Kind::LateWrite };
    }
    if released(token) && token.is_some() && !shows_done(body) {
        return Kind::ResurrectedRelease;
    }
    let newest = was.iter().filter_map(|was| match was {
        Was::Absent => None,
        Was::Held { token } | Was::Done { token } => Some(*token),
    });
    let is_older = token.is_some() && token < newest.max();
    match (done, held) {
        _ if is_older || seen_later => Kind::StaleRead,
        (true, _) if !shows_done(body) => Kind::LostComplete,
        (_, true) if shows_nothing(body) => Kind::LostGrant,
        _ => Kind::WrongAnswer,
    }
}

fn shows_a_refused_mark(events: &[&Event], body: &Value) -> bool {
    let shown = [body["holder"].as_str(), body["took_over"]["holder"].as_str()];
    let payload = payload_text(body);
    events.iter().filter(|event| matches!(event.outcome, Outcome::Refused(_))).any(|event| {
        let mark = event.op.mark();
        mark.is_some() && (shown.contains(&mark) || payload.as_deref() == mark)
    })
}
