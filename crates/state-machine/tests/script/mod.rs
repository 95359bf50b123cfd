//! The script language: a state machine driven by lines of text, with its answers as text.
//!
//! A line is an action, or `at STAMP` and an action. The stamp is the entry's; without one, the
//! clock stays. `at STAMP` alone is a tick. Times and deadlines are milliseconds of cluster time.
//!
//! What a caller could not send is answered as it would be before the log: the clock stays, too.

mod print;

use std::collections::BTreeMap;
use std::error::Error;
use std::str::FromStr;

use tenure_state_machine::{
    Acquire, Answer, Attempt, Command, Complete, Counters, Entry, Extend, Fingerprint, Holder,
    Invalid, MemoryStore, Name, Payload, Purge, Release, Store, Token, apply, command, snapshot,
};

/// One line of a script.
#[derive(Debug)]
pub(crate) struct Line {
    stamp_ms: Option<u64>,
    action: Action,
}

/// What a line does. `NAME` is scope/key, split at the first slash.
#[derive(Debug, goldenscript::Command)]
enum Action {
    /// Moves the clock, no more. `at 5000` means the same.
    Tick,
    /// `acquire NAME attempt=a [holder=h] [lease=5s] [ttl=1d] [fingerprint=0123456789abcdef]
    /// [not_after=1000]`
    Acquire {
        name: Text,
        #[arg(key)]
        attempt: Text,
        #[arg(key)]
        holder: Option<Text>,
        #[arg(key)]
        lease: Option<Span>,
        #[arg(key)]
        ttl: Option<Span>,
        #[arg(key)]
        fingerprint: Option<Text>,
        #[arg(key)]
        not_after: Option<u64>,
    },
    /// `complete NAME token=1 [ttl=1d] [text=sent] [type=text/plain] [attributes="a=1,b=2"]
    /// [not_after=1000]`. Without text, type and attributes there is no payload; `text=""` is an
    /// empty one.
    Complete {
        name: Text,
        #[arg(key)]
        token: u64,
        #[arg(key)]
        ttl: Option<Span>,
        #[arg(key)]
        text: Option<Text>,
        #[arg(key = "type")]
        kind: Option<Text>,
        #[arg(key)]
        attributes: Option<Text>,
        #[arg(key)]
        not_after: Option<u64>,
    },
    /// `release NAME token=1 [not_after=1000]`
    Release {
        name: Text,
        #[arg(key)]
        token: u64,
        #[arg(key)]
        not_after: Option<u64>,
    },
    /// `extend NAME token=1 lease=5s [not_after=1000]`
    Extend {
        name: Text,
        #[arg(key)]
        token: u64,
        #[arg(key)]
        lease: Span,
        #[arg(key)]
        not_after: Option<u64>,
    },
    /// `purge [limit=10] [not_after=1000]`
    Purge {
        #[arg(key)]
        limit: Option<u64>,
        #[arg(key)]
        not_after: Option<u64>,
    },
    /// Opens an entry: the commands up to `apply` go into it together.
    Entry,
    /// Applies the entry that `entry` opened; the answers come with their slots.
    Apply,
    /// Reads a record: `get NAME`.
    Get { name: Text },
    /// Prints the clock, the last token, all records and the deadline index.
    State,
    /// Encodes the state, drops it and restores it.
    Snapshot,
    /// Prints the hash of the logical snapshot.
    Hash,
}

/// A text in which `{x*100}` stands for a hundred times `x`.
#[derive(Debug)]
struct Text(String);

/// A span: `250ms`, `5s`, `24h`, `3650d`, or a plain number of milliseconds.
#[derive(Debug)]
struct Span(u64);

/// The state machine that a script drives.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    counters: Counters,
    store: MemoryStore,
    /// Between `entry` and `apply`.
    open: Option<Entry>,
}

impl TryFrom<&goldenscript::Command> for Line {
    type Error = Box<dyn Error>;

    fn try_from(line: &goldenscript::Command) -> Result<Self, Self::Error> {
        let mut line = line.clone();
        if line.name != "at" {
            return Ok(Self { stamp_ms: None, action: Action::try_from(&line)? });
        }
        let mut words = line.consume_args();
        let stamp_ms = words.next_pos().ok_or("at: a stamp is missing")?.parse()?;
        let name = words.next_pos().unwrap_or("tick").to_owned();
        line.args = words.cloned().collect();
        line.name = name;
        Ok(Self { stamp_ms: Some(stamp_ms), action: Action::try_from(&line)? })
    }
}

