//! Physical snapshots: checkpoints of the state database, and their way to another node.
//!
//! - **S1** What a snapshot covers is read from the checkpoint itself.
//! - **S2** A snapshot has its name only once all of it is durable, and one that was received only
//!   once it is being installed: a name is a promise to restart from it.
//! - **S3** A snapshot that is being streamed stays, whatever replaced it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::disk::{Disk, Layout, UNFINISHED};
use crate::state::Meta;
use crate::types::SnapshotMeta;

/// Bytes of a chunk on its way to another node.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Most files of a snapshot.
const FILES: usize = 100_000;

/// A finished snapshot on this node's disk.
#[derive(Debug)]
pub struct Snapshot {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    meta: SnapshotMeta,
    /// Whether the files go with the last handle.
    obsolete: AtomicBool,
}

/// A piece of a snapshot's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The file's name.
    pub file: String,
    /// Where in the file the bytes belong.
    pub offset: u64,
    /// At most a MiB; none for an empty file.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// CRC-32C of the bytes.
    pub checksum: u32,
}

impl Snapshot {
    /// The last log index that it covers, zero if none.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.meta.last_log_id.map_or(0, |id| id.index)
    }

    pub(crate) fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lets the files go with the last handle (S3).
    pub(crate) fn retire(&self) {
        self.obsolete.store(true, Ordering::SeqCst);
    }

    /// The sizes of all files together, in bytes.
    ///
    /// # Errors
    /// The disk's own.
    pub fn bytes(&self) -> io::Result<u64> {
        self.disk.list(&self.dir)?.iter().map(|file| self.disk.size(&self.dir.join(file))).sum()
    }

    /// The names of the files, in the order in which a [`Receiver`] takes them.
    ///
    /// # Errors
    /// The disk's own.
    pub fn files(&self) -> io::Result<Vec<String>> {
        self.disk.list(&self.dir)
    }

    /// The chunk at `offset` of a file, none at its end (but one, empty, for an empty file).
    ///
    /// # Errors
    /// The disk's own.
    pub fn chunk(&self, file: &str, offset: u64) -> io::Result<Option<Chunk>> {
        let bytes = self.disk.read(&self.dir.join(file), offset, CHUNK_BYTES)?;
        if bytes.is_empty() && offset > 0 {
            return Ok(None);
        }
        let checksum = crc32c::crc32c(&bytes);
        Ok(Some(Chunk { file: file.to_owned(), offset, bytes, checksum }))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::SeqCst)
            && let Err(error) = self.disk.remove(&self.dir)
        {
            tracing::warn!(dir = %self.dir.display(), %error, "an old snapshot could not be removed");
        }
    }
}

/// What the name of a finished snapshot says: term and index of the last entry that it covers, and
/// a number that keeps two snapshots of one entry apart. In this order the newest is the last.
type Place = (u64, u64, u64);

fn name_of((term, index, number): Place) -> String {
    format!("{index}-{term}-{number}")
}

fn place_of(name: &str) -> Option<Place> {
    let mut numbers = name.split('-').map(|number| number.parse().ok());
    let place = |index, term, number| Some((term?, index?, number?));
    let found = place(numbers.next()?, numbers.next()?, numbers.next()?)?;
    (name_of(found) == name).then_some(found)
}

/// The snapshots of one node.
#[derive(Debug)]
pub(crate) struct Snapshots {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Above every number in use.
    next: AtomicU64,
}

