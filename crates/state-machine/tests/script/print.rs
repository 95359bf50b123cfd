//! Answers, records and states as text. Optional parts are left out where there is nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tenure_state_machine::{
    Answer, Completion, Counters, Invalid, LeaseLost, MemoryStore, Name, Payload, Record, Replay,
    State, time, visible,
};

/// One line an answer, with its slot if `numbered`.
pub(crate) fn answers(answers: &[Answer], numbered: bool) -> String {
    let line = |(slot, each)| {
        if numbered { format!("{slot}: {}", answer(each)) } else { answer(each) }
    };
    answers.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Acquired { token, lease_until_ms, ttl_until_ms, resumed, took_over } => {
            let mut text = format!(
                "acquired token={token} lease_until={lease_until_ms} ttl_until={ttl_until_ms}"
            );
            if *resumed {
                text.push_str(" resumed");
            }
            if let Some(old) = took_over {
                let (token, holder, acquired_ms) =
                    (old.token, old.holder.as_str(), old.acquired_ms);
                _ = write!(
                    text,
                    " took_over token={token} holder={holder:?} acquired={acquired_ms}"
                );
            }
            text
        }
        Answer::Replay(Replay { token, payload, completed_ms, expires_ms }) => format!(
            "replay token={token} completed={completed_ms} expires={expires_ms} payload={}",
            self::payload(payload.as_deref())
        ),
        Answer::InProgress { retry_after_ms, holder, token, fingerprint_differs } => {
            let differs = if *fingerprint_differs { " fingerprint_differs" } else { "" };
            let holder = holder.as_str();
            format!(
                "in_progress token={token} holder={holder:?} retry_after={retry_after_ms}{differs}"
            )
        }
        Answer::FingerprintMismatch { stored, received } => {
            let (stored, received) = (stored.as_str(), received.as_str());
            format!("fingerprint_mismatch stored={stored} received={received}")
        }
        Answer::Completed(done) => completion("completed", done),
        Answer::AlreadyComplete(done) => completion("already_complete", done),
        Answer::Released => "released".to_owned(),
        Answer::Extended { token, lease_until_ms } => {
            format!("extended token={token} lease_until={lease_until_ms}")
        }
        Answer::LeaseLost(LeaseLost::Absent) => "lease_lost absent".to_owned(),
        Answer::LeaseLost(LeaseLost::Stolen { current_token }) => {
            format!("lease_lost stolen current_token={current_token}")
        }
        Answer::LeaseLost(LeaseLost::Completed { current_token }) => {
            format!("lease_lost completed current_token={current_token}")
        }
        Answer::Purged { deleted, more } => format!("purged deleted={deleted} more={more}"),
        Answer::TooLate => "too_late".to_owned(),
    }
}

fn completion(outcome: &str, done: &Completion) -> String {
    let Completion { token, completed_ms, expires_ms } = done;
    format!("{outcome} token={token} completed={completed_ms} expires={expires_ms}")
}

/// A refusal before the log.
pub(crate) fn invalid(invalid: &Invalid) -> String {
    match invalid {
        Invalid::Argument { .. } => format!("invalid_argument {invalid}"),
        Invalid::PayloadTooLarge { limit, size } => {
            format!("payload_too_large limit={limit} size={size}")
        }
    }
}

/// What a get answers.
pub(crate) fn read(record: Option<&Record>, clock_ms: u64) -> String {
    let Some(record) = visible(record, clock_ms) else { return "absent".to_owned() };
    let mut text = self::record(record);
    if let State::InProgress { lease_until_ms, .. } = &record.state {
        _ = write!(text, " lease_left={}", time::left(*lease_until_ms, clock_ms));
    }
    text
}

fn record(record: &Record) -> String {
    let (token, holder) = (record.token, record.holder.as_str());
    let mut text = match &record.state {
        State::InProgress { lease_until_ms, ttl_until_ms, .. } => format!(
            "in_progress token={token} holder={holder:?} acquired={} lease_until={lease_until_ms} \
             ttl_until={ttl_until_ms}",
            record.acquired_ms
        ),
        State::Complete { completed_ms, expires_ms, payload } => format!(
            "complete token={token} holder={holder:?} completed={completed_ms} \
             expires={expires_ms} payload={}",
            self::payload(payload.as_deref())
        ),
    };
    if let Some(fingerprint) = &record.fingerprint {
        _ = write!(text, " fingerprint={}", fingerprint.as_str());
    }
    text
}

/// The whole state: what is stored, purgeable or not.
pub(crate) fn state(counters: Counters, store: &MemoryStore) -> String {
    let mut text = format!("clock {}, last token {}", counters.clock_ms, counters.last_token);
    for (name, record) in store.records() {
        _ = write!(text, "\n{}: {}", full(name), self::record(record));
        if let State::InProgress { attempt, ttl_ms, .. } = &record.state {
            _ = write!(text, " attempt={} ttl={ttl_ms}", attempt.as_str());
        }
    }
    for (deadline_ms, name) in store.deadlines() {
        _ = write!(text, "\ndeadline {deadline_ms}: {}", full(name));
    }
    text
}

fn full(name: &Name) -> String {
    format!("{}/{}", name.scope(), name.key())
}

fn payload(payload: Option<&Payload>) -> String {
    let Some(payload) = payload else { return "none".to_owned() };
    let mut text = body(payload.body());
    if let Some(kind) = payload.kind() {
        _ = write!(text, " type={kind:?}");
    }
    let attributes: &BTreeMap<String, String> = payload.attributes();
    for (name, value) in attributes {
        _ = write!(text, " {name:?}={value:?}");
    }
    text
}

/// A long run of one byte in the form in which scripts write it.
fn body(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.chars().collect::<BTreeSet<_>>().first() {
        Some(one) if text.len() > 64 && text.chars().all(|c| c == *one) => {
            format!("\"{{{one}*{}}}\"", text.len())
        }
        _ => format!("{text:?}"),
    }
}
