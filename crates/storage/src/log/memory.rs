//! What a log keeps in memory: its bounds, and its tail.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use openraft::entry::RaftEntry;

use crate::disk::Database;
use crate::types::{LogEntry, LogId, Vote, command_bytes};

use super::stored;
use super::weight::Weight;

/// Entries kept in memory once they are durable, for followers that are a little behind.
const CACHED_ENTRIES: usize = 32 * 1024;
/// Bytes of entries kept in memory once they are durable.
const CACHED_BYTES: usize = 64 * 1024 * 1024;

/// What was handed to the log, durable or not.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    /// Committed ids that are not on disk, each with the last write handed over before it: with
    /// that it may go there, for it may be of an entry in it.
    commits: VecDeque<(u64, LogId)>,
    pub(super) purged: Option<LogId>,
    /// The last entry's id; the purged one when there is no entry.
    pub(super) last: Option<LogId>,
    /// Truncations and purges so far.
    pub(super) cuts: u64,
    /// The sequence number of the last write handed to the writer.
    pub(super) submitted: u64,
    /// The tail of the log, contiguous up to `last` (L4).
    tail: VecDeque<Cached>,
    tail_bytes: usize,
    pub(super) weight: Weight,
    /// Appends that may not be durable yet, oldest first.
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Cached {
    entry: LogEntry,
    bytes: usize,
}

/// An append on its way to disk: its sequence number, and its first and last index.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    first: u64,
    last: u64,
}

impl Memory {
    /// Reads the whole log once (L1).
    pub(super) fn load(db: &dyn Database) -> io::Result<Self> {
        let purged = stored::read_meta(db, stored::PURGED)?;
        let (mut last, mut weight) = (purged, Weight::default());
        stored::check(db, purged, &mut |entry| {
            last = Some(entry.log_id());
            weight.add(entry.index(), size(entry));
        })?;
        Ok(Self {
            vote: stored::read_meta(db, stored::VOTE)?,
            committed: stored::read_meta(db, stored::COMMITTED)?,
            purged,
            last,
            weight,
            ..Self::default()
        })
    }

    /// The index of the first entry that is kept, or would be.
    pub(super) fn first(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index + 1)
    }

    /// The index of the next entry.
    fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.index + 1)
    }

    /// The last write that holds the entry at `index`, if it may not be durable yet.
    pub(super) fn pending_at(&self, index: u64) -> Option<u64> {
        let mut pending = self.pending.iter().rev();
        let found = pending.find(|pending| (pending.first..=pending.last).contains(&index));
        found.map(|pending| pending.sequence)
    }

    /// Where entries with `first <= index < end` are: indexes to read from disk, and those after
    /// them, which are in memory.
    pub(super) fn plan(&self, first: u64, end: u64, limit: usize) -> (Range<u64>, Vec<LogEntry>) {
        let (first, end) = (first.max(self.first()), end.min(self.next()));
        let cached = self.tail.front().map_or(self.next(), |cached| cached.entry.index());
        let skip = usize::try_from(first.saturating_sub(cached)).unwrap_or(usize::MAX);
        let mut reading = Reading::new(limit);
        let tail = self.tail.iter().skip(skip).map(|cached| &cached.entry);
        reading.extend(tail.take_while(|entry| entry.index() < end).cloned());
        (first..end.min(cached), reading.into_entries())
    }

    /// L1: the entries follow the last one, and each other.
    pub(super) fn check_follows(&self, entries: &[LogEntry]) -> io::Result<()> {
        for (next, entry) in (self.next()..).zip(entries) {
            if entry.index() != next {
                let index = entry.index();
                return Err(stored::damaged("L1", format_args!("{index} instead of {next}")));
            }
        }
        Ok(())
    }

    pub(super) fn append(&mut self, sequence: u64, entries: Vec<LogEntry>) {
        let first = self.next();
        for entry in entries {
            self.last = Some(entry.log_id());
            let bytes = size(&entry);
            self.tail_bytes += bytes;
            self.weight.add(entry.index(), bytes);
            self.tail.push_back(Cached { entry, bytes });
        }
        if let Some(last) = self.last.filter(|last| last.index >= first) {
            self.pending.push_back(Pending { sequence, first, last: last.index });
        }
    }

    /// Nothing happens when there is no entry after `last`. What is purged stays purged.
    pub(super) fn truncate_after(&mut self, last: Option<LogId>) {
        let keep = last.map_or(0, |last| last.index + 1).max(self.first());
        if keep >= self.next() {
            return;
        }
        self.cuts += 1;
        self.weight.truncate(keep);
        while self.tail.back().is_some_and(|cached| cached.entry.index() >= keep) {
            if let Some(cached) = self.tail.pop_back() {
                self.tail_bytes -= cached.bytes;
            }
        }
        self.last = if keep == self.first() { self.purged } else { last };
    }

    pub(super) fn purge(&mut self, upto: LogId) {
        self.cuts += 1;
        self.weight.purge(upto.index);
        while self.tail.front().is_some_and(|cached| cached.entry.index() <= upto.index) {
            self.pop_front();
        }
        if self.next() <= upto.index {
            self.last = Some(upto);
        }
        self.purged = Some(upto);
    }

    pub(super) fn commit(&mut self, committed: LogId) {
        self.committed = Some(committed);
        if self.commits.back().is_some_and(|(sequence, _)| *sequence == self.submitted) {
            self.commits.pop_back();
        }
        self.commits.push_back((self.submitted, committed));
    }

    /// The last committed id that may go to disk with the writes through `sequence`, if it is new.
    pub(super) fn take_committed(&mut self, sequence: u64) -> Option<LogId> {
        let reached = self.commits.partition_point(|(after, _)| *after <= sequence);
        self.commits.drain(..reached).next_back().map(|(_, committed)| committed)
    }

    /// Lets go of what is on disk through `sequence`, and of the head of a tail that is too long.
    pub(super) fn forget(&mut self, sequence: u64) {
        while self.pending.front().is_some_and(|pending| pending.sequence <= sequence) {
            self.pending.pop_front();
        }
        // A truncation may have put a later append before an earlier one.
        let undurable = self.pending.iter().map(|pending| pending.first).min();
        let keep_from = undurable.unwrap_or(u64::MAX);
        while self.tail.len() > CACHED_ENTRIES || self.tail_bytes > CACHED_BYTES {
            match self.tail.front() {
                Some(front) if front.entry.index() < keep_from => self.pop_front(),
                _ => return,
            }
        }
    }

    fn pop_front(&mut self) {
        if let Some(cached) = self.tail.pop_front() {
            self.tail_bytes -= cached.bytes;
        }
    }
}

