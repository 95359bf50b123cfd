//! What was sent and what came of it, in memory and as lines.
//!
//! A line is one JSON object: an invocation, or how it ended (`ok`, `fail`, `info`, as Jepsen has
//! it). A process has one send on its way at a time, and after an `info` none ever again, so the
//! two lines of a send are found by their process.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::time::Instant;

/// What a send asked of a record. Spans are milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// The mark is the holder.
    Acquire {
        /// Whose logical try.
        attempt: String,
        /// Names this send.
        mark: String,
        /// How long its holder is protected.
        lease_ms: u64,
        /// How long the record is kept.
        ttl_ms: u64,
    },
    /// The mark is the payload's text.
    Complete {
        /// The holder's.
        token: u64,
        /// Names this send.
        mark: String,
        /// How long the result is kept: the record's own ttl if not said.
        ttl_ms: Option<u64>,
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
        /// How long the holder is protected from now on.
        lease_ms: u64,
    },
    /// A linearizable read.
    Get,
}

impl Op {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Complete { .. } => "complete",
            Self::Release { .. } => "release",
            Self::Extend { .. } => "extend",
            Self::Get => "get",
        }
    }

    /// What names this send in what others see.
    #[must_use]
    pub fn mark(&self) -> Option<&str> {
        match self {
            Self::Acquire { mark, .. } | Self::Complete { mark, .. } => Some(mark),
            Self::Release { .. } | Self::Extend { .. } | Self::Get => None,
        }
    }

    /// The token that it shows.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match self {
            Self::Complete { token, .. } | Self::Release { token } | Self::Extend { token, .. } => {
                Some(*token)
            }
            Self::Acquire { .. } | Self::Get => None,
        }
    }

    /// What it asks, without name and key.
    #[must_use]
    pub fn request(&self) -> Value {
        match self {
            Self::Acquire { attempt, mark, lease_ms, ttl_ms } => json!({
                "attempt": attempt, "mark": mark, "lease_ms": lease_ms, "ttl_ms": ttl_ms
            }),
            Self::Complete { token, mark, ttl_ms } => {
                json!({ "token": token, "mark": mark, "ttl_ms": ttl_ms })
            }
            Self::Release { token } => json!({ "token": token }),
            Self::Extend { token, lease_ms } => json!({ "token": token, "lease_ms": lease_ms }),
            Self::Get => json!({}),
        }
    }

    fn read(name: &str, request: &Value) -> Option<Self> {
        let text = |field: &str| Some(request[field].as_str()?.to_owned());
        let number = |field: &str| request[field].as_u64();
        Some(match name {
            "acquire" => Self::Acquire {
                attempt: text("attempt")?,
                mark: text("mark")?,
                lease_ms: number("lease_ms")?,
                ttl_ms: number("ttl_ms")?,
            },
            "complete" => Self::Complete {
                token: number("token")?,
                mark: text("mark")?,
                ttl_ms: number("ttl_ms"),
            },
            "release" => Self::Release { token: number("token")? },
            "extend" => Self::Extend { token: number("token")?, lease_ms: number("lease_ms")? },
            "get" => Self::Get,
            _ => return None,
        })
    }
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

impl Outcome {
    /// The body of an answer.
    #[must_use]
    pub fn body(&self) -> Option<&Value> {
        match self {
            Self::Answered(body) => Some(body),
            Self::Refused(_) | Self::Unknown(_) => None,
        }
    }

    /// Whether it may have committed, or still will.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

/// One send.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Who sent it. Whoever had an unknown outcome never sends again under that number.
    pub process: u64,
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

/// One line of a history: an invocation, or how it ended.
struct Line<'a> {
    t: u64,
    /// `invoke`, `ok`, `fail` or `info`.
    kind: &'static str,
    event: &'a Event,
}

/// The lines of all sends, in the order of time.
fn lines(events: &[Event]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::with_capacity(2 * events.len());
    for event in events {
        let kind = match &event.outcome {
            // A refusal that was decided changed nothing, and says what its record looks like.
            Outcome::Answered(_) => "ok",
            Outcome::Refused(_) => "fail",
            Outcome::Unknown(_) => "info",
        };
        lines.push(Line { t: event.started, kind: "invoke", event });
        lines.push(Line { t: event.ended, kind, event });
    }
    // An end before a start of the same nanosecond: they do not overlap then.
    lines.sort_by_key(|line| (line.t, line.kind == "invoke"));
    lines
}

/// Writes a history as JSON lines.
///
/// # Errors
/// The writer's own.
pub fn write(events: &[Event], mut to: impl Write) -> io::Result<()> {
    for Line { t, kind, event } in lines(events) {
        let mut line = json!({
            "type": kind, "process": event.process, "f": event.op.name(), "key": event.key, "t": t,
        });
        match &event.outcome {
            _ if kind == "invoke" => line["request"] = event.op.request(),
            Outcome::Answered(body) => {
                line["now_ms"] = body["at"]["now_ms"].clone();
                line["index"] = body["at"]["index"].clone();
                line["answer"] = body.clone();
            }
            Outcome::Refused(why) | Outcome::Unknown(why) => line["why"] = why.as_str().into(),
        }
        writeln!(to, "{line}")?;
    }
    to.flush()
}

