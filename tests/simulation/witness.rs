//! What must hold after each step, seen from above all nodes.
//!
//! - **X1** A term has one leader (Raft, 5.2).
//! - **X2** What one node has applied, all do, at the same index (Raft, 5.4).
//! - **X3** A node's state is that of the log up to what it has applied: clock, term, and every
//!   record, held against the pure state machine that is fed the same log.
//! - **X4** Applied index and cluster clock of a running node never go back.
//! - **X5** Cluster time never leads real time by more than clocks run too fast.
//! - **X6** An answer of the log names an entry that was committed, then and ever after.
//! - **X7** No lease is stolen before its time has passed in real time, by the fastest clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use openraft::entry::RaftEntry as _;
use openraft::{EntryPayload, RaftLogReader as _};
use tenure_api::{ClusterStatus, NodeRole};
use tenure_jepsen::history::{Event, Op, Outcome};
use tenure_jepsen::verify::floors::Seen;
use tenure_state_machine::{Command, Counters, MemoryStore, Name, Record, Store as _, apply};
use tenure_storage::{Applied, LogEntry, StateStore};

use crate::clock::BIRTH_MS;
use crate::seat::{Running, Seat};

/// Records of a node that are looked at in one step.
const LOOKED_AT: usize = 4;
/// What rounding may add to a span of time, in milliseconds.
const ROUNDING_MS: u64 = 5;

/// A record at the indexes where it changed.
type Versions = Vec<(u64, Option<Arc<Record>>)>;

/// What is known of all nodes together.
pub(crate) struct Witness {
    /// Seconds that the fastest clock shows for a real one.
    fastest: f64,
    /// The committed log.
    log: Vec<LogEntry>,
    /// The cluster clock after each entry.
    clocks: Vec<u64>,
    counters: Counters,
    store: MemoryStore,
    names: Vec<Name>,
    versions: BTreeMap<Name, Versions>,
    leaders: BTreeMap<u64, u64>,
    looks: BTreeMap<u64, Look>,
    /// Who leads from now on.
    pub(crate) news: Vec<String>,
    pub(crate) seen: Seen,
    pub(crate) wrong: Vec<String>,
}

/// What was last seen of a running node.
#[derive(Default)]
struct Look {
    /// Its log is compared up to here, exclusive.
    compared: u64,
    applied: Applied,
    /// The next record to look at.
    next: usize,
    built: u64,
    installed: u64,
}

impl Witness {
    pub(crate) fn new(fastest: f64) -> Self {
        Self {
            fastest,
            log: Vec::new(),
            clocks: Vec::new(),
            counters: Counters::default(),
            store: MemoryStore::default(),
            names: Vec::new(),
            versions: BTreeMap::new(),
            leaders: BTreeMap::new(),
            looks: BTreeMap::new(),
            news: Vec::new(),
            seen: Seen::default(),
            wrong: Vec::new(),
        }
    }

    /// The node has ended; what it has in memory may go back.
    pub(crate) fn ended(&mut self, id: u64) {
        self.looks.remove(&id);
    }

    /// How many entries are known to be committed.
    pub(crate) fn committed(&self) -> usize {
        self.log.len()
    }

    /// Looks at every running node.
    pub(crate) fn step(&mut self, seats: &BTreeMap<u64, Arc<Seat>>, elapsed: Duration) {
        for (id, seat) in seats {
            let Some(running) = seat.running() else { continue };
            let status = running.node.upgrade().map(|node| node.status());
            let mut look = self.looks.remove(id).unwrap_or_default();
            let looked = self.look(*id, &running, status.as_ref(), &mut look, elapsed);
            self.looks.insert(*id, look);
            if let Err(wrong) = looked {
                self.wrong.push(format!("node {id}: {wrong}"));
            }
        }
    }