impl Snapshots {
    /// Gives the newest finished snapshot, and removes the older ones and what a crash left. They
    /// are not looked into: a crash may have come in the middle of their removal.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
    ) -> io::Result<(Self, Option<Arc<Snapshot>>)> {
        let mut finished = Vec::new();
        for name in disk.list(&dir)? {
            if name.ends_with(UNFINISHED) {
                disk.remove(&dir.join(name))?;
            } else {
                finished.extend(place_of(&name));
            }
        }
        finished.sort_unstable();
        let next = finished.iter().map(|(_, _, number)| number + 1).max().unwrap_or(0);
        let newest = finished.pop();
        for older in finished {
            disk.remove(&dir.join(name_of(older)))?;
        }
        let snapshots = Self { disk, dir, next: AtomicU64::new(next) };
        let newest = newest.map(|newest| {
            let dir = snapshots.dir.join(name_of(newest));
            let meta = snapshots.meta_of(&dir)?;
            Ok::<_, io::Error>(snapshots.handle(dir, meta, false))
        });
        Ok((snapshots, newest.transpose()?))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// A fresh directory for something unfinished.
    pub(crate) fn scratch(&self) -> io::Result<PathBuf> {
        let dir = self.dir.join(format!("{}{UNFINISHED}", self.number()));
        self.disk.remove(&dir)?;
        Ok(dir)
    }

    /// Makes a checkpoint that was built here a finished snapshot.
    pub(crate) fn finish(&self, scratch: PathBuf) -> io::Result<Arc<Snapshot>> {
        self.adopt(&self.check(scratch)?)
    }

    /// Makes the files of a checkpoint durable and looks into it. It does not have its name yet;
    /// without one it goes with the last handle.
    fn check(&self, scratch: PathBuf) -> io::Result<Arc<Snapshot>> {
        self.disk.sync_all(&scratch)?;
        let meta = self.meta_of(&scratch)?;
        Ok(self.handle(scratch, meta, true))
    }

    /// Gives a snapshot its name, if it has none (S2). The old handle is worth nothing then.
    pub(crate) fn adopt(&self, snapshot: &Arc<Snapshot>) -> io::Result<Arc<Snapshot>> {
        if !snapshot.dir.to_string_lossy().ends_with(UNFINISHED) {
            return Ok(Arc::clone(snapshot));
        }
        let covers = snapshot.meta.last_log_id;
        let (term, index) = covers.map_or((0, 0), |id| (id.committed_leader_id().term, id.index));
        let dir = self.dir.join(name_of((term, index, self.number())));
        self.disk.rename(&snapshot.dir, &dir)?;
        Ok(self.handle(dir, snapshot.meta.clone(), false))
    }

    fn handle(&self, dir: PathBuf, meta: SnapshotMeta, obsolete: bool) -> Arc<Snapshot> {
        let disk = Arc::clone(&self.disk);
        Arc::new(Snapshot { disk, dir, meta, obsolete: AtomicBool::new(obsolete) })
    }

    /// What a checkpoint covers (S1).
    fn meta_of(&self, dir: &Path) -> io::Result<SnapshotMeta> {
        let meta = Meta::read(&*self.disk.open_checkpoint(dir, Layout::State)?)?;
        let last_membership = Arc::unwrap_or_clone(meta.membership);
        Ok(SnapshotMeta { last_log_id: meta.applied, last_membership })
    }

    pub(crate) fn receive(&self) -> io::Result<Receiver> {
        let disk = Arc::clone(&self.disk);
        Ok(Receiver { disk, dir: Some(self.scratch()?), current: None, files: 0 })
    }

    /// Looks into a snapshot that was received whole. It has no name before [`Snapshots::adopt`].
    pub(crate) fn received(
        &self,
        mut received: Receiver,
        meta: &SnapshotMeta,
    ) -> io::Result<Arc<Snapshot>> {
        let Some(dir) = received.dir.clone() else { return Err(io::ErrorKind::NotFound.into()) };
        let snapshot = self.check(dir)?;
        received.dir = None;
        if snapshot.meta == *meta {
            Ok(snapshot)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the snapshot covers another log id"))
        }
    }
}

/// A snapshot on its way in. Its files go when it is dropped unfinished.
#[derive(Debug)]
pub struct Receiver {
    disk: Arc<dyn Disk>,
    dir: Option<PathBuf>,
    /// The file that is being written, and how much of it there is.
    current: Option<(String, u64)>,
    files: usize,
}

impl Receiver {
    /// Writes a chunk, which must follow the one before: in its file, or at the start of one whose
    /// name comes later.
    ///
    /// # Errors
    /// A damaged chunk or one out of order, or the disk's own error.
    pub fn add(&mut self, chunk: &Chunk) -> io::Result<()> {
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()));
        if chunk.bytes.len() > CHUNK_BYTES || crc32c::crc32c(&chunk.bytes) != chunk.checksum {
            return refuse("a snapshot chunk was damaged on its way");
        }
        let follows = match &self.current {
            Some((file, length)) if *file == chunk.file => *length == chunk.offset,
            current => {
                let later = current.as_ref().is_none_or(|(file, _)| *file < chunk.file);
                later && chunk.offset == 0 && self.files < FILES && is_file_name(&chunk.file)
            }
        };
        let Some(dir) = self.dir.as_ref().filter(|_| follows) else {
            return refuse("a snapshot chunk does not follow the one before");
        };
        self.disk.append(&dir.join(&chunk.file), &chunk.bytes)?;
        if chunk.offset == 0 {
            self.files += 1;
        }
        let length = chunk.offset + u64::try_from(chunk.bytes.len()).unwrap_or(u64::MAX);
        self.current = Some((chunk.file.clone(), length));
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let Some(dir) = &self.dir else { return };
        if let Err(error) = self.disk.remove(dir) {
            tracing::warn!(dir = %dir.display(), %error, "a partial snapshot could not be removed");
        }
    }
}

/// A plain name of a file: no path, no hidden file.
fn is_file_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    name.len() <= 255 && name.bytes().all(plain) && !name.starts_with('.') && !name.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots_read_back_and_others_are_left_alone() {
        assert_eq!(place_of(&name_of((3, 17, 5))), Some((3, 17, 5)));
        for strange in ["", "17-3", "17-3-5-1", "17-3-05", "17--5", "a-3-5", "17-3-5.tmp", "old"] {
            assert_eq!(place_of(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_file_name_is_plain() {
        for plain in ["CURRENT", "MANIFEST-000005", "000010.sst", "a_b"] {
            assert!(is_file_name(plain), "{plain}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\\b", "a b", "a\0", "é"] {
            assert!(!is_file_name(bad), "{bad}");
        }
        assert!(!is_file_name(&"a".repeat(256)));
    }
}