/// Writes a history in the form that Jepsen's own checkers read.
///
/// # Errors
/// The writer's own.
pub fn write_edn(events: &[Event], mut to: impl Write) -> io::Result<()> {
    for (index, Line { t, kind, event }) in lines(events).into_iter().enumerate() {
        let (process, f, key) = (event.process, event.op.name(), edn(&json!(event.key)));
        let value = match &event.outcome {
            _ if kind == "invoke" => event.op.request(),
            Outcome::Answered(body) => body.clone(),
            Outcome::Refused(why) | Outcome::Unknown(why) => json!({ "why": why }),
        };
        let value = edn(&value);
        writeln!(
            to,
            "{{:index {index}, :time {t}, :type :{kind}, :process {process}, :f :{f}, \
             :value [{key} {value}]}}"
        )?;
    }
    to.flush()
}

/// A JSON value as EDN: members become keywords.
fn edn(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(edn).collect::<Vec<_>>().join(" "))
        }
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| format!(":{name} {}", edn(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Reads a history that [`write()`] wrote. A send without an end may have committed.
///
/// # Errors
/// The reader's own, and a line that is none of a history, by its number.
pub fn read(from: impl BufRead) -> io::Result<Vec<Event>> {
    let mut open: BTreeMap<u64, Event> = BTreeMap::new();
    let mut events = Vec::new();
    for (number, line) in from.lines().enumerate() {
        let wrong = || {
            let what = format!("line {} is none of a history", number + 1);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let line: Value = serde_json::from_str(&line?).map_err(|_| wrong())?;
        let process = line["process"].as_u64().ok_or_else(wrong)?;
        let t = line["t"].as_u64().ok_or_else(wrong)?;
        let why = || line["why"].as_str().unwrap_or_default().to_owned();
        let outcome = match line["type"].as_str() {
            Some("invoke") => {
                let (name, key) = (line["f"].as_str(), line["key"].as_str());
                let op = Op::read(name.unwrap_or_default(), &line["request"]).ok_or_else(wrong)?;
                let key = key.ok_or_else(wrong)?.to_owned();
                let outcome = Outcome::Unknown("no end".to_owned());
                let event = Event { process, key, op, started: t, ended: u64::MAX, outcome };
                if open.insert(process, event).is_some() {
                    return Err(wrong());
                }
                continue;
            }
            Some("ok") => Outcome::Answered(line["answer"].clone()),
            Some("fail") => Outcome::Refused(why()),
            Some("info") => Outcome::Unknown(why()),
            _ => return Err(wrong()),
        };
        let event = open.remove(&process).ok_or_else(wrong)?;
        events.push(Event { ended: t, outcome, ..event });
    }
    events.extend(open.into_values());
    Ok(events)
}

/// Leaves a history as JSON lines, and says where.
///
/// # Panics
/// When it cannot be written.
#[must_use]
pub fn keep(events: &[Event]) -> PathBuf {
    let kept = tempfile::Builder::new().prefix("tenure-history-").suffix(".jsonl").tempfile();
    let (file, path) = kept.unwrap().keep().unwrap();
    write(events, io::BufWriter::new(file)).unwrap();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<Event> {
        let event = |process, op, started, ended, outcome| Event {
            process,
            key: "k".to_owned(),
            op,
            started,
            ended,
            outcome,
        };
        let body = json!({ "code": "absent", "at": { "index": 3, "now_ms": 9 } });
        vec![
            event(1, Op::Get, 0, 5, Outcome::Answered(body)),
            event(2, Op::Release { token: 7 }, 1, 6, Outcome::Refused("no_leader".to_owned())),
            event(1, Op::Extend { token: 7, lease_ms: 9 }, 6, 9, Outcome::Unknown("x".to_owned())),
        ]
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut lines = Vec::new();
        write(&events(), &mut lines).unwrap();
        assert_eq!(read(&lines[..]).unwrap(), events());
        let cut = lines.len()
            - 1
            - lines[..lines.len() - 1].iter().rev().position(|b| *b == b'\n').unwrap();
        let last = read(&lines[..cut]).unwrap().pop().unwrap();
        assert_eq!((last.ended, last.outcome.is_unknown()), (u64::MAX, true));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let error = read(&b"{\"type\":\"ok\",\"process\":1,\"t\":3}\n"[..]).unwrap_err();
        assert_eq!(error.to_string(), "line 1 is none of a history");
    }

    #[test]
    fn jepsens_own_form_has_keywords_and_nil() {
        let mut text = Vec::new();
        write_edn(&events()[..1], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let first = "{:index 0, :time 0, :type :invoke, :process 1, :f :get, :value [\"k\" {}]}";
        assert_eq!(text.lines().next(), Some(first));
        assert!(text.contains(":code \"absent\""), "{text}");
    }
}
