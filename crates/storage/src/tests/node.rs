//! One node's storage, driven as openraft drives it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::stream;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::{RaftLogReader, RaftSnapshotBuilder, StorageHelper};

use crate::{
    Disk, LogEntry, LogId, OpenError, SimulatedDisk, Snapshot, SnapshotMeta, Storage, TypeConfig,
    open,
};

type Flushed = openraft::alias::OneshotReceiverOf<TypeConfig, io::Result<()>>;

/// An open data directory.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) storage: Storage,
}

/// The data directory on a simulated disk.
pub(super) fn dir() -> PathBuf {
    PathBuf::from("node")
}

impl Node {
    pub(super) fn open(disk: &SimulatedDisk) -> Result<Self, OpenError> {
        Self::open_at(&Disk::simulated(disk), &dir())
    }

    pub(super) fn open_at(disk: &Disk, dir: &Path) -> Result<Self, OpenError> {
        open(disk, dir, 1, Some("test")).map(|storage| Self { storage })
    }

    /// Appends without waiting for the sync.
    pub(super) async fn submit(&self, entries: Vec<LogEntry>) -> io::Result<Flushed> {
        let (done, flushed) = TypeConfig::oneshot();
        self.storage.log.clone().append(entries, IOFlushed::signal(done)).await?;
        Ok(flushed)
    }

    /// Appends, and waits until the entries are acknowledged.
    pub(super) async fn append(&self, entries: Vec<LogEntry>) -> io::Result<()> {
        let flushed = self.submit(entries).await?;
        flushed.await.map_err(io::Error::other)?
    }

    pub(super) async fn entries(&self, first: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        self.storage.log.clone().try_get_log_entries(first..end).await
    }

    /// Applies entries as they come, from wherever.
    pub(super) async fn apply(&self, entries: Vec<LogEntry>) -> io::Result<()> {
        let entries = entries.into_iter().map(|entry| Ok((entry, None)));
        self.storage.state.clone().apply(stream::iter(entries)).await
    }

    pub(super) async fn build(&self) -> io::Result<Arc<Snapshot>> {
        Ok(self.storage.state.clone().build_snapshot().await?.snapshot)
    }

    pub(super) async fn install(&self, snapshot: Arc<Snapshot>) -> io::Result<()> {
        let meta = snapshot.meta().clone();
        self.storage.state.clone().install_snapshot(&meta, snapshot).await
    }

    /// Takes in a snapshot of another node.
    pub(super) fn receive(&self, from: &Snapshot) -> io::Result<Arc<Snapshot>> {
        self.receive_as(from, from.meta())
    }

    pub(super) fn receive_as(
        &self,
        from: &Snapshot,
        meta: &SnapshotMeta,
    ) -> io::Result<Arc<Snapshot>> {
        let mut receiver = self.storage.state.receive_snapshot()?;
        for file in from.files()? {
            let mut offset = 0;
            while let Some(chunk) = from.chunk(&file, offset)? {
                receiver.add(&chunk)?;
                offset += u64::try_from(chunk.bytes.len()).unwrap();
                if chunk.bytes.is_empty() {
                    break;
                }
            }
        }
        self.storage.state.finish_received(receiver, meta)
    }

    /// Starts as openraft does: checks log against state, installs a newer snapshot, applies what
    /// was committed. Gives the last applied id.
    pub(super) async fn start(&self) -> Result<Option<LogId>, String> {
        let (mut log, mut state) = (self.storage.log.clone(), self.storage.state.clone());
        let mut helper = StorageHelper::new(&mut log, &mut state).with_id(1);
        helper.get_initial_state().await.map_err(|error| error.to_string())?;
        Ok(state.applied_state().await.unwrap().0)
    }
}
