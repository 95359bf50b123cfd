//! A disk in memory that knows what a power cut would take.
//!
//! Every database and file has a durable half and a pending one. [`SimulatedDisk::power_cut`]
//! drops what is pending, as a machine without power does; [`SimulatedDisk::power_cut_keeping`]
//! lets some of it survive, as a torn tail and a database's own flushes do. Faults of writing come
//! from [`SimulatedDisk::fail_writes`] and [`SimulatedDisk::fail_writes_after`]; counting writes by
//! the latter visits every moment at which a process can be killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::disk::{Batch, Database, Disk, Durability, Family, Layout, Visit};

mod contents;

use contents::{Contents, Halves};

/// The one file of a checkpoint.
const CHECKPOINT: &str = "checkpoint";
/// What a listing shows of a database.
const DATABASE: &str = "database";

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimulatedDisk(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    log_goes_on: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    databases: BTreeMap<PathBuf, Halves>,
    files: BTreeMap<PathBuf, File>,
    locked: BTreeSet<PathBuf>,
    /// Power cuts so far: what was opened before the last one is dead.
    cuts: u64,
    /// Writes so far, failed ones included.
    writes: u64,
    /// From this write on all fail.
    failing_from: Option<u64>,
    /// Bytes that may still be written, where there is a limit.
    free_bytes: Option<u64>,
    /// Whether syncs of the log are lies.
    lying: bool,
    /// Whether writes to the log hang.
    log_stalled: bool,
    stalled_writes: u64,
}

/// A file only grows, so its durable half is a length.
#[derive(Debug, Default)]
struct File {
    bytes: Vec<u8>,
    durable: usize,
}

impl Inner {
    /// Nobody uses the disk any more.
    fn end(&mut self) {
        self.locked.clear();
        self.cuts += 1;
    }

    /// Counts a write, and says whether it may be done.
    fn count_write(&mut self) -> io::Result<()> {
        let number = self.writes;
        self.writes += 1;
        match self.failing_from {
            Some(from) if number >= from => Err(io::Error::other("simulated write failure")),
            _ => Ok(()),
        }
    }
}

impl SimulatedDisk {
    /// Drops everything that was not synced. Databases and locks from before are dead: they only
    /// give errors.
    pub fn power_cut(&self) {
        self.power_cut_keeping(|_| 0);
    }

    /// As [`SimulatedDisk::power_cut`], but `keep` says how much of what is pending survives: it is
    /// asked once for each database, with its number of unsynced batches, and once for each file,
    /// with its number of unsynced bytes. The first ones survive.
    pub fn power_cut_keeping(&self, mut keep: impl FnMut(usize) -> usize) {
        let mut inner = self.inner();
        for halves in inner.databases.values_mut() {
            halves.cut(keep(halves.pending()));
        }
        for file in inner.files.values_mut() {
            let unsynced = file.bytes.len() - file.durable;
            file.durable += keep(unsynced).min(unsynced);
            file.bytes.truncate(file.durable);
        }
        inner.end();
    }

    /// Ends the process that uses the disk: what the kernel has taken stays, synced or not. Of a
    /// state's database, which gathers its batches in the process, only the first `keep` of those
    /// that are not durable do. Databases and locks from before are dead.
    pub fn kill_keeping(&self, mut keep: impl FnMut(usize) -> usize) {
        let mut inner = self.inner();
        for halves in inner.databases.values_mut().filter(|halves| halves.layout == Layout::State) {
            halves.cut(keep(halves.pending()));
        }
        inner.end();
    }

    /// Drops everything, durable or not, as when the disk is replaced by an empty one.
    pub fn wipe(&self) {
        self.power_cut();
        let mut inner = self.inner();
        inner.databases.clear();
        inner.files.clear();
    }

    /// From now on every write fails, or none does.
    pub fn fail_writes(&self, failing: bool) {
        let mut inner = self.inner();
        inner.failing_from = failing.then_some(inner.writes);
    }

    /// The next `writes` writes succeed; all later ones fail. A batch that failed may survive a
    /// power cut all the same, like one whose sync failed; other writes change nothing.
    pub fn fail_writes_after(&self, writes: u64) {
        let mut inner = self.inner();
        inner.failing_from = Some(inner.writes + writes);
    }

