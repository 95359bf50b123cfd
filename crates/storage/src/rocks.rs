//! The real disk: RocksDB databases and plain files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRawIterator, DBRecoveryMode, Options, ReadOptions, WriteBatch, WriteOptions,
};
use rustix::fs::OFlags;

use tenure_state_machine::seeded::{SeededBug, seeded};

use crate::disk::{Batch, Change, Database, Disk, Durability, Family, Layout, Visit};

/// Memory for a family's unflushed writes, in bytes.
const MEMTABLE_BYTES: usize = 64 * 1024 * 1024;
/// Memory for blocks read from disk, of both databases, in bytes.
const BLOCK_CACHE_BYTES: usize = 64 * 1024 * 1024;
/// A record of so many bytes lies beside the sorted tables, in a *blob file*, which is written once
/// and not again by each compaction: names come in no order, so most compactions move old records
/// to make room for new ones.
const BLOB_BYTES: u64 = 128;
/// The oldest part of the blob files. Compactions move what they meet in there to new files, so
/// that the old ones go: a larger part would be copied around for nothing.
const OLD_BLOBS: f64 = 0.1;
/// When so much of that part is of no use any more, it is compacted for that reason alone.
const BLOB_GARBAGE: f64 = 0.5;
/// Written-ahead log kept before its memtable is flushed, in bytes.
const WAL_BYTES: u64 = 256 * 1024 * 1024;
/// A file that is opened to see whether direct I/O works, and removed.
const DIRECT_PROBE: &str = "direct-io-probe";
/// Old info logs kept for people.
const INFO_LOGS: usize = 2;

/// Files and databases on the machine's own file system.
pub(crate) struct RocksDisk {
    cache: Cache,
}

impl RocksDisk {
    pub(crate) fn new() -> Self {
        Self { cache: Cache::new_lru_cache(BLOCK_CACHE_BYTES) }
    }

    fn options(layout: Layout) -> io::Result<Options> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_keep_log_file_num(INFO_LOGS);
        options.set_max_background_jobs(2);
        match layout {
            Layout::Log => {
                // The default would stop at a flipped bit and drop acknowledged entries behind it.
                options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
                if seeded(SeededBug::HoleSkipped) {
                    options.set_wal_recovery_mode(DBRecoveryMode::SkipAnyCorruptedRecord);
                }
                options.set_max_total_wal_size(WAL_BYTES);
            }
            // One flush covers all families, or the deadline index could be of another moment.
            Layout::State => options.set_atomic_flush(true),
        }
        // RocksDB would resume after an error by itself, and a failed sync must never be retried:
        // the pages are gone, the second one succeeds.
        options.get_options_from_string("max_bgerror_resume_count=0").map_err(error)
    }

    fn family(&self, family: Family) -> ColumnFamilyDescriptor {
        let mut options = Options::default();
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.cache);
        match family {
            Family::Records | Family::Deadlines => {
                options.set_write_buffer_size(MEMTABLE_BYTES);
                options.set_compression_type(DBCompressionType::Lz4);
            }
            Family::Logs => options.set_write_buffer_size(MEMTABLE_BYTES),
            Family::Meta => {}
        }
        if family == Family::Records {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(BLOB_BYTES);
            options.set_blob_compression_type(DBCompressionType::Lz4);
            options.set_enable_blob_gc(true);
            options.set_blob_gc_age_cutoff(OLD_BLOBS);
            options.set_blob_gc_force_threshold(BLOB_GARBAGE);
            // Most acquires look for a record that is not there.
            table.set_bloom_filter(10.0, false);
            options.set_memtable_prefix_bloom_ratio(0.02);
            options.set_memtable_whole_key_filtering(true);
        }
        options.set_block_based_table_factory(&table);
        ColumnFamilyDescriptor::new(family.name(), options)
    }

    fn families(&self, layout: Layout) -> Vec<ColumnFamilyDescriptor> {
        layout.families().iter().map(|family| self.family(*family)).collect()
    }
}

