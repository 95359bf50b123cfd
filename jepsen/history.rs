//! What was sent and what came of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::time::Instant;

/// What a send asked of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// The mark is the holder.
    Acquire {
        /// Whose logical try.
        attempt: String,
        /// Names this send.
        mark: String,
    },
    /// The mark is the payload's text.
    Complete {
        /// The holder's.
        token: u64,
        /// Names this send.
        mark: String,
    },
    /// Gives the record up.
    Release {
        /// The holder's.
        token: u64,
    },
    /// Sends a heartbeat.
    Extend {
        /// The holder's.
        token: u64,
    },
    /// A linearizable read.
    Get,
}

/// What a caller may conclude.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Decided by the log or by a linearizable read: the body, which has an `at`.
    Answered(Value),
    /// Nothing changed, and nothing will: why.
    Refused(String),
    /// It may have committed, or still will: why.
    Unknown(String),
}

/// One send.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Which record of the run's scope.
    pub key: String,
    /// What.
    pub op: Op,
    /// When it was sent, in nanoseconds of the run.
    pub started: u64,
    /// When its outcome was known, in nanoseconds of the run.
    pub ended: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// All sends of a run.
#[derive(Debug)]
pub struct History {
    origin: Instant,
    events: Mutex<Vec<Event>>,
}

impl Default for History {
    fn default() -> Self {
        Self { origin: Instant::now(), events: Mutex::default() }
    }
}

impl History {
    /// Nanoseconds of the run.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adds a send.
    ///
    /// # Panics
    /// When another writer panicked.
    pub fn add(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    /// All sends so far.
    ///
    /// # Panics
    /// When a writer panicked.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

/// Leaves a history as JSON lines, and says where.
///
/// # Panics
/// When it cannot be written.
#[must_use]
pub fn keep(events: &[Event]) -> PathBuf {
    let (mut file, path) = tempfile::Builder::new()
        .prefix("tenure-history-")
        .suffix(".jsonl")
        .tempfile()
        .unwrap()
        .keep()
        .unwrap();
    for event in events {
        writeln!(file, "{}", line(event)).unwrap();
    }
    path
}

fn line(event: &Event) -> Value {
    let (f, request) = match &event.op {
        Op::Acquire { attempt, mark } => ("acquire", json!({ "attempt": attempt, "mark": mark })),
        Op::Complete { token, mark } => ("complete", json!({ "token": token, "mark": mark })),
        Op::Release { token } => ("release", json!({ "token": token })),
        Op::Extend { token } => ("extend", json!({ "token": token })),
        Op::Get => ("get", json!({})),
    };
    let (kind, answer) = match &event.outcome {
        Outcome::Answered(body) => ("ok", body.clone()),
        Outcome::Refused(why) => ("fail", json!({ "why": why })),
        Outcome::Unknown(why) => ("info", json!({ "why": why })),
    };
    json!({
        "f": f, "key": event.key, "t": event.started, "ended": event.ended,
        "request": request, "type": kind, "answer": answer,
    })
}