    /// How many writes there have been, failed ones included: batches, appends, syncs, renames and
    /// removals.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.inner().writes
    }

    /// From now on the disk says that so many bytes may still be written. It is for who asks
    /// beforehand: writes do not fail by it.
    pub fn set_free_bytes(&self, bytes: u64) {
        self.inner().free_bytes = Some(bytes);
    }

    /// From now on syncs of the log report success without making anything durable, or are honest
    /// again. For proving that a test would notice.
    pub fn lie_about_syncs(&self, lying: bool) {
        self.inner().lying = lying;
    }

    /// From now on writes to the log hang, as on a disk that is too busy, or go on.
    pub fn stall_log(&self, stalled: bool) {
        self.inner().log_stalled = stalled;
        self.0.log_goes_on.notify_all();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many writes to the log hang.
    #[must_use]
    pub fn stalled_writes(&self) -> u64 {
        self.inner().stalled_writes
    }

    fn wait_for_log(&self) {
        let mut inner = self.inner();
        inner.stalled_writes += 1;
        let goes_on = self.0.log_goes_on.wait_while(inner, |inner| inner.log_stalled);
        goes_on.unwrap_or_else(PoisonError::into_inner).stalled_writes -= 1;
    }

    /// The disk, for a write.
    fn writing(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let mut inner = self.inner();
        inner.count_write()?;
        Ok(inner)
    }

    fn checkpoint_in(&self, dir: &Path) -> io::Result<Contents> {
        contents::decode(&self.read(&dir.join(CHECKPOINT), 0, usize::MAX)?)
    }
}

struct Unlock {
    disk: SimulatedDisk,
    dir: PathBuf,
    cuts: u64,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if inner.cuts == self.cuts {
            inner.locked.remove(&self.dir);
        }
    }
}

impl Disk for SimulatedDisk {
    fn lock(&self, dir: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let mut inner = self.inner();
        if inner.locked.insert(dir.to_owned()) {
            Ok(Box::new(Unlock { disk: self.clone(), dir: dir.to_owned(), cuts: inner.cuts }))
        } else {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another node has it open"))
        }
    }

    fn open(&self, dir: &Path, layout: Layout) -> io::Result<Arc<dyn Database>> {
        let found = match self.checkpoint_in(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::new(),
            found => found?,
        };
        let mut inner = self.inner();
        if !inner.databases.contains_key(dir) {
            inner.count_write()?;
            inner.databases.insert(dir.to_owned(), Halves::new(layout, found));
        }
        let cuts = inner.cuts;
        Ok(Arc::new(Simulated { disk: self.clone(), dir: dir.to_owned(), layout, cuts }))
    }