impl Disk for RocksDisk {
    fn lock(&self, dir: &Path) -> io::Result<Box<dyn Send + Sync>> {
        create_dir(dir)?;
        let path = dir.join("LOCK");
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => {
                Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open"))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn open(&self, dir: &Path, layout: Layout) -> io::Result<Arc<dyn Database>> {
        create_dir(dir)?;
        let mut options = Self::options(layout)?;
        options.set_use_direct_io_for_flush_and_compaction(has_direct_io(dir)?);
        let db = DB::open_cf_descriptors(&options, dir, self.families(layout));
        Ok(Arc::new(Rocks { db: db.map_err(error)?, layout }))
    }

    fn open_checkpoint(&self, dir: &Path, layout: Layout) -> io::Result<Arc<dyn Database>> {
        let mut options = Self::options(layout)?;
        options.create_if_missing(false);
        // It is read from its first record to its last: let the kernel read ahead.
        options.set_advise_random_on_open(false);
        let families = self.families(layout);
        let db = DB::open_cf_descriptors_read_only(&options, dir, families, false);
        Ok(Arc::new(Rocks { db: db.map_err(error)?, layout }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    fn size(&self, file: &Path) -> io::Result<u64> {
        Ok(fs::metadata(file)?.len())
    }

    fn read(&self, file: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::with_capacity(length);
        file.take(u64::try_from(length).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Some(dir) = file.parent() {
            create_dir(dir)?;
        }
        OpenOptions::new().create(true).append(true).open(file)?.write_all(bytes)
    }

    fn sync_all(&self, dir: &Path) -> io::Result<()> {
        for name in self.list(dir)? {
            File::open(dir.join(name))?.sync_all()?;
        }
        File::open(dir)?.sync_all()
    }

    fn copy_checkpoint(&self, from: &Path, to: &Path) -> io::Result<()> {
        create_dir(to)?;
        for name in self.list(from)? {
            // Tables and blobs never change, so a second name is enough; the few others do.
            if name.ends_with(".sst") || name.ends_with(".blob") {
                fs::hard_link(from.join(&name), to.join(&name))?;
            } else {
                fs::copy(from.join(&name), to.join(&name))?;
            }
        }
        self.sync_all(to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        match to.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl std::fmt::Debug for RocksDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RocksDisk")
    }
}

struct Rocks {
    db: DB,
    layout: Layout,
}

impl Rocks {
    fn handle(&self, family: Family) -> io::Result<&ColumnFamily> {
        self.db.cf_handle(family.name()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("no family {}", family.name()))
        })
    }

    fn iterator(&self, family: Family) -> io::Result<DBRawIterator<'_>> {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(!seeded(SeededBug::DamageServed));
        Ok(self.db.raw_iterator_cf_opt(self.handle(family)?, options))
    }
}

impl Database for Rocks {
    fn get(&self, family: Family, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        if seeded(SeededBug::DamageServed) {
            let mut options = ReadOptions::default();
            options.set_verify_checksums(false);
            return self.db.get_cf_opt(self.handle(family)?, key, &options).map_err(error);
        }
        self.db.get_cf(self.handle(family)?, key).map_err(error)
    }

    fn get_all(&self, family: Family, keys: &[&[u8]]) -> io::Result<Vec<Option<Vec<u8>>>> {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(!seeded(SeededBug::DamageServed));
        let keys = keys.iter().copied();
        let values = self.db.batched_multi_get_cf_opt(self.handle(family)?, keys, false, &options);
        let values = values.into_iter().map(|value| match value {
            Ok(value) => Ok(value.map(|value| value.to_vec())),
            Err(failed) => Err(error(failed)),
        });
        values.collect()
    }

    fn scan_as_of(
        &self,
        family: Family,
        from: &[u8],
        pinned: &mut dyn FnMut(),
        visit: Visit<'_>,
    ) -> io::Result<()> {
        let mut iterator = self.iterator(family)?;
        pinned();
        iterator.seek(from);
        while let Some((key, value)) = iterator.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(error)
    }

    fn write(&self, batch: Batch, durability: Durability) -> io::Result<()> {
        let mut rocks = WriteBatch::default();
        for change in batch.changes {
            match change {
                Change::Put(family, key, value) => rocks.put_cf(self.handle(family)?, key, value),
                Change::Delete(family, key) => rocks.delete_cf(self.handle(family)?, key),
                Change::DeleteRange(family, from, to) => {
                    rocks.delete_range_cf(self.handle(family)?, from, to);
                }
            }
        }
        let mut options = WriteOptions::default();
        match self.layout {
            Layout::Log => options.set_sync(durability == Durability::Synced),
            Layout::State => options.disable_wal(true),
        }
        self.db.write_opt(rocks, &options).map_err(error)
    }

    fn checkpoint(&self, to: &Path) -> io::Result<()> {
        if let Some(parent) = to.parent() {
            create_dir(parent)?;
        }
        let checkpoint = Checkpoint::new(&self.db).map_err(error)?;
        checkpoint.create_checkpoint(to).map_err(error)?;
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        match self.db.property_int_value("rocksdb.background-errors").map_err(error)? {
            None | Some(0) => Ok(()),
            Some(count) => Err(io::Error::other(format!("RocksDB met {count} background errors"))),
        }
    }
}

impl std::fmt::Debug for Rocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rocks({})", self.db.path().display())
    }
}

/// Creates a directory and the missing ones above it, all of them durable when this returns:
/// RocksDB and [`Disk::sync_all`] see to what is in a directory, not to its own name.
fn create_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().unwrap_or(Path::new(""));
    create_dir(parent)?;
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    File::open(parent)?.sync_all()
}