impl goldenscript::Runner for Machine {
    type Command = Line;

    fn run(
        &mut self,
        line: &Line,
        _context: &goldenscript::Context,
    ) -> Result<String, Box<dyn Error>> {
        match command(&line.action) {
            Some(Ok(command)) => self.send(line.stamp_ms, command),
            Some(Err(invalid)) => Ok(print::invalid(&invalid)),
            None => self.look(line.stamp_ms, &line.action),
        }
    }

    fn end_script(&mut self) -> Result<(), Box<dyn Error>> {
        if self.open.is_some() { Err("the last entry was not applied".into()) } else { Ok(()) }
    }
}

impl Machine {
    /// Puts a command into the open entry, or applies it as an entry of its own.
    fn send(&mut self, stamp_ms: Option<u64>, command: Command) -> Result<String, Box<dyn Error>> {
        match (&mut self.open, stamp_ms) {
            (None, _) => {
                Ok(print::answers(&self.entry(stamp_ms.unwrap_or(0), vec![command])?, false))
            }
            (Some(entry), None) => {
                entry.commands.push(command);
                Ok(String::new())
            }
            (Some(_), Some(_)) => Err("the open entry has its stamp".into()),
        }
    }

    /// All actions but the commands.
    fn look(&mut self, stamp_ms: Option<u64>, action: &Action) -> Result<String, Box<dyn Error>> {
        if let Action::Apply = action {
            let entry = self.open.take().ok_or("no entry is open")?;
            return Ok(print::answers(&self.entry(entry.stamp_ms, entry.commands)?, true));
        }
        if self.open.is_some() {
            return Err("an entry is open".into());
        }
        let stamp_ms = stamp_ms.unwrap_or(0);
        if let Action::Entry = action {
            self.open = Some(Entry { stamp_ms, commands: Vec::new() });
            return Ok(String::new());
        }
        self.entry(stamp_ms, Vec::new())?;
        let (counters, store) = (self.counters, &self.store);
        match action {
            Action::Tick => Ok(format!("clock {}", counters.clock_ms)),
            Action::Get { name } => {
                let Ok(record) = store.get(&self::name(name)?);
                Ok(print::read(record.as_deref(), counters.clock_ms))
            }
            Action::State => Ok(print::state(counters, store)),
            Action::Snapshot => {
                (self.counters, self.store) = restored(counters, store)?;
                Ok("restored".to_owned())
            }
            Action::Hash => {
                let hash = snapshot::hash(|sink| snapshot::write(counters, store, sink))?;
                Ok(hash)
            }
            Action::Acquire { .. }
            | Action::Complete { .. }
            | Action::Release { .. }
            | Action::Extend { .. }
            | Action::Purge { .. }
            | Action::Entry
            | Action::Apply => Err(format!("{action:?} was done above").into()),
        }
    }