    fn look(
        &mut self,
        id: u64,
        running: &Running,
        status: Option<&ClusterStatus>,
        look: &mut Look,
        elapsed: Duration,
    ) -> Result<(), String> {
        self.count_snapshots(&running.state, look);
        let applied = running.state.applied();
        if let Some(ClusterStatus { role: NodeRole::Leader, term, .. }) = status {
            let leader = *self.leaders.entry(*term).or_insert_with(|| {
                self.news.push(format!("node {id} leads in term {term}"));
                id
            });
            holds(leader == id, || format!("X1: {leader} leads in term {term} too"))?;
        }
        self.compare_log(running, applied, look)?;
        let before = look.applied;
        look.applied = applied;
        holds(before.index <= applied.index && before.clock_ms <= applied.clock_ms, || {
            format!("X4: {before:?} came before {applied:?}")
        })?;
        self.check_applied(applied, elapsed)?;
        if before != applied {
            self.check_records(&running.state, LOOKED_AT, look)?;
        }
        Ok(())
    }

    /// X2: the node's log up to what it has applied is everybody's.
    ///
    /// While a snapshot is taken in, there may be entries below it that were never committed. The
    /// log has the entry that was applied last only where it has all before it too (Log Matching,
    /// Raft, 5.3).
    fn compare_log(
        &mut self,
        running: &Running,
        applied: Applied,
        look: &mut Look,
    ) -> Result<(), String> {
        if applied.index < look.compared || applied.index == 0 {
            return Ok(());
        }
        let range = look.compared..applied.index + 1;
        let read = running.log.clone().try_get_log_entries(range).now_or_never();
        // A disk that fails is the node's own affair.
        let Some(Ok(entries)) = read else { return Ok(()) };
        let matches = entries.last().is_some_and(|last| {
            let term = last.log_id().committed_leader_id().term;
            (last.index(), term) == (applied.index, applied.term)
        });
        if !matches {
            // Only what a snapshot brought is applied before it is in the log, or purged from it.
            let covers = running.state.current_snapshot().map_or(0, |snapshot| snapshot.index());
            let missing = || format!("X2: {applied:?}, and its log does not have that entry");
            return holds(applied.index <= covers, missing);
        }
        for entry in entries {
            let index = entry.index();
            let at = usize::try_from(index).unwrap_or(usize::MAX);
            match self.log.get(at) {
                Some(known) => holds(*known == entry, || {
                    format!("X2: {known:?} was committed, and the node has {entry:?}")
                })?,
                None if at == self.log.len() => self.extend(entry),
                None => return Err(format!("X2: {index} is committed, nobody saw what is before")),
            }
        }
        look.compared = applied.index + 1;
        Ok(())
    }

    /// Feeds the reference with the next committed entry.
    fn extend(&mut self, entry: LogEntry) {
        let index = entry.index();
        if let EntryPayload::Normal(normal) = &entry.payload {
            let applied = apply(&mut self.counters, &mut self.store, normal);
            applied.unwrap_or_else(|never| match never {});
            let purges = normal.commands.iter().any(|c| matches!(c, Command::Purge(_)));
            let mut touched: Vec<Name> = normal.commands.iter().filter_map(name_of).collect();
            if purges {
                touched.extend(self.names.iter().cloned());
            }
            touched.into_iter().for_each(|name| self.remember(name, index));
        }
        self.clocks.push(self.counters.clock_ms);
        self.log.push(entry);
    }

    fn remember(&mut self, name: Name, index: u64) {
        let now = self.store.get(&name).unwrap_or_else(|never| match never {});
        let versions = self.versions.entry(name.clone()).or_default();
        if versions.is_empty() {
            self.names.push(name);
        }
        if versions.last().is_none_or(|(_, last)| *last != now) {
            versions.push((index, now));
        }
    }

    /// X3 and X5, of what a node says that it has applied.
    fn check_applied(&self, applied: Applied, elapsed: Duration) -> Result<(), String> {
        if applied == Applied::default() {
            return Ok(());
        }
        let at = usize::try_from(applied.index).unwrap_or(usize::MAX);
        let Some((entry, clock_ms)) = self.log.get(at).zip(self.clocks.get(at)) else {
            return Err(format!("X3: {applied:?}, and nobody saw that entry"));
        };
        let term = entry.log_id().committed_leader_id().term;
        holds((applied.term, applied.clock_ms) == (term, *clock_ms), || {
            format!("X3: {applied:?}, and the log says term {term}, clock {clock_ms}")
        })?;
        let most = BIRTH_MS + ms(elapsed.mul_f64(self.fastest)) + ROUNDING_MS;
        holds(applied.clock_ms <= most, || format!("X5: {} after {elapsed:?}", applied.clock_ms))
    }