    fn open_checkpoint(&self, dir: &Path, _layout: Layout) -> io::Result<Arc<dyn Database>> {
        Ok(Arc::new(Checkpoint(self.checkpoint_in(dir)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let inner = self.inner();
        let databases = inner.databases.keys().map(|path| path.join(DATABASE));
        let names: BTreeSet<String> = databases
            .chain(inner.files.keys().cloned())
            .filter_map(|path| {
                path.strip_prefix(dir).ok()?.iter().next()?.to_str().map(str::to_owned)
            })
            .collect();
        Ok(names.into_iter().collect())
    }

    fn size(&self, file: &Path) -> io::Result<u64> {
        let length = self.read(file, 0, usize::MAX)?.len();
        Ok(u64::try_from(length).unwrap_or(u64::MAX))
    }

    fn read(&self, file: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let inner = self.inner();
        let file = inner.files.get(file).ok_or(io::ErrorKind::NotFound)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(file.bytes.len());
        let rest = file.bytes.get(offset..).unwrap_or_default();
        Ok(rest.get(..length).unwrap_or(rest).to_vec())
    }

    fn append(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        self.writing()?.files.entry(file.to_owned()).or_default().bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync_all(&self, dir: &Path) -> io::Result<()> {
        for (path, file) in &mut self.writing()?.files {
            if path.starts_with(dir) {
                file.durable = file.bytes.len();
            }
        }
        Ok(())
    }

    fn copy_checkpoint(&self, from: &Path, to: &Path) -> io::Result<()> {
        let bytes = self.read(&from.join(CHECKPOINT), 0, usize::MAX)?;
        self.append(&to.join(CHECKPOINT), &bytes)?;
        self.sync_all(to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.writing()?;
        let Inner { databases, files, .. } = &mut *inner;
        rename_keys(databases, from, to);
        rename_keys(files, from, to);
        Ok(())
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        if self.list(dir)?.is_empty() {
            return Ok(());
        }
        let mut inner = self.writing()?;
        inner.databases.retain(|path, _| !path.starts_with(dir));
        inner.files.retain(|path, _| !path.starts_with(dir));
        Ok(())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.inner().free_bytes.unwrap_or(u64::MAX))
    }
}

fn rename_keys<T>(map: &mut BTreeMap<PathBuf, T>, from: &Path, to: &Path) {
    let (moved, kept): (BTreeMap<_, _>, _) =
        std::mem::take(map).into_iter().partition(|(path, _)| path.starts_with(from));
    *map = kept;
    for (path, value) in moved {
        let rest = path.strip_prefix(from).unwrap_or(&path);
        let path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
        map.insert(path, value);
    }
}

/// A database that is open.
struct Simulated {
    disk: SimulatedDisk,
    dir: PathBuf,
    layout: Layout,
    cuts: u64,
}

impl Simulated {
    /// The database, unless the power was cut or it was removed since it was opened.
    fn halves<'a>(&self, inner: &'a mut Inner) -> io::Result<&'a mut Halves> {
        if inner.cuts != self.cuts {
            return Err(io::Error::other("the power was cut"));
        }
        Ok(inner.databases.get_mut(&self.dir).ok_or(io::ErrorKind::NotFound)?)
    }
}

impl Database for Simulated {
    fn get(&self, family: Family, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut inner = self.disk.inner();
        Ok(contents::get(&self.halves(&mut inner)?.now, family, key))
    }

    fn scan_as_of(
        &self,
        family: Family,
        from: &[u8],
        pinned: &mut dyn FnMut(),
        visit: Visit<'_>,
    ) -> io::Result<()> {
        let mut inner = self.disk.inner();
        pinned();
        contents::scan(&self.halves(&mut inner)?.now, family, from, visit);
        Ok(())
    }

    fn write(&self, batch: Batch, durability: Durability) -> io::Result<()> {
        if self.layout == Layout::Log {
            self.disk.wait_for_log();
        }
        let mut inner = self.disk.inner();
        let (counted, lying) = (inner.count_write(), inner.lying);
        let halves = self.halves(&mut inner)?;
        halves.write(batch);
        if counted.is_ok()
            && self.layout == Layout::Log
            && durability == Durability::Synced
            && !lying
        {
            halves.sync();
        }
        counted
    }

    fn checkpoint(&self, to: &Path) -> io::Result<()> {
        let bytes = {
            let mut inner = self.disk.writing()?;
            let halves = self.halves(&mut inner)?;
            halves.sync();
            contents::encode(&halves.now)
        };
        self.disk.append(&to.join(CHECKPOINT), &bytes)?;
        self.disk.sync_all(to)
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulated({})", self.dir.display())
    }
}

/// A checkpoint, which never changes.
#[derive(Debug)]
struct Checkpoint(Contents);

impl Database for Checkpoint {
    fn get(&self, family: Family, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(contents::get(&self.0, family, key))
    }

    fn scan_as_of(
        &self,
        family: Family,
        from: &[u8],
        pinned: &mut dyn FnMut(),
        visit: Visit<'_>,
    ) -> io::Result<()> {
        pinned();
        contents::scan(&self.0, family, from, visit);
        Ok(())
    }

    fn write(&self, _batch: Batch, _durability: Durability) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn checkpoint(&self, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a value to a fresh database of each layout without syncing it, lets `end` happen, and
    /// says whether it is there in the log, and in the state.
    fn kept(end: impl Fn(&SimulatedDisk)) -> [bool; 2] {
        [Layout::Log, Layout::State].map(|layout| {
            let (disk, dir) = (SimulatedDisk::default(), Path::new("db"));
            let db = disk.open(dir, layout).unwrap();
            let mut batch = Batch::default();
            batch.put(Family::Meta, *b"k", b"v".to_vec());
            db.write(batch, Durability::Buffered).unwrap();
            end(&disk);
            assert!(db.get(Family::Meta, b"k").is_err(), "what was open is dead");
            disk.open(dir, layout).unwrap().get(Family::Meta, b"k").unwrap().is_some()
        })
    }

    #[test]
    fn a_killed_process_leaves_its_log_and_what_its_state_has_flushed() {
        assert_eq!(kept(|disk| disk.kill_keeping(|_| 0)), [true, false]);
        assert_eq!(kept(|disk| disk.kill_keeping(|pending| pending)), [true, true]);
        assert_eq!(kept(SimulatedDisk::power_cut), [false, false]);
        assert_eq!(kept(|disk| disk.power_cut_keeping(|pending| pending)), [true, true]);
    }

    #[test]
    fn a_replaced_disk_is_empty() {
        let (disk, dir) = (SimulatedDisk::default(), Path::new("node"));
        drop(disk.open(&dir.join("log"), Layout::Log).unwrap());
        disk.append(&dir.join("file"), b"bytes").unwrap();
        disk.sync_all(dir).unwrap();
        disk.wipe();
        assert!(disk.list(dir).unwrap().is_empty());
    }
}
