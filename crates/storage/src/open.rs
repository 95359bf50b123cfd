//! Opening a data directory: whose it is, and whether it can be trusted.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_state_machine::codec::{self, DecodeError};

use crate::disk::{self, Batch, Database, Durability, Family, Layout};
use crate::fail::FailStop;
use crate::log::LogStore;
#[cfg(feature = "rocksdb")]
use crate::rocks::RocksDisk;
use crate::simulated::SimulatedDisk;
use crate::state::StateStore;
use crate::work::Workers;

/// The format of a data directory. A build reads its own and older ones.
const FORMAT: u32 = 1;
/// The format of this module's sealed values; never changes, so that any build can read `FORMAT`.
const VERSION: u8 = 1;

/// The directory of the log's database.
const LOG: &str = "log";
/// The directory of the state's generations.
pub(crate) const STATE: &str = "state";
const IDENTITY: &[u8] = b"identity";
const SEEN: &[u8] = b"seen";

/// What a data directory lies on.
#[derive(Debug, Clone)]
pub struct Disk {
    files: Arc<dyn disk::Disk>,
    workers: Workers,
}

impl Disk {
    /// RocksDB on the machine's own file system.
    #[cfg(feature = "rocksdb")]
    #[must_use]
    pub fn real() -> Self {
        Self { files: Arc::new(RocksDisk::new()), workers: Workers::default() }
    }

    /// A disk in memory.
    #[must_use]
    pub fn simulated(disk: &SimulatedDisk) -> Self {
        Self { files: Arc::new(disk.clone()), workers: Workers::default() }
    }

    /// The same, in simulated time: whatever waits for the disk `takes` some of it, and is done by
    /// tasks of the runtime in which a data directory is opened. A runtime that ends takes with it
    /// what is not done, as a crash does.
    #[must_use]
    pub fn simulated_in_time(
        disk: &SimulatedDisk,
        takes: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        Self { files: Arc::new(disk.clone()), workers: Workers::Tasks(Arc::new(takes)) }
    }

    /// Bytes that may still be written below `dir`.
    ///
    /// # Errors
    /// The file system's own.
    pub fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.files.free_bytes(dir)
    }
}

/// Whose data directory it is, written when it is first used and never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    format: u32,
    /// The cluster.
    pub cluster_id: String,
    /// The node.
    pub node_id: u64,
}

/// A data directory that cannot be used. No record, entry or vote in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{dir} is in use by another process: stop that one first, or name another --data-dir")]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// It belongs to another node.
    #[error("{dir} belongs to node {found}, not to node {wanted}: name that node's own --data-dir")]
    OtherNode {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: u64,
        /// Who asked.
        wanted: u64,
    },
    /// It belongs to another cluster.
    #[error(
        "{dir} belongs to cluster {found}, not to {wanted}: name that cluster's own --data-dir"
    )]
    OtherCluster {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asked.
        wanted: String,
    },
    /// A newer build wrote it.
    #[error("{dir} has format {found}, this build reads up to {known}: start a newer build")]
    NewerFormat {
        /// The directory.
        dir: PathBuf,
        /// Its format.
        found: u32,
        /// What this build knows.
        known: u32,
    },
    /// It is new, and nobody said which cluster it is to belong to.
    #[error("{dir} is empty, and no cluster was named for it: give --bootstrap or --join")]
    NoCluster {
        /// The directory.
        dir: PathBuf,
    },
    /// It cannot be read, or what it holds is damaged.
    #[error("{dir} cannot be opened: {source}")]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An open data directory.
#[derive(Debug)]
pub struct Storage {
    /// Whose it is.
    pub identity: Identity,
    /// Its log.
    pub log: LogStore,
    /// Its state.
    pub state: StateStore,
    /// Which voters this node has heard of.
    pub seen: Arc<SeenVoters>,
    /// Raised when the disk fails; the node must stop then.
    pub fail: FailStop,
    /// Held as long as any part is open; the parts hold it themselves.
    pub lock: DirLock,
}

/// The directory belongs to this process until the last clone is dropped.
#[derive(Clone)]
pub struct DirLock(#[expect(dead_code, reason = "held, not read")] Arc<dyn Send + Sync>);

impl std::fmt::Debug for DirLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirLock")
    }
}

/// The nodes that this one knows to have voted or acknowledged anything, durably: a node that was
/// seen and comes back empty has lost its disk and could vote twice.
#[derive(Debug)]
pub struct SeenVoters {
    db: Arc<dyn Database>,
    fail: FailStop,
    ids: Mutex<BTreeSet<u64>>,
    _lock: DirLock,
}

