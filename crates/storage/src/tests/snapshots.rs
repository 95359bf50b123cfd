//! Snapshots: built, sent, installed, replaced, and what a crash leaves of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{EntryPayload, Membership, RaftLogReader};
use rand::RngExt;

use super::generate::{Entries, blank, log_id, rng};
use super::node::{Node, dir};
use super::reference::Reference;
use crate::disk::Disk as _;
use crate::{Chunk, Disk, LogEntry, Member, SimulatedDisk, Snapshot};

fn entries(seed: u64, count: u64) -> Vec<LogEntry> {
    let mut draw = Entries::new(seed);
    (0..count).map(|index| draw.next(1, index)).collect()
}

async fn filled(disk: &SimulatedDisk, entries: &[LogEntry]) -> Node {
    let node = Node::open(disk).unwrap();
    node.append(entries.to_vec()).await.unwrap();
    node.apply(entries.to_vec()).await.unwrap();
    node
}

fn chunks(snapshot: &Snapshot) -> Vec<Chunk> {
    let files = snapshot.files().unwrap();
    files.iter().map(|file| snapshot.chunk(file, 0).unwrap().unwrap()).collect()
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// On the real disk, because only there something goes on while a checkpoint is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_built_while_apply_goes_on_are_of_an_exact_prefix() {
    let path = tempfile::tempdir().unwrap();
    let node = Arc::new(Node::open_at(&Disk::real(), path.path()).unwrap());
    let entries = Arc::new(entries(3, 3000));
    node.append(entries.to_vec()).await.unwrap();
    let built = Arc::new(AtomicUsize::new(0));
    let applying = {
        let (node, entries, built) = (node.clone(), entries.clone(), built.clone());
        tokio::spawn(async move {
            for (number, step) in entries.chunks(10).enumerate() {
                node.apply(step.to_vec()).await.unwrap();
                // Not too far ahead of the builder, who would otherwise see the end alone.
                while built.load(Ordering::SeqCst) < number / 50 {
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    while !applying.is_finished() {
        let snapshot = node.build().await.unwrap();
        built.fetch_add(1, Ordering::SeqCst);
        let (index, term, hash) = node.storage.state.hash(&snapshot).unwrap();
        let covered = snapshot.meta().last_log_id;
        let count = covered.map_or(0, |id| usize::try_from(id.index).unwrap() + 1);
        assert_eq!(covered.map_or((0, 0), |id| (id.index, 1)), (index, term), "S1");
        assert_eq!(hash, Reference::of(&entries[..count]).hash(), "S1: at {covered:?}");
    }
    applying.await.unwrap();
    let built = u64::try_from(built.load(Ordering::SeqCst)).unwrap();
    assert!(built >= 5, "{built} were built");
    assert_eq!(node.storage.state.counters().snapshots_built.get(), built);
    assert_eq!(names(&path.path().join("snapshots")).len(), 1, "older ones are removed");
}

#[tokio::test]
async fn a_snapshot_gives_another_node_the_same_state() {
    let entries = entries(11, 200);
    let reference = Reference::of(&entries[..150]);
    for behind in [0, 90] {
        let leader = filled(&SimulatedDisk::default(), &entries[..150]).await;
        let snapshot = leader.build().await.unwrap();
        let disk = SimulatedDisk::default();
        let node = filled(&disk, &entries[..behind]).await;
        node.build().await.unwrap();
        node.install(node.receive(&snapshot).unwrap()).await.unwrap();
        let current = node.storage.state.clone().get_current_snapshot().await.unwrap().unwrap();
        assert_eq!(&current.meta, snapshot.meta());
        let (index, term, hash) = node.storage.state.hash(&current.snapshot).unwrap();
        assert_eq!((index, term, &hash), (149, 1, &reference.hash()));
        assert_eq!(leader.storage.state.hash(&snapshot).unwrap(), (index, term, hash));
        assert_eq!(disk.list(&dir().join("snapshots")).unwrap().len(), 1);
        assert_eq!(disk.list(&dir().join("state")).unwrap(), ["2"]);
        // I9: it goes on as one that has applied everything.
        node.storage.log.clone().purge(log_id(1, 149)).await.unwrap();
        node.append(entries[150..].to_vec()).await.unwrap();
        node.apply(entries[150..].to_vec()).await.unwrap();
        let hash = node.storage.state.hash(&node.build().await.unwrap()).unwrap().2;
        assert_eq!(hash, Reference::of(&entries).hash());
    }
    let reference = Reference::of(&entries);
    let path = tempfile::tempdir().unwrap();
    let real = Disk::real();
    let leader = Node::open_at(&real, &path.path().join("1")).unwrap();
    leader.append(entries.clone()).await.unwrap();
    leader.apply(entries.clone()).await.unwrap();
    let snapshot = leader.build().await.unwrap();
    let place = path.path().join("2");
    let node = Node::open_at(&real, &place).unwrap();
    node.append(entries[..120].to_vec()).await.unwrap();
    node.apply(entries[..100].to_vec()).await.unwrap();
    node.install(node.receive(&snapshot).unwrap()).await.unwrap();
    node.storage.log.clone().purge(log_id(1, 199)).await.unwrap();
    assert_eq!(node.storage.state.hash(&node.build().await.unwrap()).unwrap().2, reference.hash());
    drop(node);
    let node = Node::open_at(&real, &place).unwrap();
    assert_eq!(node.start().await.unwrap(), Some(log_id(1, 199)));
    assert_eq!(node.storage.state.hash(&node.build().await.unwrap()).unwrap().2, reference.hash());
    assert_eq!(names(&place.join("state")), ["2"]);
    assert_eq!(names(&place.join("snapshots")).len(), 1);
}

#[tokio::test]
async fn an_old_snapshot_stays_as_long_as_somebody_reads_it() {
    let disk = SimulatedDisk::default();
    let entries = entries(2, 40);
    let node = filled(&disk, &entries[..20]).await;
    let old = node.build().await.unwrap();
    node.apply(entries[20..].to_vec()).await.unwrap();
    node.build().await.unwrap();
    assert_eq!(node.storage.state.hash(&old).unwrap().0, 19, "S3");
    let other = Node::open(&SimulatedDisk::default()).unwrap();
    other.install(other.receive(&old).unwrap()).await.unwrap();
    assert_eq!(other.storage.state.applied().index, 19);
    assert_eq!(disk.list(&dir().join("snapshots")).unwrap().len(), 2);
    drop(old);
    assert_eq!(disk.list(&dir().join("snapshots")).unwrap().len(), 1);
}

#[tokio::test]
async fn a_snapshot_of_the_same_entry_does_not_take_the_place_of_the_one_before() {
    let disk = SimulatedDisk::default();
    let entries = entries(2, 20);
    drop(filled(&disk, &entries).await.build().await.unwrap());
    // The numbers go on after a restart, or the new one would have the old one's name, and go
    // with it.
    for _ in 0..3 {
        let node = Node::open(&disk).unwrap();
        node.start().await.unwrap();
        let old = node.storage.state.current_snapshot().unwrap();
        let new = node.build().await.unwrap();
        assert_eq!(new.meta(), old.meta());
        drop(old);
        assert_eq!(node.storage.state.hash(&new).unwrap().0, 19);
    }
}

#[tokio::test]
async fn chunks_that_are_damaged_or_out_of_order_are_refused() {
    let leader = filled(&SimulatedDisk::default(), &entries(4, 20)).await;
    let snapshot = leader.build().await.unwrap();
    let good = chunks(&snapshot).remove(0);
    let node = Node::open(&SimulatedDisk::default()).unwrap();
    let sealed = |file: &str, offset, bytes: &[u8]| Chunk {
        file: file.into(),
        offset,
        bytes: bytes.into(),
        checksum: crc32c::crc32c(bytes),
    };
    let refused = |chunks: &[Chunk]| {
        let mut receiver = node.storage.state.receive_snapshot().unwrap();
        let (last, before) = chunks.split_last().unwrap();
        before.iter().for_each(|chunk| receiver.add(chunk).unwrap());
        let error = receiver.add(last).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{last:?}");
    };
    let mut damaged = good.clone();
    damaged.bytes[3] ^= 1;
    refused(&[damaged]);
    refused(&[Chunk { offset: 1, ..good.clone() }]);
    refused(&[good.clone(), good.clone()]);
    refused(&[sealed("a", 0, b"12"), sealed("a", 3, b"4")]);
    refused(&[sealed("a", 0, b"12"), sealed("a", 1, b"2")]);
    refused(&[sealed("b", 0, b"12"), sealed("a", 0, b"34")]);
    refused(&[sealed("a", 0, b"12"), sealed("b", 0, b"34"), sealed("a", 2, b"56")]);
    refused(&[sealed("a", 0, &vec![0; 1024 * 1024 + 1])]);
    for name in ["", "..", "../state/1/CURRENT", "/etc/passwd", ".hidden", "a/b"] {
        refused(&[sealed(name, 0, b"12")]);
    }
    refused(&[sealed("a", u64::MAX, b"12")]);
}

#[tokio::test]
async fn a_received_snapshot_that_is_cut_short_or_another_is_refused_and_removed() {
    let path = tempfile::tempdir().unwrap();
    let real = Disk::real();
    let leader = Node::open_at(&real, &path.path().join("1")).unwrap();
    leader.apply(entries(4, 20)).await.unwrap();
    let snapshot = leader.build().await.unwrap();
    let node = Node::open_at(&real, &path.path().join("2")).unwrap();
    let place = path.path().join("2/snapshots");

    let mut meta = snapshot.meta().clone();
    meta.last_log_id = Some(log_id(1, 18));
    assert!(node.receive_as(&snapshot, &meta).is_err());
    assert_eq!(names(&place), [""; 0]);
    let files = snapshot.files().unwrap();
    // The options are for people, and there is nothing in the written-ahead log.
    let needed = |file: &&String| !file.starts_with("OPTIONS") && !file.ends_with(".log");
    for left_out in files.iter().filter(needed) {
        let mut receiver = node.storage.state.receive_snapshot().unwrap();
        let kept = files.iter().filter(|file| *file != left_out);
        for file in kept {
            receiver.add(&snapshot.chunk(file, 0).unwrap().unwrap()).unwrap();
        }
        let finished = node.storage.state.finish_received(receiver, snapshot.meta());
        assert!(finished.is_err(), "without {left_out} of {files:?}");
        assert_eq!(names(&place), [""; 0]);
    }
    let mut receiver = node.storage.state.receive_snapshot().unwrap();
    receiver.add(&chunks(&snapshot)[0]).unwrap();
    assert_eq!(names(&place).len(), 1);
    drop(receiver);
    assert_eq!(names(&place), [""; 0]);
    assert_eq!(node.storage.fail.reason(), None, "what another node sends stops nobody");
}

/// It may contradict the end of the log, which openraft cuts off before it installs: the next
/// start must not find it.
#[tokio::test]
async fn a_snapshot_that_was_received_but_not_installed_is_nothing() {
    let leader = filled(&SimulatedDisk::default(), &entries(4, 20)).await;
    let snapshot = leader.build().await.unwrap();
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append((0..30).map(|index| blank(0, index)).collect()).await.unwrap();
    let received = node.receive(&snapshot).unwrap();
    assert!(node.storage.state.current_snapshot().is_none());
    disk.fail_writes(true);
    drop((node, received));
    disk.power_cut_keeping(|pending| pending);
    disk.fail_writes(false);
    let node = Node::open(&disk).unwrap();
    assert_eq!(node.start().await.unwrap(), None);
    assert_eq!(node.storage.log.bounds(), (0, 29));
    assert_eq!(disk.list(&dir().join("snapshots")).unwrap(), [""; 0]);
    let received = node.receive(&snapshot).unwrap();
    drop(received);
    assert_eq!(disk.list(&dir().join("snapshots")).unwrap(), [""; 0], "nor when it is dropped");
}

#[tokio::test]
async fn what_a_crash_left_of_removed_snapshots_and_generations_is_no_obstacle() {
    let path = tempfile::tempdir().unwrap();
    let real = Disk::real();
    let node = Node::open_at(&real, path.path()).unwrap();
    node.append(entries(4, 20)).await.unwrap();
    node.apply(entries(4, 20)).await.unwrap();
    let snapshot = node.build().await.unwrap();
    let kept = PathBuf::from(snapshot.dir());
    drop((snapshot, node));
    for left in ["snapshots/7-1-0", "snapshots/9.tmp", "state/0", "state/2.tmp"] {
        std::fs::create_dir_all(path.path().join(left)).unwrap();
        std::fs::write(path.path().join(left).join("CURRENT"), "half of it").unwrap();
    }
    for other in ["snapshots/lost+found", "state/lost+found"] {
        std::fs::create_dir_all(path.path().join(other)).unwrap();
    }
    let node = Node::open_at(&real, path.path()).unwrap();
    assert_eq!(node.storage.state.applied().index, 19);
    assert_eq!(node.storage.state.current_snapshot().unwrap().dir(), kept);
    let kept = kept.file_name().unwrap().to_str().unwrap();
    assert_eq!(names(&path.path().join("snapshots")), [kept, "lost+found"]);
    assert_eq!(names(&path.path().join("state")), ["1", "lost+found"]);
}

/// The state's own flush may be ahead of everything else that was not synced.
#[tokio::test]
async fn a_state_that_is_flushed_before_the_log_is_synced_does_not_keep_the_node_from_starting() {
    for seed in 0..50 {
        let mut rng = rng(seed);
        let disk = SimulatedDisk::default();
        let node = Node::open(&disk).unwrap();
        let entries = entries(seed, 30);
        disk.fail_writes_after(rng.random_range(0..12));
        for step in entries.chunks(5) {
            // Not waited for: openraft applies what is submitted.
            if node.submit(step.to_vec()).await.is_err() || node.apply(step.to_vec()).await.is_err()
            {
                break;
            }
            drop(node.build().await);
        }
        drop(node);
        let mut database = 0;
        disk.power_cut_keeping(|pending| {
            database += 1;
            // The log comes first, and loses all; the state keeps all.
            if database == 1 { 0 } else { pending }
        });
        disk.fail_writes(false);
        let node = Node::open(&disk).unwrap();
        let applied = node.start().await.unwrap();
        let last = node.storage.log.clone().get_log_state().await.unwrap().last_log_id;
        assert!(applied <= last, "A2, seed {seed}: {applied:?} {last:?}");
    }
}

#[tokio::test]
async fn lost_entries_are_noticed_at_the_start() {
    for snapshot_is_kept in [true, false] {
        lose_an_entry(snapshot_is_kept).await;
    }
}

async fn lose_an_entry(snapshot_is_kept: bool) {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append(vec![blank(1, 0)]).await.unwrap();
    disk.lie_about_syncs(true);
    node.append(vec![blank(1, 1)]).await.unwrap();
    node.apply(vec![blank(1, 0), blank(1, 1)]).await.unwrap();
    drop(node.build().await.unwrap());
    drop(node);
    disk.power_cut();
    disk.lie_about_syncs(false);
    if snapshot_is_kept {
        // It looks like an install, after which the log is purged, and the node goes on from there.
        let node = Node::open(&disk).unwrap();
        assert_eq!(node.start().await.unwrap(), Some(log_id(1, 1)));
        assert_eq!(node.entries(0, 9).await.unwrap(), []);
    } else {
        disk.remove(&dir().join("snapshots")).unwrap();
        let error = Node::open(&disk).unwrap_err().to_string();
        let why = "1.1 is applied, but the log ends at 1.0: entries were lost";
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_vote_is_read_back_after_an_install() {
    let node = filled(&SimulatedDisk::default(), &entries(4, 5)).await;
    let mut log = node.storage.log.clone();
    log.save_vote(&crate::Vote::new_committed(4, 2)).await.unwrap();
    let leader = filled(&SimulatedDisk::default(), &entries(4, 20)).await;
    let snapshot = leader.build().await.unwrap();
    node.install(node.receive(&snapshot).unwrap()).await.unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(crate::Vote::new_committed(4, 2)));
}

/// An entry that makes these the voters.
fn members(index: u64, ids: &[u64]) -> LogEntry {
    let nodes: BTreeMap<u64, Member> = ids.iter().map(|id| (*id, Member::default())).collect();
    let voters: BTreeSet<u64> = ids.iter().copied().collect();
    let membership = Membership::new(vec![voters], nodes).unwrap();
    LogEntry { log_id: log_id(1, index), payload: EntryPayload::Membership(membership) }
}

/// A5, S1: of the same moment as the records, for the next start and the next snapshot too.
#[tokio::test]
async fn an_installed_snapshot_brings_its_membership_and_who_was_removed() {
    let (disk, before) = (SimulatedDisk::default(), [members(0, &[1, 2, 3])]);
    let node = filled(&disk, &before).await;
    let after = [before.to_vec(), vec![members(1, &[1, 3, 4])], entries(4, 20)[2..].to_vec()];
    let leader = filled(&SimulatedDisk::default(), &after.concat()).await;
    let snapshot = leader.build().await.unwrap();
    let wanted = snapshot.meta().last_membership.clone();
    assert_eq!(*wanted.log_id(), Some(log_id(1, 1)));
    node.install(node.receive(&snapshot).unwrap()).await.unwrap();
    node.storage.log.clone().purge(log_id(1, 19)).await.unwrap();
    let check = async |node: &Node| {
        let (applied, membership) = node.storage.state.clone().applied_state().await.unwrap();
        assert_eq!((applied, membership), (Some(log_id(1, 19)), wanted.clone()));
        assert_eq!(node.storage.state.removed_members(), BTreeSet::from([2]));
        assert_eq!(node.build().await.unwrap().meta().last_membership, wanted);
    };
    check(&node).await;
    node.append(vec![blank(1, 20)]).await.unwrap();
    node.apply(vec![blank(1, 20)]).await.unwrap();
    let again = node.build().await.unwrap();
    assert_eq!(again.meta().last_membership, wanted);
    drop((node, again));
    let node = Node::open(&disk).unwrap();
    let (_, membership) = node.storage.state.clone().applied_state().await.unwrap();
    assert_eq!(membership, wanted);
}
