//! The Raft log: entries, vote and committed index on disk, with group commit.
//!
//! `append` puts entries into memory, where they can be read at once, and hands them to the one
//! writer of this log; the writer drains what has gathered into one batch, syncs it, and only then
//! reports it complete. Everything that is written goes through it, so the order on disk is the
//! order of calls.
//!
//! - **L1** Entries are contiguous: from the purged index, exclusive, to the last.
//! - **L2** A completion is reported after the sync that covers it, never before.
//! - **L3** A vote is durable when `save_vote` returns.
//! - **L4** An entry that is not durable yet is in memory.
//! - **L5** After a failed write nothing more is written.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::{Stream, StreamExt, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tenure_state_machine::seeded::{SeededBug, seeded};
use tokio::sync::{oneshot, watch};

use crate::disk::{Batch, Database, Durability, Family};
use crate::fail::FailStop;
use crate::observe::LogCounters;
use crate::open::DirLock;
use crate::types::{LogEntry, LogId, TypeConfig, Vote};
use crate::work::Workers;

mod memory;
mod stored;
mod weight;
mod writer;

use memory::{Memory, Reading};
use stored::{PURGED, VOTE, key};
use writer::{Done, Writer};

/// Most bytes that one read for replication gives, beyond its first entry.
const READ_BYTES: usize = 2 * 1024 * 1024;
/// Entries that apply reads at a time.
const APPLY_ENTRIES: u64 = 256;

/// The log of one node. Clones are the same log; dropping the last one waits for the writer.
#[derive(Debug, Clone)]
pub struct LogStore {
    shared: Arc<Shared>,
    writer: Arc<Writer>,
}

#[derive(Debug)]
struct Shared {
    db: Arc<dyn Database>,
    memory: RwLock<Memory>,
    /// The sequence number of the last write that is on disk.
    durable: watch::Sender<u64>,
    counters: LogCounters,
    fail: FailStop,
    _lock: DirLock,
}

impl LogStore {
    /// Opens the log and checks it: every key in its place, every checksum right (L1).
    pub(crate) fn open(
        db: Arc<dyn Database>,
        workers: &Workers,
        fail: FailStop,
        lock: DirLock,
    ) -> io::Result<Self> {
        let memory = Memory::load(&*db)?;
        let shared = Arc::new(Shared {
            db,
            memory: RwLock::new(memory),
            durable: watch::Sender::new(0),
            counters: LogCounters::default(),
            fail,
            _lock: lock,
        });
        let writer = Arc::new(Writer::start(workers, Arc::clone(&shared))?);
        Ok(Self { shared, writer })
    }

    /// What this log has written since it was opened.
    #[must_use]
    pub fn counters(&self) -> LogCounters {
        self.shared.counters.clone()
    }

    /// Index of the first entry that is kept, and of the last one.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        let memory = self.shared.read();
        (memory.first(), memory.last.map_or(0, |id| id.index))
    }

    /// About how many bytes the entries after `index` take, to within a few MiB.
    #[must_use]
    pub fn bytes_after(&self, index: u64) -> u64 {
        self.shared.read().weight.after(index)
    }

    /// The last entry's id, or the last purged one's.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.read().last
    }

    /// Returns once the entry at `index` is on disk, and with it whatever made place for it.
    pub(crate) async fn durable_through(&self, index: u64) -> io::Result<()> {
        let sequence = self.shared.read().pending_at(index);
        match sequence {
            Some(sequence) => self.shared.durable(sequence).await,
            None => Ok(()),
        }
    }

    /// Returns once everything that was handed to this log is on disk.
    pub(crate) async fn durable_whole(&self) -> io::Result<()> {
        let mut batch = Batch::default();
        // Something has to be written for there to be something to sync.
        batch.put(Family::Meta, stored::BARRIER, Vec::new());
        self.write_through(batch, |_| ()).await
    }

    /// Hands a write to the writer. Callers hold the memory's lock, so that the order of writes is
    /// the order of changes in memory.
    fn submit(
        &self,
        memory: &mut Memory,
        batch: Batch,
        entries: u64,
        done: Done,
    ) -> io::Result<u64> {
        self.shared.fail.check()?;
        memory.submitted += 1;
        self.writer.send(memory.submitted, entries, batch, done)?;
        Ok(memory.submitted)
    }

    /// Changes memory, and returns once the batch is on disk.
    async fn write_through(
        &self,
        batch: Batch,
        change: impl FnOnce(&mut Memory),
    ) -> io::Result<()> {
        let (reply, done) = oneshot::channel();
        {
            let mut memory = self.shared.write();
            change(&mut memory);
            self.submit(&mut memory, batch, 0, Done::Reply(reply))?;
        }
        done.await.map_err(|_| writer::stopped())?
    }
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn durable(&self, sequence: u64) -> io::Result<()> {
        let mut durable = self.durable.subscribe();
        tokio::select! {
            biased;
            reached = durable.wait_for(|durable| *durable >= sequence) => {
                reached.map(|_| ()).map_err(|_| writer::stopped())
            }
            reason = self.fail.raised() => Err(io::Error::other(reason)),
        }
    }

    /// Entries with `first <= index < end`, as many as are kept, and of those as many from the
    /// first on as fit into `limit` bytes; at least one.
    ///
    /// The disk is read without the memory's lock, or appends would wait for it; what was read
    /// counts only if nothing was truncated or purged meanwhile.
    fn entries(&self, first: u64, end: u64, limit: usize) -> io::Result<Vec<LogEntry>> {
        loop {
            let (cuts, mut reading, tail, stored) = {
                let memory = self.read();
                let (stored, tail) = memory.plan(first, end, limit);
                (memory.cuts, Reading::new(limit), tail, stored)
            };
            if stored.is_empty() {
                return Ok(tail);
            }
            let read = stored::read(&*self.db, stored, &mut reading);
            if self.read().cuts == cuts {
                self.fail.guard("the log could not be read", read)?;
                reading.extend(tail);
                return Ok(reading.into_entries());
            }
        }
    }
}

