//! What the log gives back, and what it refuses.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use tenure_state_machine::{Command, Complete, Entry, Name, Token};

use super::generate::{blank, log_id, normal, payload};
use super::node::{Node, dir};
use crate::disk::{self, Batch, Database, Durability, Family, Layout, Visit};
use crate::work::Workers;
use crate::{FailStop, LogEntry, LogStore, SimulatedDisk, Vote};

fn blanks(indexes: std::ops::Range<u64>) -> Vec<LogEntry> {
    indexes.map(|index| blank(1, index)).collect()
}

/// An entry with a payload of so many bytes.
fn large(index: u64, bytes: usize) -> LogEntry {
    let complete = Complete {
        name: Name::new("s", "k").unwrap(),
        token: Token::new(1).unwrap(),
        ttl_ms: None,
        payload: Some(payload(bytes)),
        not_after_ms: None,
    };
    normal(1, index, Entry { stamp_ms: 1, commands: vec![Command::Complete(complete)] })
}

fn indexes(entries: &[LogEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.log_id.index).collect()
}

#[tokio::test]
async fn a_purge_may_go_beyond_the_last_entry_and_the_next_one_follows_it() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append(blanks(0..5)).await.unwrap();
    node.storage.log.clone().purge(log_id(2, 9)).await.unwrap();
    assert_eq!(node.storage.log.bounds(), (10, 9));
    assert_eq!(node.entries(0, 100).await.unwrap(), []);
    node.append(vec![blank(2, 10)]).await.unwrap();
    drop(node);
    let node = Node::open(&disk).unwrap();
    let state = node.storage.log.clone().get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(log_id(2, 9)));
    assert_eq!(state.last_log_id, Some(log_id(2, 10)));
}

#[tokio::test]
async fn an_older_purge_changes_nothing() {
    let node = Node::open(&SimulatedDisk::default()).unwrap();
    node.append(blanks(0..10)).await.unwrap();
    node.storage.log.clone().purge(log_id(1, 6)).await.unwrap();
    node.storage.log.clone().purge(log_id(1, 3)).await.unwrap();
    assert_eq!(node.storage.log.bounds(), (7, 9));
}

#[tokio::test]
async fn a_truncation_never_touches_what_is_purged_nor_adds_what_is_not_there() {
    let node = Node::open(&SimulatedDisk::default()).unwrap();
    let mut log = node.storage.log.clone();
    node.append(blanks(0..10)).await.unwrap();
    log.truncate_after(Some(log_id(1, 20))).await.unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 9)));
    log.purge(log_id(1, 4)).await.unwrap();
    log.truncate_after(None).await.unwrap();
    let state = log.get_log_state().await.unwrap();
    assert_eq!(
        (state.last_purged_log_id, state.last_log_id),
        (Some(log_id(1, 4)), Some(log_id(1, 4)))
    );
    node.append(vec![blank(2, 5)]).await.unwrap();
    assert_eq!(indexes(&node.entries(0, 9).await.unwrap()), [5]);
}

#[tokio::test]
async fn an_entry_that_would_leave_a_hole_stops_the_node() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append(blanks(0..3)).await.unwrap();
    assert!(node.append(blanks(4..6)).await.is_err());
    let reason = node.storage.fail.reason().unwrap();
    assert_eq!(reason, "the log may not be written: L1: 4 instead of 3");
    drop(node);
    assert_eq!(Node::open(&disk).unwrap().storage.log.bounds(), (0, 2));
}

#[tokio::test]
async fn who_goes_on_from_a_purged_entry_is_not_given_the_next_one_instead() {
    let node = Node::open(&SimulatedDisk::default()).unwrap();
    let mut log = node.storage.log.clone();
    node.append(blanks(0..10)).await.unwrap();
    log.purge(log_id(1, 4)).await.unwrap();
    assert_eq!(log.limited_get_log_entries(4, 9).await.unwrap(), []);
    assert_eq!(indexes(&log.limited_get_log_entries(5, 9).await.unwrap()), [5, 6, 7, 8]);
    let streamed: Vec<_> = log.entries_stream(4..9).await.collect().await;
    assert!(matches!(&streamed[..], [Err(error)] if error.to_string() == "log entry: 4 is purged"));
}

#[tokio::test]
async fn entries_are_streamed_whole_from_disk_and_memory() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append(blanks(0..700)).await.unwrap();
    drop(node);
    let node = Node::open(&disk).unwrap();
    node.append(blanks(700..1500)).await.unwrap();
    let mut log = node.storage.log.clone();
    for (first, end) in [(0, 1500), (3, 699), (650, 750), (700, 1500), (256, 257), (9, 9)] {
        let streamed: Vec<_> = log.entries_stream(first..end).await.collect().await;
        let streamed: Vec<_> = streamed.into_iter().map(|entry| entry.unwrap()).collect();
        assert_eq!(indexes(&streamed), (first..end).collect::<Vec<_>>());
        assert_eq!(node.entries(first, end).await.unwrap(), streamed);
    }
    let streamed = log.entries_stream(1400..9000).await.count().await;
    assert_eq!(streamed, 100);
}

