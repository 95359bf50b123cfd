//! The logical snapshot: the state as bytes that are equal wherever the state is (I7).
//!
//! A stream of sealed chunks: the counters, one chunk a record in the order of names; then an
//! empty chunk and the number of records, sealed. Each chunk is preceded by its length (u32, little-endian). A node's physical
//! snapshots are storage's affair; this form is what hashes and `replay` speak of.

use std::convert::Infallible;

use sha2::{Digest, Sha256};

use crate::apply::Counters;
use crate::codec::{self, DecodeError, EncodeError};
use crate::name::Name;
use crate::record::Record;
use crate::store::{MemoryStore, Store};

/// The version of the form, in every chunk's seal.
const VERSION: u8 = 1;

/// Bytes that are no logical snapshot of this version.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The bytes end before the snapshot does, or go on after it.
    #[error("the snapshot is cut short or has a tail")]
    Length,
    /// Names are not in strictly rising order.
    #[error("the snapshot's records are out of order")]
    Order,
    /// Records are missing, or there are more than were written.
    #[error("the snapshot has {found} records, {written} were written")]
    Count {
        /// How many there are.
        found: u64,
        /// How many there should be.
        written: u64,
    },
    /// A record has a token that was not given yet.
    #[error("the snapshot's last token is smaller than the token of a record")]
    Token,
    /// A chunk is damaged or of another version.
    #[error(transparent)]
    Chunk(#[from] DecodeError),
}

/// Feeds a logical snapshot to `sink`, chunk by chunk.
#[derive(Debug)]
pub struct Writer<F> {
    sink: F,
    records: u64,
}

impl<F: FnMut(&[u8])> Writer<F> {
    /// Starts with the counters.
    ///
    /// # Errors
    /// [`EncodeError`], for a value beyond its limits.
    pub fn new(counters: Counters, sink: F) -> Result<Self, EncodeError> {
        let mut writer = Self { sink, records: 0 };
        writer.chunk(&codec::seal(VERSION, &counters)?);
        Ok(writer)
    }

    /// Adds a record. Records come in the order of their names.
    ///
    /// # Errors
    /// [`EncodeError`], for a value beyond its limits.
    pub fn record(&mut self, name: &Name, record: &Record) -> Result<(), EncodeError> {
        self.chunk(&codec::seal(VERSION, &(name, record))?);
        self.records += 1;
        Ok(())
    }

    /// Ends the snapshot.
    ///
    /// # Errors
    /// [`EncodeError`], for a value beyond its limits.
    pub fn finish(mut self) -> Result<(), EncodeError> {
        self.chunk(&[]);
        self.chunk(&codec::seal(VERSION, &self.records)?);
        Ok(())
    }

    fn chunk(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        (self.sink)(&length.to_le_bytes());
        (self.sink)(bytes);
    }
}

/// The hash of what `write` feeds to the sink it is given, in hex: equal hash, equal state.
///
/// # Errors
/// Those of `write`.
pub fn hash<E>(write: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<(), E>) -> Result<String, E> {
    let mut hasher = Sha256::new();
    write(&mut |bytes| hasher.update(bytes))?;
    Ok(hex(&hasher.finalize()))
}

/// SHA-256 of some bytes, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the whole state in memory to `sink`.
///
/// # Errors
/// [`EncodeError`], for a value beyond its limits.
pub fn write(
    counters: Counters,
    store: &MemoryStore,
    sink: impl FnMut(&[u8]),
) -> Result<(), EncodeError> {
    let mut writer = Writer::new(counters, sink)?;
    for (name, record) in store.records() {
        writer.record(name, record)?;
    }
    writer.finish()
}

/// Reads a snapshot back.
///
/// # Errors
/// [`RestoreError`], for bytes that [`write()`] did not make. A fingerprint in upper case is none of
/// these, and read in lower case.
pub fn restore(bytes: &[u8]) -> Result<(Counters, MemoryStore), RestoreError> {
    let (header, mut rest) = chunk(bytes)?;
    let counters: Counters = codec::unseal(VERSION, header)?;
    let mut store = MemoryStore::default();
    let mut last: Option<Name> = None;
    let mut found = 0;
    loop {
        let (bytes, tail) = chunk(rest)?;
        rest = tail;
        if bytes.is_empty() {
            break;
        }
        let (name, record): (Name, Record) = codec::unseal(VERSION, bytes)?;
        if last.as_ref().is_some_and(|last| *last >= name) {
            return Err(RestoreError::Order);
        }
        if record.token.get() > counters.last_token {
            return Err(RestoreError::Token);
        }
        let Ok(()): Result<(), Infallible> = store.replace(&name, None, Some(record));
        last = Some(name);
        found += 1;
    }
    let (end, tail) = chunk(rest)?;
    let written = codec::unseal(VERSION, end)?;
    if found != written {
        return Err(RestoreError::Count { found, written });
    }
    if tail.is_empty() { Ok((counters, store)) } else { Err(RestoreError::Length) }
}

fn chunk(bytes: &[u8]) -> Result<(&[u8], &[u8]), RestoreError> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(RestoreError::Length)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    rest.split_at_checked(length).ok_or(RestoreError::Length)
}