/// A range of indexes as its first, inclusive, and its end, exclusive.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let first = match range.start_bound() {
        Bound::Included(first) => *first,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (first, end)
}

/// Entries from `first` on, none where the first one is not that: who goes on from there must not
/// skip what was purged.
fn from_first(first: u64, entries: Vec<LogEntry>) -> Vec<LogEntry> {
    if entries.first().is_some_and(|entry| entry.index() != first) { Vec::new() } else { entries }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<LogEntry>> {
        let (first, end) = bounds(&range);
        self.shared.entries(first, end, usize::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.read().vote)
    }

    /// Nothing when `start` was purged: the follower needs a snapshot, and an entry that does not
    /// follow its last one would leave a hole in its log.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        Ok(from_first(start, self.shared.entries(start, end, READ_BYTES)?))
    }

    /// In chunks. An error when the first entry was purged: apply must not skip it.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (first, end) = bounds(&range);
        let shared = Arc::clone(&self.shared);
        let chunks = stream::unfold(Some(first), move |first| {
            let chunk = first.filter(|first| *first < end).map(|first| {
                let stop = end.min(first.saturating_add(APPLY_ENTRIES));
                match shared.entries(first, stop, READ_BYTES) {
                    Ok(entries) if entries.first().is_some_and(|entry| entry.index() > first) => {
                        let purged =
                            stored::damaged("log entry", format_args!("{first} is purged"));
                        (stream::iter(vec![Err(purged)]), None)
                    }
                    Ok(entries) => {
                        let next = entries.last().map(|last| last.index() + 1);
                        (stream::iter(entries.into_iter().map(Ok).collect::<Vec<_>>()), next)
                    }
                    Err(error) => (stream::iter(vec![Err(error)]), None),
                }
            });
            std::future::ready(chunk)
        });
        chunks.flatten()
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let memory = self.shared.read();
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: memory.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.put(Family::Meta, VOTE, stored::seal(vote)?);
        if seeded(SeededBug::VoteNotFsynced) {
            self.shared.write().vote = Some(*vote);
            let written = self.shared.db.write(batch, Durability::Buffered);
            return self.shared.fail.guard("the log could not be written", written);
        }
        self.write_through(batch, |memory| memory.vote = Some(*vote)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.shared.fail.check()?;
        committed.into_iter().for_each(|id| self.shared.write().commit(id));
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.read().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let mut batch = Batch::default();
        for entry in &entries {
            let sealed = self.shared.fail.guard("an entry has no encoding", stored::seal(entry))?;
            batch.put(Family::Logs, key(entry.index()), sealed);
        }
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let mut memory = self.shared.write();
        let follows = memory.check_follows(&entries);
        self.shared.fail.guard("the log may not be written", follows)?;
        let sequence = self.submit(&mut memory, batch, count, Done::Append(flushed))?;
        memory.append(sequence, entries);
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        let mut batch = Batch::default();
        batch.delete_range(Family::Logs, key(from), key(u64::MAX));
        self.write_through(batch, |memory| memory.truncate_after(last)).await
    }

    /// Beyond the last entry too: the next one must then follow `upto`.
    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        if self.shared.read().purged.is_some_and(|purged| purged.index >= upto.index) {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put(Family::Meta, PURGED, stored::seal(&upto)?);
        batch.delete_range(Family::Logs, key(0), key(upto.index + 1));
        self.write_through(batch, |memory| memory.purge(upto)).await
    }
}