impl SeenVoters {
    /// Whether the voter has been seen.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Records the voter; durable when this returns. Blocks for one sync the first time.
    ///
    /// # Errors
    /// The disk's own, after which the node stops.
    pub fn insert(&self, id: u64) -> io::Result<()> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if !ids.insert(id) {
            return Ok(());
        }
        let written = self.fail.check().and_then(|()| write_meta(&*self.db, SEEN, &*ids));
        if written.is_err() {
            ids.remove(&id);
        }
        self.fail.guard("the log could not be written", written)
    }
}

/// Opens a data directory for node `node_id`, creating it if it is empty. `cluster_id` may be
/// left out for one that has been used.
///
/// # Errors
/// [`OpenError`]; the directory is as it was.
pub fn open(
    disk: &Disk,
    dir: &Path,
    node_id: u64,
    cluster_id: Option<&str>,
) -> Result<Storage, OpenError> {
    let unusable = |source| OpenError::Unusable { dir: dir.to_owned(), source };
    let no_cluster = || OpenError::NoCluster { dir: dir.to_owned() };
    let missing = |name: &str| Ok(disk.files.list(&dir.join(name)).map_err(unusable)?.is_empty());
    let (no_log, no_state) = (missing(LOG)?, missing(STATE)?);
    if no_log && !no_state {
        // With the log its votes are gone: with a new one this node could vote twice.
        let gone = io::Error::new(io::ErrorKind::NotFound, "there is a state, but its log is gone");
        return Err(unusable(gone));
    }
    if no_log && cluster_id.is_none() {
        return Err(no_cluster());
    }
    let lock = disk.files.lock(dir).map_err(|error| {
        let busy = error.kind() == io::ErrorKind::ResourceBusy;
        if busy { OpenError::InUse { dir: dir.to_owned() } } else { unusable(error) }
    })?;
    let lock = DirLock(lock.into());
    let db = disk.files.open(&dir.join(LOG), Layout::Log).map_err(unusable)?;
    let identity = match read_meta::<Identity>(&*db, IDENTITY).map_err(unusable)? {
        Some(found) => check(dir, found, node_id, cluster_id)?,
        None => {
            let cluster_id = cluster_id.ok_or_else(no_cluster)?;
            let identity = Identity { format: FORMAT, cluster_id: cluster_id.to_owned(), node_id };
            write_meta(&*db, IDENTITY, &identity).map_err(unusable)?;
            identity
        }
    };
    let fail = FailStop::default();
    let ids = Mutex::new(read_meta(&*db, SEEN).map_err(unusable)?.unwrap_or_default());
    let seen = SeenVoters { db: Arc::clone(&db), fail: fail.clone(), ids, _lock: lock.clone() };
    let log = LogStore::open(db, &disk.workers, fail.clone(), lock.clone()).map_err(unusable)?;
    let state = StateStore::open(
        Arc::clone(&disk.files),
        &disk.workers,
        dir,
        log.clone(),
        fail.clone(),
        lock.clone(),
    );
    let state = state.map_err(unusable)?;
    Ok(Storage { identity, log, state, seen: Arc::new(seen), fail, lock })
}

fn check(
    dir: &Path,
    found: Identity,
    node_id: u64,
    cluster_id: Option<&str>,
) -> Result<Identity, OpenError> {
    let dir = dir.to_owned();
    if found.format > FORMAT {
        return Err(OpenError::NewerFormat { dir, found: found.format, known: FORMAT });
    }
    if let Some(wanted) = cluster_id
        && found.cluster_id != wanted
    {
        let wanted = wanted.to_owned();
        return Err(OpenError::OtherCluster { dir, found: found.cluster_id, wanted });
    }
    if found.node_id != node_id {
        return Err(OpenError::OtherNode { dir, found: found.node_id, wanted: node_id });
    }
    Ok(found)
}

fn read_meta<T: serde::de::DeserializeOwned>(
    db: &dyn Database,
    name: &[u8],
) -> io::Result<Option<T>> {
    let damaged = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
    let stored = db.get(Family::Meta, name)?;
    stored.map(|sealed| codec::unseal(VERSION, &sealed).map_err(damaged)).transpose()
}

fn write_meta<T: Serialize>(db: &dyn Database, name: &[u8], value: &T) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.put(Family::Meta, name, codec::seal(VERSION, value).map_err(io::Error::other)?);
    db.write(batch, Durability::Synced)
}