    /// X3, of the next few records.
    fn check_records(
        &self,
        state: &StateStore,
        count: usize,
        look: &mut Look,
    ) -> Result<(), String> {
        for _ in 0..count.min(self.names.len()) {
            look.next = (look.next + 1) % self.names.len();
            let name = &self.names[look.next];
            let Ok((record, at)) = state.read(name) else { return Ok(()) };
            let versions = &self.versions[name];
            let changed = versions.partition_point(|(index, _)| *index <= at.index);
            let expected = changed.checked_sub(1).and_then(|last| versions[last].1.clone());
            holds(record == expected, || {
                format!("X3: at {at:?} {} is {record:?}, not {expected:?}", name.key())
            })?;
        }
        Ok(())
    }

    /// X3, of all records of a node.
    pub(crate) fn check_all(&mut self, id: u64, state: &StateStore) {
        let checked = self.check_records(state, self.names.len(), &mut Look::default());
        if let Err(wrong) = checked {
            self.wrong.push(format!("node {id}: {wrong}"));
        }
    }

    fn count_snapshots(&mut self, state: &StateStore, look: &mut Look) {
        let counters = state.counters();
        let (built, installed) =
            (counters.snapshots_built.get(), counters.snapshots_installed.get());
        self.seen.count("snapshots built", built - look.built);
        self.seen.count("snapshots installed", installed - look.installed);
        (look.built, look.installed) = (built, installed);
    }

    /// X6 and X7, of the clients' history.
    pub(crate) fn check_history(&mut self, events: &[Event]) {
        for event in events {
            let Outcome::Answered(body) = &event.outcome else { continue };
            let at = &body["at"];
            let index = at["index"].as_u64().and_then(|index| usize::try_from(index).ok());
            let committed = index.and_then(|index| self.log.get(index));
            let term = committed.map(|entry| entry.log_id().committed_leader_id().term);
            if term != at["term"].as_u64() {
                self.wrong.push(format!("X6: committed in {term:?}: {event:?}"));
            }
        }
        let early = stolen_early(events, self.fastest);
        self.wrong.extend(early);
        self.seen.count("terms with a leader", self.leaders.len() as u64);
    }
}

/// X7: whoever acquired or extended a lease and was told so had it, from when he asked.
fn stolen_early(events: &[Event], fastest: f64) -> Vec<String> {
    let mut leases: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for event in events {
        let Outcome::Answered(body) = &event.outcome else { continue };
        let lease_ms = match (&event.op, body["outcome"].as_str()) {
            (Op::Acquire { lease_ms, .. }, Some("acquired")) => *lease_ms,
            (Op::Extend { lease_ms, .. }, Some("extended")) => *lease_ms,
            _ => continue,
        };
        let Some(token) = body["token"].as_u64() else { continue };
        let ns = Duration::from_millis(lease_ms.saturating_sub(ROUNDING_MS)).div_f64(fastest);
        let until = event.started + u64::try_from(ns.as_nanos()).unwrap_or(u64::MAX);
        leases.entry(token).or_default().push((event.started, until));
    }
    let mut found = Vec::new();
    for event in events {
        let Outcome::Answered(body) = &event.outcome else { continue };
        let Some(stolen) = body["took_over"]["token"].as_u64() else { continue };
        for (from, until) in leases.get(&stolen).into_iter().flatten() {
            if *until > event.ended {
                found.push(format!("X7: held from {from} to {until}, stolen by {event:?}"));
            }
        }
    }
    found
}

fn holds(is_so: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(wrong()) }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn name_of(command: &Command) -> Option<Name> {
    match command {
        Command::Acquire(acquire) => Some(acquire.name.clone()),
        Command::Complete(complete) => Some(complete.name.clone()),
        Command::Release(release) => Some(release.name.clone()),
        Command::Extend(extend) => Some(extend.name.clone()),
        Command::Purge(_) => None,
    }
}
