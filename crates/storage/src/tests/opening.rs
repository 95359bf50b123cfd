//! Whose a data directory is, and what happens to a damaged one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use openraft::storage::RaftLogStorage;
use tenure_state_machine::{Name, codec};

use super::generate::{Entries, blank, log_id};
use super::node::{Node, dir};
use crate::disk::{self, Batch, Durability, Family, Layout};
use crate::{Disk, OpenError, SimulatedDisk, Vote, open};

/// Every file below `dir` with its bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

#[test]
fn a_directory_belongs_to_one_node_of_one_cluster() {
    let path = tempfile::tempdir().unwrap();
    let (real, simulated) = (Disk::real(), Disk::simulated(&SimulatedDisk::default()));
    for disk in [real, simulated] {
        let dir = path.path().join("node");
        drop(open(&disk, &dir, 3, Some("one")).unwrap());
        let other = open(&disk, &dir, 3, Some("two"));
        assert!(matches!(other, Err(OpenError::OtherCluster { found, wanted, .. })
            if found == "one" && wanted == "two"));
        let other = open(&disk, &dir, 4, Some("one"));
        assert!(matches!(other, Err(OpenError::OtherNode { found: 3, wanted: 4, .. })));
        let storage = open(&disk, &dir, 3, None).unwrap();
        assert_eq!((storage.identity.cluster_id.as_str(), storage.identity.node_id), ("one", 3));
    }
}

#[test]
fn a_refused_directory_keeps_its_state_its_snapshots_and_its_log() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let path = tempfile::tempdir().unwrap();
    let real = Disk::real();
    let mut draw = Entries::new(1);
    let entries: Vec<_> = (0..50).map(|index| draw.next(1, index)).collect();
    runtime.block_on(async {
        let node = Node::open_at(&real, path.path()).unwrap();
        node.append(entries.clone()).await.unwrap();
        node.apply(entries.clone()).await.unwrap();
        node.build().await.unwrap();
    });
    let kept = [path.path().join("state"), path.path().join("snapshots")];
    let before = kept.each_ref().map(|dir| files(dir));
    for (node, cluster) in [(1, "other"), (2, "test")] {
        assert!(open(&real, path.path(), node, Some(cluster)).is_err());
    }
    assert!(kept.each_ref().map(|dir| files(dir)) == before, "a refused open changed something");
    let node = Node::open_at(&real, path.path()).unwrap();
    assert_eq!(runtime.block_on(node.entries(0, 100)).unwrap(), entries);
}

#[test]
fn an_empty_directory_needs_a_cluster_and_is_left_as_it_was() {
    let path = tempfile::tempdir().unwrap();
    let dir = path.path().join("node");
    for disk in [Disk::real(), Disk::simulated(&SimulatedDisk::default())] {
        assert!(matches!(open(&disk, &dir, 1, None), Err(OpenError::NoCluster { .. })));
        assert!(!dir.exists());
    }
}

#[test]
fn a_directory_that_lost_its_log_gets_no_new_one() {
    let path = tempfile::tempdir().unwrap();
    drop(open(&Disk::real(), path.path(), 1, Some("test")).unwrap());
    std::fs::remove_dir_all(path.path().join("log")).unwrap();
    let before = files(path.path());
    let error = open(&Disk::real(), path.path(), 1, Some("test")).unwrap_err();
    assert!(error.to_string().ends_with("there is a state, but its log is gone"), "{error}");
    assert!(files(path.path()) == before);
}

#[test]
fn a_second_opener_is_refused_until_every_part_is_closed() {
    let path = tempfile::tempdir().unwrap();
    for disk in [Disk::real(), Disk::simulated(&SimulatedDisk::default())] {
        let in_use = || matches!(open(&disk, path.path(), 1, None), Err(OpenError::InUse { .. }));
        let storage = open(&disk, path.path(), 1, Some("test")).unwrap();
        assert!(in_use());
        let crate::Storage { log, state, seen, lock, .. } = storage;
        drop(lock);
        assert!(in_use());
        drop((log, seen));
        assert!(in_use(), "the state is open");
        drop(state);
        drop(open(&disk, path.path(), 1, None).unwrap());
    }
}

#[test]
fn a_directory_of_a_newer_build_is_refused() {
    let disk = SimulatedDisk::default();
    drop(Node::open(&disk).unwrap());
    let db = disk::Disk::open(&disk, &dir().join("log"), Layout::Log).unwrap();
    let mut batch = Batch::default();
    // Fields in their order, as every build must be able to read them.
    batch.put(Family::Meta, b"identity", codec::seal(1, &(2_u32, "test", 1_u64)).unwrap());
    db.write(batch, Durability::Synced).unwrap();
    let newer = Node::open(&disk);
    assert!(matches!(newer, Err(OpenError::NewerFormat { found: 2, known: 1, .. })));
}

#[tokio::test]
async fn seen_voters_are_remembered() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    assert!(!node.storage.seen.contains(2));
    node.storage.seen.insert(2).unwrap();
    let writes = disk.writes();
    node.storage.seen.insert(2).unwrap();
    assert_eq!(disk.writes(), writes, "the second time costs nothing");
    drop(node);
    disk.power_cut();
    let node = Node::open(&disk).unwrap();
    assert!(node.storage.seen.contains(2) && !node.storage.seen.contains(3));
}

