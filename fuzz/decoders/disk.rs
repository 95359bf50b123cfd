//! What lies on a disk, and what is on its way to one. A checksum stands before all of it; here
//! it is made to fit, so that what stands behind it is looked at too.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tenure_state_machine::{Entry, Name, Record, codec, snapshot, visible};
use tenure_storage::{Chunk, Disk, LogEntry, SimulatedDisk, SnapshotMeta, Storage, open};

use crate::frames::decoded;

/// The version in front of everything that is sealed.
const VERSION: u8 = 1;

/// Bytes of version and checksum.
const SEAL: usize = 5;

/// Puts version and checksum before a body.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The bodies of a whole snapshot's chunks.
fn bodies(mut snapshot: &[u8]) -> Vec<&[u8]> {
    let mut bodies = Vec::new();
    while let Some((length, rest)) = snapshot.split_first_chunk::<4>() {
        let (chunk, tail) = rest.split_at(usize::try_from(u32::from_le_bytes(*length)).unwrap());
        bodies.push(chunk.get(SEAL..).unwrap_or_default());
        snapshot = tail;
    }
    bodies
}

/// An entry of the log, with and without what openraft puts around it.
pub(crate) fn log_entry(bytes: &[u8]) -> bool {
    let _damaged = codec::unseal::<LogEntry>(VERSION, bytes);
    let sealed = sealed(bytes);
    let entry = codec::unseal::<LogEntry>(VERSION, &sealed).ok();
    assert_eq!(entry.is_some(), decoded::<LogEntry>(bytes).is_some(), "a seal makes a difference");
    decoded::<Entry>(bytes).is_some() || entry.is_some()
}

/// A record and its name.
pub(crate) fn record(bytes: &[u8]) -> bool {
    let Some((name, record)) = decoded::<(Name, Record)>(bytes) else { return false };
    assert_eq!(Name::from_stored(name.as_stored()).unwrap(), name);
    let deadline_ms = record.deadline_ms();
    assert_eq!(visible(Some(&record), deadline_ms), None, "R2");
    let before = deadline_ms.checked_sub(1);
    assert!(before.is_none_or(|before| visible(Some(&record), before).is_some()), "R2");
    true
}

/// Bodies of chunks, each after its length: two bytes, little-endian. A snapshot that is restored
/// is written as it was, but for digits of a fingerprint, which come back in lower case (R9) as a
/// state machine writes them; and then as it was.
pub(crate) fn logical_snapshot(bytes: &[u8]) -> bool {
    let _damaged = snapshot::restore(bytes);
    let mut rest = bytes;
    let mut whole = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(tail.len());
        let (body, tail) = tail.split_at(length);
        let chunk = if body.is_empty() { Vec::new() } else { sealed(body) };
        whole.extend_from_slice(&u32::try_from(chunk.len()).unwrap().to_le_bytes());
        whole.extend_from_slice(&chunk);
        rest = tail;
    }
    let Ok((counters, store)) = snapshot::restore(&whole) else { return false };
    let written = |counters, store| {
        let mut bytes = Vec::new();
        snapshot::write(counters, store, |chunk| bytes.extend_from_slice(chunk)).unwrap();
        bytes
    };
    let first = written(counters, &store);
    let (was, is) = (bodies(&whole), bodies(&first));
    assert_eq!(was.len(), is.len(), "I7, I9");
    for (was, is) in was.iter().zip(is) {
        assert!(was.eq_ignore_ascii_case(is), "I7, I9: {was:?}, {is:?}");
    }
    let (counters, store) = snapshot::restore(&first).unwrap();
    assert_eq!(written(counters, &store), first, "I7, I9");
    true
}

/// A snapshot on its way: its files in pieces, then what it is said to cover.
#[derive(Debug, Serialize, Deserialize)]
pub struct Chunks {
    /// File, offset, bytes.
    pub chunks: Vec<(String, u64, Vec<u8>)>,
    /// The last message.
    pub meta: SnapshotMeta,
}

/// A node takes in a snapshot. Whatever comes, it goes on, and keeps nothing of what it refused.
pub(crate) fn received_snapshot(bytes: &[u8]) -> bool {
    thread_local! {
        static NODE: (SimulatedDisk, Storage) = {
            let simulated = SimulatedDisk::default();
            let disk = Disk::simulated(&simulated);
            let storage = open(&disk, Path::new("node"), 1, Some("fuzz")).unwrap();
            (simulated, storage)
        };
    }
    let Ok(Chunks { chunks, meta }) = codec::decode(bytes) else { return false };
    NODE.with(|(_, Storage { state, fail, .. })| {
        let mut receiver = state.receive_snapshot().unwrap();
        let mut is_whole = true;
        for (file, offset, bytes) in chunks {
            let checksum = crc32c::crc32c(&bytes);
            let chunk = Chunk { file, offset, bytes, checksum };
            is_whole &= receiver.add(&chunk).is_ok();
            let damaged = Chunk { checksum: checksum ^ 1, ..chunk };
            assert!(receiver.add(&damaged).is_err(), "a damaged chunk is taken");
        }
        let finished = state.finish_received(receiver, &meta);
        assert_eq!(fail.reason(), None, "a bad snapshot stops the node");
        let Ok(snapshot) = finished else { return false };
        assert_eq!(snapshot.index(), meta.last_log_id.map_or(0, |id| id.index), "S1");
        // Hashing it reads all of it.
        let _hash = state.hash(&snapshot);
        is_whole
    })
}