#[tokio::test]
async fn a_read_for_replication_is_bounded_in_bytes_but_never_empty() {
    let disk = SimulatedDisk::default();
    let mut node = Node::open(&disk).unwrap();
    let mib = 1024 * 1024;
    node.append((0..6).map(|index| large(index, mib)).collect()).await.unwrap();
    for reopened in [false, true] {
        if reopened {
            drop(node);
            node = Node::open(&disk).unwrap();
        }
        let mut log = node.storage.log.clone();
        assert_eq!(indexes(&log.limited_get_log_entries(0, 6).await.unwrap()), [0]);
        assert_eq!(indexes(&log.limited_get_log_entries(5, 6).await.unwrap()), [5]);
        assert_eq!(log.entries_stream(0..6).await.count().await, 6);
    }
}

/// A database in which something happens just before its next scan.
struct Meddled {
    db: Arc<dyn Database>,
    before_scan: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Meddled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddled")
    }
}

impl Database for Meddled {
    fn get(&self, family: Family, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.db.get(family, key)
    }

    fn scan_as_of(
        &self,
        family: Family,
        from: &[u8],
        pinned: &mut dyn FnMut(),
        visit: Visit<'_>,
    ) -> io::Result<()> {
        if let Some(happens) = self.before_scan.lock().unwrap().take() {
            // Of its own thread, as the log's other users are.
            std::thread::spawn(happens).join().unwrap();
        }
        self.db.scan_as_of(family, from, pinned, visit)
    }

    fn write(&self, batch: Batch, durability: Durability) -> io::Result<()> {
        self.db.write(batch, durability)
    }

    fn checkpoint(&self, to: &Path) -> io::Result<()> {
        self.db.checkpoint(to)
    }

    fn check(&self) -> io::Result<()> {
        self.db.check()
    }
}

/// What a reader finds that read entries 0 to 9 of term 1 from disk while `meddle` happened.
fn read_while<F: Future<Output = ()> + Send>(
    meddle: impl FnOnce(LogStore) -> F + Send + 'static,
) -> Vec<(u64, u64)> {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    runtime().block_on(node.append(blanks(0..10))).unwrap();
    let lock = node.storage.lock.clone();
    drop(node);
    let db = disk::Disk::open(&disk, &dir().join("log"), Layout::Log).unwrap();
    let db = Arc::new(Meddled { db, before_scan: Mutex::default() });
    let mut log = LogStore::open(db.clone(), &Workers::Threads, FailStop::default(), lock).unwrap();
    let other = log.clone();
    let meddle = move || runtime().block_on(meddle(other));
    *db.before_scan.lock().unwrap() = Some(Box::new(meddle));
    let read = runtime().block_on(log.try_get_log_entries(0..100)).unwrap();
    let id = |entry: &LogEntry| (entry.log_id.committed_leader_id().term, entry.log_id.index);
    read.iter().map(id).collect()
}

#[test]
fn a_reader_never_sees_a_hole_while_entries_are_cut_off() {
    let truncated = read_while(|mut log| async move {
        log.truncate_after(Some(log_id(1, 4))).await.unwrap();
        log.append([blank(2, 5)], IOFlushed::noop()).await.unwrap();
        log.save_vote(&Vote::new(2, 1)).await.unwrap();
    });
    assert_eq!(truncated, [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 5)]);
    let purged = read_while(|mut log| async move { log.purge(log_id(1, 7)).await.unwrap() });
    assert_eq!(purged, [(1, 8), (1, 9)]);
    let appended = read_while(|mut log| async move {
        log.append([blank(2, 10)], IOFlushed::noop()).await.unwrap();
    });
    assert_eq!(appended.len(), 10, "what came after the read began is not part of it");
}

#[tokio::test]
async fn what_is_queued_when_the_node_fails_is_not_written() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    disk.stall_log(true);
    let first = node.submit(blanks(0..1)).await.unwrap();
    // The writer has the first one in its hands when this is true, so that more is queued.
    while disk.stalled_writes() == 0 {
        tokio::task::yield_now().await;
    }
    let second = node.submit(blanks(1..2)).await.unwrap();
    node.storage.fail.raise("a test");
    disk.stall_log(false);
    first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().unwrap_err().to_string(), "a test");
    drop(node);
    assert_eq!(Node::open(&disk).unwrap().storage.log.bounds(), (0, 0));
}

#[tokio::test]
async fn after_a_failed_write_no_part_writes_any_more() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append(blanks(0..3)).await.unwrap();
    node.apply(blanks(0..2)).await.unwrap();
    disk.fail_writes(true);
    node.append(blanks(3..5)).await.unwrap_err();
    disk.fail_writes(false);
    let (writes, reason) = (disk.writes(), "the log could not be written: simulated write failure");
    assert_eq!(node.storage.fail.reason(), Some(reason));
    assert_eq!(node.storage.fail.raised().await, reason);
    let mut log = node.storage.log.clone();
    log.save_vote(&Vote::new(9, 1)).await.unwrap_err();
    log.save_committed(Some(log_id(1, 2))).await.unwrap_err();
    log.truncate_after(None).await.unwrap_err();
    log.purge(log_id(1, 1)).await.unwrap_err();
    node.append(blanks(5..6)).await.unwrap_err();
    node.storage.seen.insert(7).unwrap_err();
    node.apply(blanks(2..3)).await.unwrap_err();
    node.build().await.unwrap_err();
    assert_eq!(disk.writes(), writes, "L5");
    assert_eq!(node.storage.fail.reason(), Some(reason), "the first reason is the one");
    assert_eq!(node.storage.state.applied().index, 1);
    assert!(!node.storage.seen.contains(7));
}
