//! openraft's own suite for stores, on both disks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use openraft::alias::SnapshotOf;
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogStorage, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{OptionalSend, StorageError};
use tenure_storage::{
    DirLock, Disk, LogEntry, LogId, LogStore, SimulatedDisk, Snapshot, SnapshotMeta, StateStore,
    StoredMembership, TypeConfig, Vote, open,
};

/// Fills the gaps that the suite leaves before an entry with blanks of the same leader: ours
/// refuse an entry that does not follow the one before (L1, A1).
fn filled(mut next: u64, entry: &LogEntry) -> Vec<LogEntry> {
    let mut blanks = Vec::new();
    while next < entry.index() {
        blanks.push(LogEntry::new_blank(LogId::new(*entry.log_id().committed_leader_id(), next)));
        next += 1;
    }
    blanks
}

struct Log(LogStore);

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.0.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.0.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.0.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.0.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let last = self.0.get_log_state().await?.last_log_id;
        let entries: Vec<_> = entries.into_iter().collect();
        let next = last.map_or(0, |last| last.index + 1);
        let blanks = entries.first().map(|first| filled(next, first)).unwrap_or_default();
        self.0.append(blanks.into_iter().chain(entries), flushed).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.0.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.0.purge(upto).await
    }
}

struct State(StateStore);

impl RaftStateMachine<TypeConfig> for State {
    type SnapshotData = Arc<Snapshot>;
    type SnapshotBuilder = StateStore;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        self.0.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let mut next = self.0.applied_state().await?.0.map_or(0, |applied| applied.index + 1);
        let entries = entries.flat_map(move |entry| {
            let blanks = entry.as_ref().map(|entry| filled(next, &entry.0)).unwrap_or_default();
            next = entry.as_ref().map_or(next, |entry| entry.0.index() + 1);
            stream::iter(blanks.into_iter().map(|blank| Ok((blank, None))).chain([entry]))
        });
        self.0.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> StateStore {
        self.0.get_snapshot_builder().await
    }

    /// The suite hands over another node's snapshot: it travels, as it does between nodes.
    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Arc<Snapshot>,
    ) -> io::Result<()> {
        let mut received = self.0.receive_snapshot()?;
        for file in snapshot.files()? {
            let mut offset = 0;
            while let Some(chunk) = snapshot.chunk(&file, offset)? {
                received.add(&chunk)?;
                offset += u64::try_from(chunk.bytes.len()).unwrap();
                if chunk.bytes.is_empty() {
                    break;
                }
            }
        }
        let snapshot = self.0.finish_received(received, meta)?;
        self.0.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, Arc<Snapshot>>>> {
        self.0.get_current_snapshot().await
    }
}

#[derive(Debug)]
enum Builder {
    Real,
    Simulated,
}

impl StoreBuilder<TypeConfig, Log, State, (Option<tempfile::TempDir>, DirLock)> for Builder {
    async fn build(
        &self,
    ) -> Result<((Option<tempfile::TempDir>, DirLock), Log, State), StorageError<TypeConfig>> {
        let (disk, dir) = match self {
            Self::Real => (Disk::real(), Some(tempfile::tempdir().unwrap())),
            Self::Simulated => (Disk::simulated(&SimulatedDisk::default()), None),
        };
        let path = dir.as_ref().map_or(PathBuf::from("node"), |dir| dir.path().join("node"));
        let storage = open(&disk, &path, 0, Some("suite")).unwrap();
        Ok(((dir, storage.lock), Log(storage.log), State(storage.state)))
    }
}

#[tokio::test]
async fn openraft_is_content_with_the_simulated_disk() {
    Suite::test_all(Builder::Simulated).await.unwrap();
}

#[tokio::test]
async fn openraft_is_content_with_the_real_disk() {
    Suite::test_all(Builder::Real).await.unwrap();
}
