//! The seam between storage and the disk.
//!
//! Log and state see a [`Disk`] that opens [`Database`]s and moves the files of snapshots.
//! [`crate::rocks`] is the real one; [`crate::simulated`] keeps everything in memory, split into
//! what is durable and what a power cut would take.

use std::fmt::Debug;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Marks a directory that is not finished; what a crash left of them is removed at the next start.
pub(crate) const UNFINISHED: &str = ".tmp";

/// What a data directory lies on.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Takes the data directory for this process alone, creating it if need be; dropping the lock
    /// gives it up.
    fn lock(&self, dir: &Path) -> io::Result<Box<dyn Send + Sync>>;
    /// Opens the database in `dir`, creating it if need be.
    fn open(&self, dir: &Path, layout: Layout) -> io::Result<Arc<dyn Database>>;
    /// Opens the finished checkpoint in `dir`, which does not change it.
    fn open_checkpoint(&self, dir: &Path, layout: Layout) -> io::Result<Arc<dyn Database>>;
    /// The names in `dir`, sorted; none when it does not exist.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// The size of a file, in bytes.
    fn size(&self, file: &Path) -> io::Result<u64>;
    /// `length` bytes of a file from `offset`, fewer at its end.
    fn read(&self, file: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    /// Appends to a file, creating it and its directory if need be. Durable after
    /// [`Disk::sync_all`].
    fn append(&self, file: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Makes the files of `dir`, and their names, durable.
    fn sync_all(&self, dir: &Path) -> io::Result<()>;
    /// Puts the files of the checkpoint `from` into the new directory `to`, durable when this
    /// returns; the copy may be opened and changed without changing `from`.
    fn copy_checkpoint(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a directory, durable when this returns. The atomic step of every switch.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a directory and all in it; nothing to do when it does not exist.
    fn remove(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that may still be written.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// Is shown a key and its value, and says whether to go on.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Sorted keys and values in families; a batch is written whole or not at all.
pub(crate) trait Database: Debug + Send + Sync {
    /// The value of a key.
    fn get(&self, family: Family, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// The values of many keys, which costs less than to ask for each.
    fn get_all(&self, family: Family, keys: &[&[u8]]) -> io::Result<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(family, key)).collect()
    }
    /// Visits the keys from `from` on, in their order, until the visitor breaks.
    fn scan(&self, family: Family, from: &[u8], visit: Visit<'_>) -> io::Result<()> {
        self.scan_as_of(family, from, &mut || {}, visit)
    }
    /// The same; what is written once `pinned` was called is not seen.
    fn scan_as_of(
        &self,
        family: Family,
        from: &[u8],
        pinned: &mut dyn FnMut(),
        visit: Visit<'_>,
    ) -> io::Result<()>;
    /// Writes a batch. In the log's layout batches become durable in their order, and all up to a
    /// synced one with it; in the state's only a checkpoint or a flush of the disk's own choice
    /// makes them so, still in their order.
    fn write(&self, batch: Batch, durability: Durability) -> io::Result<()>;
    /// Makes the state durable as it is at some moment within the call, and puts a copy into the
    /// new directory `to`.
    fn checkpoint(&self, to: &Path) -> io::Result<()>;
    /// An error that the database met in the background.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "a real disk asks"))]
    fn check(&self) -> io::Result<()>;
}

/// Which database, and so which families and how it is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Written ahead and synced on demand.
    Log,
    /// Not written ahead: what a crash takes comes again from the log.
    State,
}

/// A family of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// Log: index (u64, big-endian) -> sealed entry.
    Logs,
    /// State: stored name -> sealed record.
    Records,
    /// State: deadline (u64, big-endian), stored name -> nothing.
    Deadlines,
    /// Both: a few named values.
    Meta,
}

impl Layout {
    /// The families of this database.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "a real disk asks"))]
    pub(crate) fn families(self) -> &'static [Family] {
        match self {
            Self::Log => &[Family::Logs, Family::Meta],
            Self::State => &[Family::Records, Family::Deadlines, Family::Meta],
        }
    }
}

impl Family {
    /// Its name on disk.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "a real disk asks"))]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Logs => "logs",
            Self::Records => "records",
            Self::Deadlines => "deadlines",
            Self::Meta => "meta",
        }
    }
}

/// Whether a batch must be durable when its write returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It must, and with it every batch before it.
    Synced,
    /// Later is soon enough.
    Buffered,
}

/// Changes to be written together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<Change>,
    /// Bytes of all keys and values.
    pub(crate) bytes: usize,
}

/// One change of a batch.
#[derive(Debug)]
pub(crate) enum Change {
    Put(Family, Vec<u8>, Vec<u8>),
    Delete(Family, Vec<u8>),
    /// All keys from the first, inclusive, to the second, exclusive.
    DeleteRange(Family, Vec<u8>, Vec<u8>),
}

impl Batch {
    pub(crate) fn put(&mut self, family: Family, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        let key = key.into();
        self.bytes += key.len() + value.len();
        self.changes.push(Change::Put(family, key, value));
    }

    pub(crate) fn delete(&mut self, family: Family, key: impl Into<Vec<u8>>) {
        let key = key.into();
        self.bytes += key.len();
        self.changes.push(Change::Delete(family, key));
    }

    pub(crate) fn delete_range(&mut self, family: Family, from: Vec<u8>, to: Vec<u8>) {
        self.bytes += from.len() + to.len();
        self.changes.push(Change::DeleteRange(family, from, to));
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.changes.extend(other.changes);
    }
}
