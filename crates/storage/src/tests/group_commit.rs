//! Group commit: many appends, few syncs, and nothing said before its sync.

use std::time::Duration;

use super::generate::{blank, log_id, rng};
use super::node::Node;
use crate::SimulatedDisk;
use futures_util::FutureExt;
use openraft::storage::RaftLogStorage;
use rand::RngExt;

#[tokio::test]
async fn appends_are_readable_at_once_and_complete_with_the_sync_that_covers_them() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    let mut flushed = Vec::new();
    disk.stall_log(true);
    for index in 0..1000 {
        flushed.push(node.submit(vec![blank(1, index)]).await.unwrap());
    }
    let readable = node.entries(0, 2000).await.unwrap().len();
    let early = flushed.iter_mut().filter_map(FutureExt::now_or_never).count();
    disk.stall_log(false);
    assert_eq!((readable, early), (1000, 0), "L4 and L2");
    for flushed in flushed {
        flushed.await.unwrap().unwrap();
    }
    let counters = node.storage.log.counters();
    assert_eq!(counters.entries.get(), 1000);
    // One that was on its way when the disk stalled, and one of all the rest.
    assert!(counters.syncs.get() <= 2, "{} syncs", counters.syncs.get());
}

/// Appends one entry after the other, each when the one before is acknowledged, and cuts the power
/// at some moment. Gives the number of acknowledged entries and of those that are there after.
async fn acknowledged_and_found(seed: u64, lying: bool) -> (usize, usize) {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    disk.lie_about_syncs(lying);
    disk.fail_writes_after(rng(seed).random_range(1..30));
    let mut acknowledged = 0;
    while node.append(vec![blank(1, acknowledged)]).await.is_ok() {
        acknowledged += 1;
    }
    drop(node);
    disk.power_cut();
    disk.fail_writes(false);
    disk.lie_about_syncs(false);
    let node = Node::open(&disk).unwrap();
    let found = node.entries(0, u64::MAX).await.unwrap().len();
    (usize::try_from(acknowledged).unwrap(), found)
}

#[tokio::test]
async fn what_was_acknowledged_survives_and_a_lying_disk_is_found_out() {
    for seed in 0..20 {
        let (acknowledged, found) = acknowledged_and_found(seed, false).await;
        assert!(found >= acknowledged, "L2, seed {seed}: {acknowledged}, but {found} are there");
        let (acknowledged, found) = acknowledged_and_found(seed, true).await;
        assert!(found < acknowledged, "seed {seed}: the test does not notice a lost sync");
    }
}

#[tokio::test]
async fn a_vote_is_durable_when_it_is_saved() {
    let disk = SimulatedDisk::default();
    for (term, lying) in [(3, false), (4, true)] {
        let node = Node::open(&disk).unwrap();
        disk.lie_about_syncs(lying);
        node.storage.log.clone().save_vote(&crate::Vote::new(term, 1)).await.unwrap();
        drop(node);
        disk.power_cut();
        disk.lie_about_syncs(false);
        let node = Node::open(&disk).unwrap();
        let vote = openraft::RaftLogReader::read_vote(&mut node.storage.log.clone()).await.unwrap();
        assert_eq!(vote, Some(crate::Vote::new(3, 1)), "L3");
    }
}

#[tokio::test]
async fn the_committed_index_needs_no_sync_of_its_own() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    node.append(vec![blank(1, 0)]).await.unwrap();
    let syncs = node.storage.log.counters().syncs.get();
    node.storage.log.clone().save_committed(Some(log_id(1, 0))).await.unwrap();
    drop(node);
    let node = Node::open(&disk).unwrap();
    assert_eq!(syncs, 1);
    let committed = node.storage.log.clone().read_committed().await.unwrap();
    assert_eq!(committed, Some(log_id(1, 0)), "dropping the log waits for its writer");
}

#[tokio::test]
async fn apply_waits_for_the_log() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    disk.stall_log(true);
    let flushed = node.submit(vec![blank(1, 0)]).await.unwrap();
    let apply = node.apply(vec![blank(1, 0)]);
    let early = tokio::time::timeout(Duration::ZERO, apply).await;
    disk.stall_log(false);
    assert!(early.is_err(), "A2: it must wait");
    flushed.await.unwrap().unwrap();
    node.apply(vec![blank(1, 0)]).await.unwrap();
}

#[tokio::test]
async fn an_install_waits_for_the_log() {
    let leader = Node::open(&SimulatedDisk::default()).unwrap();
    leader.apply((0..9).map(|index| blank(1, index)).collect()).await.unwrap();
    let snapshot = leader.build().await.unwrap();
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    let received = node.receive(&snapshot).unwrap();
    disk.stall_log(true);
    let flushed = node.submit(vec![blank(1, 0)]).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), node.install(received)).await;
    let installed = node.storage.state.applied().index;
    disk.stall_log(false);
    flushed.await.unwrap().unwrap();
    assert!(early.is_err() && installed == 0, "A2: it must wait");
}