    /// Applies an entry, and checks what must hold after any entry (I9, I10).
    fn entry(
        &mut self,
        stamp_ms: u64,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, Box<dyn Error>> {
        let entry = Entry { stamp_ms, commands };
        let Ok(done) = apply(&mut self.counters, &mut self.store, &entry);
        let (counters, store) = restored(self.counters, &self.store)?;
        if (counters, &store) != (self.counters, &self.store) {
            return Err("I9: a restored snapshot differs from what was written".into());
        }
        Ok(done.answers)
    }
}

fn restored(
    counters: Counters,
    store: &MemoryStore,
) -> Result<(Counters, MemoryStore), Box<dyn Error>> {
    let mut bytes = Vec::new();
    snapshot::write(counters, store, |chunk| bytes.extend_from_slice(chunk))?;
    Ok(snapshot::restore(&bytes)?)
}

/// The command of an action, checked as a request's would be; none for a look.
fn command(action: &Action) -> Option<Result<Command, Invalid>> {
    let command = match action {
        Action::Acquire { name, attempt, holder, lease, ttl, fingerprint, not_after } => {
            acquire(name, attempt, holder, lease, ttl, fingerprint, *not_after)
        }
        Action::Complete { name, token, ttl, text, kind, attributes, not_after } => {
            complete(name, *token, ttl, text, kind, attributes, *not_after)
        }
        Action::Release { name, token, not_after } => release(name, *token, *not_after),
        Action::Extend { name, token, lease, not_after } => extend(name, *token, lease, *not_after),
        Action::Purge { limit, not_after } => command::purge_limit(*limit)
            .map(|limit| Command::Purge(Purge { limit, not_after_ms: *not_after })),
        Action::Tick
        | Action::Entry
        | Action::Apply
        | Action::Get { .. }
        | Action::State
        | Action::Snapshot
        | Action::Hash => return None,
    };
    Some(command)
}

fn acquire(
    name: &Text,
    attempt: &Text,
    holder: &Option<Text>,
    lease: &Option<Span>,
    ttl: &Option<Span>,
    fingerprint: &Option<Text>,
    not_after_ms: Option<u64>,
) -> Result<Command, Invalid> {
    Ok(Command::Acquire(Acquire {
        name: self::name(name)?,
        attempt: Attempt::new(&*attempt.0)?,
        holder: Holder::new(holder.as_ref().map_or("", |text| &text.0))?,
        lease_ms: command::lease_ms(lease.as_ref().map(|span| span.0))?,
        ttl_ms: command::ttl_ms(ttl.as_ref().map(|span| span.0))?,
        fingerprint: fingerprint.as_ref().map(|text| Fingerprint::new(&*text.0)).transpose()?,
        not_after_ms,
    }))
}

fn complete(
    name: &Text,
    token: u64,
    ttl: &Option<Span>,
    text: &Option<Text>,
    kind: &Option<Text>,
    attributes: &Option<Text>,
    not_after_ms: Option<u64>,
) -> Result<Command, Invalid> {
    let string = |text: &Option<Text>| text.as_ref().map(|text| text.0.clone());
    let pair = |pair: &str| pair.split_once('=').map_or((pair.into(), String::new()), both);
    let payload = if text.is_none() && kind.is_none() && attributes.is_none() {
        None
    } else {
        let attributes = string(attributes)
            .map(|pairs| pairs.split(',').map(pair).collect::<BTreeMap<_, _>>())
            .unwrap_or_default();
        let body = string(text).unwrap_or_default().into_bytes();
        Some(Payload::new(string(kind), body, attributes)?.into())
    };
    Ok(Command::Complete(Complete {
        name: self::name(name)?,
        token: Token::new(token)?,
        ttl_ms: ttl.as_ref().map(|span| command::ttl_ms(Some(span.0))).transpose()?,
        payload,
        not_after_ms,
    }))
}

fn both((name, value): (&str, &str)) -> (String, String) {
    (name.into(), value.into())
}

fn release(name: &Text, token: u64, not_after_ms: Option<u64>) -> Result<Command, Invalid> {
    Ok(Command::Release(Release {
        name: self::name(name)?,
        token: Token::new(token)?,
        not_after_ms,
    }))
}

fn extend(
    name: &Text,
    token: u64,
    lease: &Span,
    not_after_ms: Option<u64>,
) -> Result<Command, Invalid> {
    Ok(Command::Extend(Extend {
        name: self::name(name)?,
        token: Token::new(token)?,
        lease_ms: command::lease_ms(Some(lease.0))?,
        not_after_ms,
    }))
}

fn name(text: &Text) -> Result<Name, Invalid> {
    let (scope, key) = text.0.split_once('/').unwrap_or((&text.0, ""));
    Name::new(scope, key)
}

impl FromStr for Text {
    type Err = Box<dyn Error>;

    fn from_str(mut rest: &str) -> Result<Self, Self::Err> {
        let mut text = String::new();
        while let Some((before, after)) = rest.split_once('{') {
            let (times, after) = after.split_once('}').ok_or("a brace is open")?;
            let (what, times) = times.rsplit_once('*').ok_or("{text*times} is meant")?;
            text.push_str(before);
            text.push_str(&what.repeat(times.parse()?));
            rest = after;
        }
        text.push_str(rest);
        Ok(Self(text))
    }
}

impl FromStr for Span {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit_ms: u64 = match text.strip_prefix(digits) {
            Some("" | "ms") => 1,
            Some("s") => 1000,
            Some("h") => 60 * 60 * 1000,
            Some("d") => 24 * 60 * 60 * 1000,
            _ => return Err(format!("{text} is no span").into()),
        };
        Ok(Self(digits.parse::<u64>()?.checked_mul(unit_ms).ok_or("too long")?))
    }
}