/// Entries that are gathered up to a limit of bytes; the first one always fits.
pub(super) struct Reading {
    entries: Vec<LogEntry>,
    bytes: usize,
    limit: usize,
    full: bool,
}

impl Reading {
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: Vec::new(), bytes: 0, limit, full: false }
    }

    /// Takes the entry, or says that there is no room for it nor for any after it.
    pub(super) fn take(&mut self, entry: LogEntry) -> bool {
        self.bytes = self.bytes.saturating_add(size(&entry));
        self.full |= self.bytes > self.limit && !self.entries.is_empty();
        if !self.full {
            self.entries.push(entry);
        }
        !self.full
    }

    pub(super) fn extend(&mut self, entries: impl IntoIterator<Item = LogEntry>) {
        if !self.full {
            entries.into_iter().all(|entry| self.take(entry));
        }
    }

    pub(super) fn into_entries(self) -> Vec<LogEntry> {
        self.entries
    }
}

/// About how much memory an entry takes.
fn size(entry: &LogEntry) -> usize {
    128 + command_bytes(entry)
}

#[cfg(test)]
mod tests {
    use openraft::alias::LeaderIdOf;
    use openraft::vote::RaftLeaderIdExt;

    use super::*;
    use crate::types::TypeConfig;

    fn blanks(indexes: Range<u64>) -> Vec<LogEntry> {
        let leader = LeaderIdOf::<TypeConfig>::new_committed(1, 1);
        indexes.map(|index| LogEntry::new_blank(LogId::new(leader, index))).collect()
    }

    #[test]
    fn the_tail_is_bounded_but_keeps_what_is_not_durable() {
        let mut memory = Memory::default();
        let most = u64::try_from(CACHED_ENTRIES).unwrap();
        memory.append(1, blanks(0..most));
        memory.append(2, blanks(most..most + 1000));
        assert_eq!(memory.tail.len(), CACHED_ENTRIES + 1000, "L4: nothing is durable");
        memory.forget(1);
        assert_eq!(memory.tail.len(), CACHED_ENTRIES);
        memory.append(3, blanks(most + 1000..3 * most));
        memory.forget(2);
        let kept = memory.tail.front().map(|cached| cached.entry.index());
        assert_eq!(kept, Some(most + 1000), "L4: the third append is not durable");
        memory.forget(3);
        assert_eq!(memory.tail.len(), CACHED_ENTRIES);
        assert_eq!(memory.tail_bytes, memory.tail.iter().map(|cached| cached.bytes).sum());
    }

    #[test]
    fn after_a_truncation_the_earlier_of_two_places_counts() {
        let mut memory = Memory::default();
        memory.append(1, blanks(0..10));
        memory.truncate_after(blanks(4..5).first().map(RaftEntry::log_id));
        memory.append(3, blanks(5..7));
        assert_eq!((memory.pending_at(4), memory.pending_at(6)), (Some(1), Some(3)));
        assert_eq!(memory.tail.len(), 7);
        memory.forget(3);
        assert_eq!((memory.pending_at(4), memory.pending_at(6)), (None, None));
    }

    #[test]
    fn a_reading_is_as_long_as_its_limit_and_at_least_one_entry() {
        let mut reading = Reading::new(300);
        reading.extend(blanks(0..9));
        assert_eq!(reading.into_entries().len(), 2);
        let mut reading = Reading::new(0);
        reading.extend(blanks(0..9));
        assert!(!reading.take(blanks(9..10).remove(0)), "there is a gap before it");
        assert_eq!(reading.into_entries().len(), 1);
    }
}