/// A data directory with entries in table files and in the written-ahead log, and all kinds of
/// things applied, in a folder of its own.
fn a_directory(runtime: &tokio::runtime::Runtime) -> tempfile::TempDir {
    let path = tempfile::tempdir().unwrap();
    let mut draw = Entries::new(1);
    let entries: Vec<_> = (0..300).map(|index| draw.next(1, index)).collect();
    runtime.block_on(async {
        let node = Node::open_at(&Disk::real(), path.path()).unwrap();
        node.append(entries[..200].to_vec()).await.unwrap();
        node.apply(entries[..200].to_vec()).await.unwrap();
        drop(node.build().await.unwrap());
        drop(node);
        // Opening flushed the first ones into tables; these stay in the written-ahead log.
        let node = Node::open_at(&Disk::real(), path.path()).unwrap();
        node.start().await.unwrap();
        for entry in &entries[200..] {
            node.append(vec![entry.clone()]).await.unwrap();
        }
        node.storage.log.clone().save_vote(&Vote::new(5, 1)).await.unwrap();
    });
    path
}

fn newest(dir: &Path, extension: &str) -> PathBuf {
    let files = files(dir).into_iter();
    let found = files.filter(|(path, bytes)| {
        path.extension().is_some_and(|found| found == extension) && !bytes.is_empty()
    });
    found.map(|(path, _)| path).max().unwrap()
}

fn flip(path: &Path, place: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    // The last bytes of a table are padding of its footer.
    let places = bytes.len() - 60;
    bytes[place % places] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_log_is_refused_and_nothing_of_it_overwritten() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (extension, places) in [("log", [20, 200, 3000]), ("sst", [10, 500, 900])] {
        for place in places {
            let path = a_directory(&runtime);
            let damaged = newest(&path.path().join("log"), extension);
            flip(&damaged, place);
            let before = std::fs::read(&damaged).unwrap();
            let opened = Node::open_at(&Disk::real(), path.path());
            assert!(
                matches!(&opened, Err(OpenError::Unusable { .. })),
                "{extension} at {place}: {opened:?}"
            );
            drop(opened);
            assert_eq!(std::fs::read(&damaged).unwrap(), before, "{extension} at {place}");
        }
    }
}

#[test]
fn a_torn_end_of_the_log_is_what_was_never_acknowledged() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let path = a_directory(&runtime);
    let wal = newest(&path.path().join("log"), "log");
    let mut bytes = std::fs::read(&wal).unwrap();
    bytes.extend_from_within(..11);
    std::fs::write(&wal, &bytes).unwrap();
    let node = Node::open_at(&Disk::real(), path.path()).unwrap();
    assert_eq!(node.storage.log.bounds(), (0, 299));
}

#[test]
fn a_damaged_state_is_refused_or_stops_the_node() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for place in [10, 300, 900] {
        let path = a_directory(&runtime);
        let damaged = newest(&path.path().join("state"), "sst");
        flip(&damaged, place);
        let before = std::fs::read(&damaged).unwrap();
        let Ok(node) = Node::open_at(&Disk::real(), path.path()) else { continue };
        // Blocks are checked when they are read: apply meets the damage, or a hash does.
        runtime.block_on(async {
            let entries = node.entries(200, 300).await.unwrap();
            let applied = node.apply(entries).await.is_ok();
            let built = node.build().await;
            let hashed = built.and_then(|snapshot| node.storage.state.hash(&snapshot));
            assert!(!applied || hashed.is_err(), "nobody noticed the damage at {place}");
            assert!(applied || node.storage.fail.reason().is_some());
        });
        drop(node);
        assert_eq!(std::fs::read(&damaged).unwrap(), before);
    }
}

#[tokio::test]
async fn a_damaged_record_of_the_log_is_refused() {
    for (family, key) in
        [(Family::Logs, 3_u64.to_be_bytes().to_vec()), (Family::Meta, b"vote".into())]
    {
        let disk = SimulatedDisk::default();
        let node = Node::open(&disk).unwrap();
        node.append((0..5).map(|index| blank(1, index)).collect()).await.unwrap();
        node.storage.log.clone().save_vote(&Vote::new(5, 1)).await.unwrap();
        drop(node);
        let db = disk::Disk::open(&disk, &dir().join("log"), Layout::Log).unwrap();
        let mut value = db.get(family, &key).unwrap().unwrap();
        *value.last_mut().unwrap() ^= 1;
        let mut batch = Batch::default();
        batch.put(family, key, value);
        db.write(batch, Durability::Synced).unwrap();
        let error = Node::open(&disk).unwrap_err();
        let OpenError::Unusable { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), std::io::ErrorKind::InvalidData, "{source}");
    }
}

#[tokio::test]
async fn a_missing_entry_in_the_middle_is_refused() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append((0..5).map(|index| blank(1, index)).collect()).await.unwrap();
    node.storage.log.clone().purge(log_id(1, 0)).await.unwrap();
    drop(node);
    let db = disk::Disk::open(&disk, &dir().join("log"), Layout::Log).unwrap();
    let mut batch = Batch::default();
    batch.delete(Family::Logs, 3_u64.to_be_bytes());
    db.write(batch, Durability::Synced).unwrap();
    let error = Node::open(&disk).unwrap_err().to_string();
    assert!(error.contains("entry 3 is missing, 4 is there"), "{error}");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_stops_the_node() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    let mut draw = Entries::new(1);
    node.apply((0..20).map(|index| draw.next(1, index)).collect()).await.unwrap();
    let db = disk::Disk::open(&disk, &dir().join("state/1"), Layout::State).unwrap();
    let name = Name::new("never", "changed").unwrap();
    let mut batch = Batch::default();
    batch.put(Family::Records, name.as_stored(), vec![1, 2, 3]);
    db.write(batch, Durability::Buffered).unwrap();
    node.storage.state.read(&name).unwrap_err();
    let reason = node.storage.fail.reason().unwrap();
    assert!(reason.starts_with("the state could not be read: the state is damaged: "), "{reason}");
}
