//! The log's form on disk.

use std::io;
use std::ops::{ControlFlow, Range};

use openraft::entry::RaftEntry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_state_machine::codec;
use tenure_state_machine::seeded::{SeededBug, seeded};

use crate::disk::{Database, Family};
use crate::types::{LogEntry, LogId};

use super::memory::Reading;

/// The format of sealed values in the log database.
const VERSION: u8 = 1;

pub(super) const VOTE: &[u8] = b"vote";
pub(super) const PURGED: &[u8] = b"purged";
pub(super) const COMMITTED: &[u8] = b"committed";
/// Means nothing.
pub(super) const BARRIER: &[u8] = b"barrier";

pub(super) fn key(index: u64) -> Vec<u8> {
    index.to_be_bytes().to_vec()
}

pub(super) fn damaged(what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {error}"))
}

pub(super) fn seal<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    codec::seal(VERSION, value).map_err(io::Error::other)
}

pub(super) fn read_meta<T: DeserializeOwned>(
    db: &dyn Database,
    name: &[u8],
) -> io::Result<Option<T>> {
    let stored = db.get(Family::Meta, name)?;
    let what = || format!("the log's {}", String::from_utf8_lossy(name));
    stored
        .map(|bytes| codec::unseal(VERSION, &bytes).map_err(|error| damaged(&what(), error)))
        .transpose()
}

fn unseal_entry(index: u64, bytes: &[u8]) -> io::Result<LogEntry> {
    let entry: LogEntry = codec::unseal(VERSION, bytes)
        .map_err(|error| damaged(&format!("log entry {index}"), error))?;
    if entry.index() == index {
        Ok(entry)
    } else {
        Err(damaged(&format!("log entry {index}"), format_args!("it says {}", entry.index())))
    }
}

/// Is shown an index and the sealed entry, and says whether to go on.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<ControlFlow<()>>;

/// Visits the stored entries from `first` on, each of which must follow the one before (L1).
fn scan(db: &dyn Database, first: u64, visit: Visit<'_>) -> io::Result<()> {
    let mut next = first;
    let mut failed = None;
    db.scan(Family::Logs, &key(first), &mut |key, value| {
        let index = key.try_into().map_or(u64::MAX, u64::from_be_bytes);
        let visited = if index == next || seeded(SeededBug::HoleSkipped) {
            next = index + 1;
            visit(index, value)
        } else {
            Err(damaged("the log", format_args!("entry {next} is missing, {index} is there")))
        };
        visited.unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        })
    })?;
    failed.map_or(Ok(()), Err)
}

/// Reads entries until there is no room for more; an error if one of them is missing.
pub(super) fn read(
    db: &dyn Database,
    indexes: Range<u64>,
    reading: &mut Reading,
) -> io::Result<()> {
    let mut next = indexes.start;
    let mut full = false;
    scan(db, indexes.start, &mut |index, value| {
        if index >= indexes.end {
            return Ok(ControlFlow::Break(()));
        }
        full = !reading.take(unseal_entry(index, value)?);
        next = index + 1;
        Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if full || next == indexes.end {
        Ok(())
    } else {
        Err(damaged("the log", format_args!("entries {next} to {} are missing", indexes.end - 1)))
    }
}

/// Reads the whole log once, and shows every entry.
pub(super) fn check(
    db: &dyn Database,
    purged: Option<LogId>,
    show: &mut dyn FnMut(&LogEntry),
) -> io::Result<()> {
    scan(db, purged.map_or(0, |purged| purged.index + 1), &mut |index, value| {
        show(&unseal_entry(index, value)?);
        Ok(ControlFlow::Continue(()))
    })
}
