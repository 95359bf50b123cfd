//! The log and the state of a node on disk: the only crate that names RocksDB or touches files.
//!
//! A node keeps two databases. The *log* is written ahead and synced, many appends at once, and
//! nothing is acknowledged before its sync; the *state* is not written ahead at all, because what a
//! crash takes of it comes again from the log. Changes gather in memory, where apply and reads find
//! them, and are written behind that, a generation at a time. Each batch carries the log id up to
//! which it goes, so a crash leaves an exact prefix, and the state waits for the log, so that
//! prefix is always one that the log still has. Snapshots are copies of the state's table files.
//!
//! [`open()`] gives a [`Storage`]: a [`LogStore`] and a [`StateStore`], which are openraft's storage
//! traits, the [`SeenVoters`], and a [`FailStop`] that is raised when the disk cannot be trusted.
//! The disk itself is a seam: [`Disk::real`] is RocksDB, [`SimulatedDisk`] is memory that knows what
//! a power cut would take.
//!
//! # Example
//!
//! A node appends an entry, acknowledges it, loses power before it applied anything to a durable
//! state, and comes back with the entry:
//!
//! ```
//! use std::{path::Path, sync::Arc};
//!
//! use openraft::RaftLogReader;
//! use openraft::alias::LeaderIdOf;
//! use openraft::storage::{IOFlushed, RaftLogStorage};
//! use openraft::type_config::TypeConfigExt;
//! use openraft::vote::RaftLeaderIdExt;
//! use tenure_state_machine::Entry;
//! use tenure_storage::*;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let simulated = SimulatedDisk::default();
//! let disk = Disk::simulated(&simulated);
//! let storage = open(&disk, Path::new("node-1"), 1, Some("example"))?;
//!
//! let log_id = LogId::new(LeaderIdOf::<TypeConfig>::new_committed(1, 1), 0);
//! let tick = Arc::new(Entry { stamp_ms: 1000, commands: vec![] });
//! let entry = LogEntry { log_id, payload: openraft::EntryPayload::Normal(tick) };
//! let (done, flushed) = TypeConfig::oneshot();
//! storage.log.clone().append([entry.clone()], IOFlushed::signal(done)).await?;
//! flushed.await??; // Now it is on disk, and may be acknowledged.
//!
//! drop(storage);
//! simulated.power_cut();
//! let storage = open(&disk, Path::new("node-1"), 1, None)?;
//! assert_eq!(storage.log.clone().try_get_log_entries(0..10).await?, [entry]);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! Checked where they can break, and by the tests that kill a node at every write of its life.
//!
//! The log ([`LogStore`]):
//!
//! - **L1** Entries are contiguous: from the purged index, exclusive, to the last.
//! - **L2** A completion is reported after the sync that covers it, never before.
//! - **L3** A vote is durable when `save_vote` returns.
//! - **L4** An entry that is not durable yet is in memory.
//! - **L5** After a failed write nothing more is written, by any part of the node.
//!
//! The state ([`StateStore`]):
//!
//! - **A1** The state is written behind, one batch a generation, which holds all changes since the
//!   one before it and `applied`: the state on disk is always that of an exact prefix of the log.
//! - **A2** The state on disk is never ahead of the log on disk.
//! - **A3** Record, log id and clock of one read come from one version.
//! - **A4** Who waits is told of a step after it can be read and before its answers go out.
//! - **A5** An installed snapshot replaces records, log id and clock together.
//!
//! Snapshots ([`Snapshot`], [`Receiver`]):
//!
//! - **S1** What a snapshot covers is read from the checkpoint itself.
//! - **S2** A snapshot has its name only once all of it is durable, and one that was received only
//!   once it is being installed.
//! - **S3** A snapshot that is being streamed stays, whatever replaced it.
//!
//! # What is durable when
//!
//! | when | then |
//! |---|---|
//! | `append` has returned | the entries are readable, in memory; nothing is durable |
//! | `io_completed(Ok)` was called | the entries are durable, and all that was handed over before |
//! | `save_vote`, `truncate_after` or `purge` has returned | it is durable, and all before it |
//! | `save_committed` has returned | nothing; it is durable with the next sync |
//! | [`SeenVoters::insert`] has returned | the voter is remembered for ever |
//! | `apply` has returned | the log is durable through the last entry; the state is in memory, and may be flushed at any moment, always a prefix |
//! | `build_snapshot` has returned | the snapshot is durable, and so is the state up to it |
//! | [`StateStore::finish_received`] has returned | the files are durable, but a restart removes them |
//! | `install_snapshot` has returned | snapshot and state are durable; the log may be purged up to it |
//! | [`FailStop`] is raised | what was acknowledged; nothing is written any more |
//!
//! # Kill points
//!
//! The moments at which a crash finds something half done, and what the next start makes of it.
//! `src/tests/kill.rs` kills a node at each of them.
//!
//! | the crash comes after | the next start |
//! |---|---|
//! | *group written*, before its sync | finds any part of the group, from its first entry on; nobody was told |
//! | *group synced*, before it is reported | finds all of it |
//! | *generation written* | finds the state of an earlier one, and the entries after it in the log |
//! | *checkpoint made*, *checkpoint synced* | removes it: it has no name |
//! | *snapshot named*, before the older one is removed | takes the newer, removes the older unread, whole or not |
//! | *chunk received*, *received snapshot synced* | removes it: openraft may not have made place for it in the log |
//! | *received snapshot named*, *copy made* | finds a snapshot that is newer than the state, and installs it again |
//! | *generation renamed*, before the older one is removed | has the new state, removes the older; openraft purges the log up to it |
//! | *purge written*, before its sync | finds the log purged or not; the snapshot covers it |
//! | *leftovers removed*, at a start | goes on with that |
//!
//! # Formats
//!
//! A data directory holds `log/`, `state/<generation>/` and `snapshots/<index>-<term>-<number>/`.
//! Every value is sealed with a version and a checksum, and the directory has a format number that
//! an older build refuses ([`OpenError::NewerFormat`]). `tests/fixtures/v1` must open for ever.
//!
//! The state's tables hold names and small records. A record with a result lies in a *blob file*
//! beside them, where compactions of tables leave it: with ten million records they would rewrite
//! each result ten times.
//!
//! # Caveats
//!
//! - A disk that reports a sync that it did not make loses acknowledged entries. When the state was
//!   flushed past them, the next start says so and refuses; else nobody on this node can know.
//! - RocksDB takes the end of its written-ahead log for a torn write when a record's *length* is
//!   damaged so that it points beyond the end of the file. Any other damage is refused.
//! - A start reads and checks the whole log: some seconds for a large one.
//! - Tables of the state are checked when they are read, not at the start. Damage in a cold record
//!   is found by whoever reads it, compacts it or hashes a snapshot; the node then stops.
//! - A damaged node is not repaired from its peers. Remove it, and join with a new id.
//! - Reading a page of records, or what is due, first writes what has gathered.
//! - A page of records that nobody read lately costs a disk read for each: they lie in the order in
//!   which they were written, not in that of their names.

#![warn(missing_docs)]

mod disk;
mod fail;
mod log;
mod observe;
mod open;
#[cfg(feature = "rocksdb")]
mod rocks;
mod simulated;
mod snapshot;
mod state;
#[cfg(test)]
#[cfg(feature = "rocksdb")]
mod tests;
mod txn;
mod types;
mod work;

pub use fail::FailStop;
pub use log::LogStore;
pub use observe::{Changes, LogCounters, Observer, StateCounters};
pub use open::{DirLock, Disk, Identity, OpenError, SeenVoters, Storage, open};
pub use simulated::SimulatedDisk;
pub use snapshot::{Chunk, Receiver, Snapshot};
pub use state::{Page, StateStore};
pub use types::{
    Applied, LogEntry, LogId, Member, Raft, SnapshotMeta, StoredMembership, TypeConfig, Vote,
};