/// Whether files below `dir` can be written past the page cache. What flushes and compactions write
/// is not read soon: copied into the page cache it costs processor time, pushes out what is read,
/// and goes to the disk in bursts that the log's syncs wait behind. Some file systems cannot.
fn has_direct_io(dir: &Path) -> io::Result<bool> {
    let probe = dir.join(DIRECT_PROBE);
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    let opened = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .custom_flags(direct)
        .open(&probe);
    // The file may be there even if it could not be opened so.
    match fs::remove_file(&probe) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match opened {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}

fn error(error: rocksdb::Error) -> io::Error {
    let damaged = error.kind() == rocksdb::ErrorKind::Corruption;
    let kind = if damaged { io::ErrorKind::InvalidData } else { io::ErrorKind::Other };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    /// What RocksDB says it was opened with, of both databases.
    #[test]
    fn the_options_that_durability_rests_on_are_those_that_are_used() {
        let path = tempfile::tempdir().unwrap();
        let options = |layout: Layout| {
            let dir = path.path().join(format!("{layout:?}"));
            drop(RocksDisk::new().open(&dir, layout).unwrap());
            let file = RocksDisk::new().list(&dir).unwrap();
            let file = file.into_iter().filter(|name| name.starts_with("OPTIONS")).max().unwrap();
            fs::read_to_string(dir.join(file)).unwrap()
        };
        let (log, state) = (options(Layout::Log), options(Layout::State));
        for both in [
            "max_bgerror_resume_count=0",
            "max_background_jobs=2",
            "keep_log_file_num=2",
            "recycle_log_file_num=0",
            "paranoid_checks=true",
            &format!(
                "use_direct_io_for_flush_and_compaction={}",
                has_direct_io(path.path()).unwrap()
            ),
        ] {
            assert!(log.contains(both) && state.contains(both), "{both}");
        }
        assert!(log.contains("wal_recovery_mode=kTolerateCorruptedTailRecords"));
        assert!(log.contains("max_total_wal_size=268435456"));
        assert!(log.contains("atomic_flush=false"));
        assert!(state.contains("atomic_flush=true"));
        assert!(state.contains("memtable_whole_key_filtering=true"));
        assert!(state.contains("memtable_prefix_bloom_size_ratio=0.02"));
        assert!(state.contains("blob_garbage_collection_force_threshold=0.5"));
    }

    #[test]
    fn what_a_file_system_cannot_do_is_found_out_and_leaves_nothing() {
        let path = tempfile::tempdir().unwrap();
        has_direct_io(path.path()).unwrap();
        assert_eq!(RocksDisk::new().list(path.path()).unwrap(), Vec::<String>::new());
        // procfs takes no files at all: that is not an answer to the question.
        assert!(has_direct_io(Path::new("/proc")).is_err());
        // Without direct I/O on many kernels.
        let Ok(path) = tempfile::tempdir_in("/dev/shm") else { return };
        let db = RocksDisk::new().open(&path.path().join("db"), Layout::State).unwrap();
        let mut batch = Batch::default();
        batch.put(Family::Records, b"name", b"record".to_vec());
        db.write(batch, Durability::Buffered).unwrap();
        db.checkpoint(&path.path().join("checkpoint")).unwrap();
        drop(db);
        let db = RocksDisk::new().open(&path.path().join("db"), Layout::State).unwrap();
        assert_eq!(db.get(Family::Records, b"name").unwrap().as_deref(), Some(&b"record"[..]));
    }

    /// Names of the files of a directory that are one of a kind.
    fn files(dir: &Path, kind: &str) -> Vec<String> {
        let names = RocksDisk::new().list(dir).unwrap();
        names.into_iter().filter(|name| name.ends_with(kind)).collect()
    }

    #[test]
    fn records_with_a_result_lie_in_blobs_which_copies_share_and_damage_is_seen_in() {
        let path = tempfile::tempdir().unwrap();
        let [live, checkpoint, copy] = ["live", "checkpoint", "copy"].map(|n| path.path().join(n));
        let disk = RocksDisk::new();
        let db = disk.open(&live, Layout::State).unwrap();
        let records: Vec<(Vec<u8>, Vec<u8>)> = [0, 1, 127, 128, 129, 5000, 3_000_000]
            .iter()
            .map(|bytes| (format!("{bytes:07}").into_bytes(), vec![7; *bytes]))
            .collect();
        let mut batch = Batch::default();
        for (name, record) in &records {
            batch.put(Family::Records, name.as_slice(), record.clone());
        }
        db.write(batch, Durability::Buffered).unwrap();
        db.checkpoint(&checkpoint).unwrap();
        disk.copy_checkpoint(&checkpoint, &copy).unwrap();
        let blobs = files(&checkpoint, ".blob");
        assert_eq!((blobs.len(), files(&live, ".blob")), (1, blobs.clone()));
        let links = |dir: &Path| {
            let blob = fs::metadata(dir.join(&blobs[0])).unwrap();
            std::os::unix::fs::MetadataExt::nlink(&blob)
        };
        assert_eq!(links(&copy), 3, "nothing was copied");
        for db in [
            disk.open_checkpoint(&checkpoint, Layout::State).unwrap(),
            disk.open(&copy, Layout::State).unwrap(),
        ] {
            let mut seen = Vec::new();
            db.scan(Family::Records, b"", &mut |name, record| {
                seen.push((name.to_vec(), record.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(seen, records);
            let names: Vec<&[u8]> = records.iter().map(|(name, _)| name.as_slice()).collect();
            let found = db.get_all(Family::Records, &names).unwrap();
            assert!(found.iter().flatten().eq(records.iter().map(|(_, record)| record)));
        }
        drop(db);
        let blob = live.join(&blobs[0]);
        let mut bytes = fs::read(&blob).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&blob, bytes).unwrap();
        let db = disk.open(&live, Layout::State).unwrap();
        let (name, _) = records.last().unwrap();
        let kind = |read: io::Error| read.kind();
        assert_eq!(db.get(Family::Records, name).map_err(kind), Err(io::ErrorKind::InvalidData));
        let found = db.get_all(Family::Records, &[name]).map_err(kind);
        assert_eq!(found, Err(io::ErrorKind::InvalidData));
        let scanned = db.scan(Family::Records, name, &mut |_, _| ControlFlow::Continue(()));
        assert_eq!(scanned.map_err(kind), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_new_directory_is_made_with_all_above_it() {
        let path = tempfile::tempdir().unwrap();
        let deep = path.path().join("a/b/c");
        create_dir(&deep).unwrap();
        create_dir(&deep).unwrap();
        assert!(deep.is_dir());
        fs::write(path.path().join("file"), "").unwrap();
        assert!(create_dir(&path.path().join("file/d")).is_err());
    }
}
