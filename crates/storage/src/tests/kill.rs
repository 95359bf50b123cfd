//! A kill before and after every write of a node's life: batches, syncs, checkpoints, renames,
//! removals. After each the node must start, whole, with all that was acknowledged.
//!
//! The life is the same each time; the disk fails from the n-th write on, for every n. What was
//! pending then survives in part or not at all, and the start after it may be killed as well.

use std::io;
use std::sync::Arc;

use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use rand::RngExt;

use super::generate::{Entries, Failing, blank, log_id, rng};
use super::node::{Node, dir};
use super::reference::Reference;
use crate::disk::Disk as _;
use crate::{LogEntry, LogId, SimulatedDisk, Snapshot, Vote};

/// What the cluster agrees on: 30 entries and more, in three terms.
struct Cluster {
    entries: Vec<LogEntry>,
    /// Of a leader, up to entry 29.
    snapshot: Arc<Snapshot>,
}

impl Cluster {
    async fn new() -> Self {
        let mut draw = Entries::new(7);
        let term = |index| if index < 17 { 1 } else { 3 };
        let entries: Vec<_> = (0..40).map(|index| draw.next(term(index), index)).collect();
        let leader = Node::open(&SimulatedDisk::default()).unwrap();
        leader.append(entries[..30].to_vec()).await.unwrap();
        leader.apply(entries[..30].to_vec()).await.unwrap();
        let snapshot = leader.build().await.unwrap();
        Self { entries, snapshot }
    }

    fn take(&self, first: usize, end: usize) -> Vec<LogEntry> {
        self.entries[first..end].to_vec()
    }
}

/// What the node has said so far; a kill must not make it a lie.
#[derive(Debug, Default)]
struct Said {
    /// Log and state reach at least so far.
    last: Option<LogId>,
    applied: Option<LogId>,
    committed: Option<LogId>,
    vote: Option<Vote>,
    purged: Option<LogId>,
}

/// The life of a node.
async fn live(disk: &SimulatedDisk, cluster: &Cluster, said: &mut Said) -> io::Result<()> {
    let node = Node::open(disk).map_err(io::Error::other)?;
    let mut log = node.storage.log.clone();
    log.save_vote(&Vote::new_committed(1, 1)).await?;
    said.vote = Some(Vote::new_committed(1, 1));
    node.storage.seen.insert(2)?;
    node.append(cluster.take(0, 10)).await?;
    said.last = Some(log_id(1, 9));
    log.save_committed(Some(log_id(1, 5))).await?;
    node.apply(cluster.take(0, 3)).await?;
    // Looking for what is due, it writes what has gathered.
    node.storage.state.first_deadline_ms()?;
    node.apply(cluster.take(3, 6)).await?;
    node.build().await?;
    said.applied = Some(log_id(1, 5));

    // A leader of term 2 whose entries were never committed.
    node.append(cluster.take(10, 17)).await?;
    said.last = Some(log_id(1, 16));
    let lost = (17..20).map(|index| blank(2, index)).collect();
    let flushed = node.submit(lost).await?;
    node.apply(cluster.take(6, 12)).await?;
    node.storage.state.first_deadline_ms()?;
    flushed.await.map_err(io::Error::other)??;
    log.save_vote(&Vote::new(3, 2)).await?;
    said.vote = Some(Vote::new(3, 2));
    log.truncate_after(Some(log_id(1, 16))).await?;
    let flushed = node.submit(cluster.take(17, 20)).await?;
    node.apply(cluster.take(12, 20)).await?;
    flushed.await.map_err(io::Error::other)??;
    said.last = Some(log_id(3, 19));
    node.build().await?;
    said.applied = Some(log_id(3, 19));
    log.purge(log_id(1, 10)).await?;
    said.purged = Some(log_id(1, 10));
    log.save_committed(Some(log_id(3, 19))).await?;
    node.append(cluster.take(20, 22)).await?;
    // With that synced, the committed index before it is too.
    (said.last, said.committed) = (Some(log_id(3, 21)), Some(log_id(3, 19)));

    // Then it falls behind, and is sent a snapshot.
    let received = node.receive(&cluster.snapshot)?;
    node.install(received).await?;
    (said.last, said.applied) = (Some(log_id(3, 29)), Some(log_id(3, 29)));
    log.purge(log_id(3, 29)).await?;
    said.purged = Some(log_id(3, 29));
    node.append(cluster.take(30, 36)).await?;
    said.last = Some(log_id(3, 35));
    node.apply(cluster.take(30, 33)).await?;
    node.build().await?;
    said.applied = Some(log_id(3, 32));
    log.purge(log_id(3, 31)).await?;
    said.purged = Some(log_id(3, 31));
    Ok(())
}

/// Starts the node and looks at everything.
async fn check(disk: &SimulatedDisk, cluster: &Cluster, said: &Said, at: &str) {
    let node = Node::open(disk).unwrap_or_else(|error| panic!("{at}: {error}"));
    let mut log = node.storage.log.clone();
    let before = log.get_log_state().await.unwrap();
    let applied = node.start().await.unwrap_or_else(|error| panic!("{at}: {error}"));
    let after = log.get_log_state().await.unwrap();
    assert!(after.last_log_id >= said.last, "{at}: {after:?} {said:?}");
    assert!(before.last_purged_log_id >= said.purged, "{at}: {before:?} {said:?}");
    assert!(log.read_vote().await.unwrap() >= said.vote, "{at}: {said:?}");
    assert!(applied >= said.applied.max(said.committed), "{at}: {applied:?} {said:?}");
    assert!(applied <= after.last_log_id, "{at}: A2: {applied:?} {after:?}");

    // The log: contiguous, and what the cluster agrees on wherever that may be.
    let first = after.last_purged_log_id.map_or(0, |purged| purged.index + 1);
    for (index, entry) in (first..).zip(node.entries(0, u64::MAX).await.unwrap()) {
        assert_eq!(entry.log_id.index, index, "{at}: L1");
        if entry.log_id.committed_leader_id().term != 2 {
            assert_eq!(entry, cluster.entries[usize::try_from(index).unwrap()], "{at}");
        }
    }

    // The state: of an exact prefix, in one generation, with at most one snapshot.
    let count = applied.map_or(0, |applied| usize::try_from(applied.index).unwrap() + 1);
    let mut reference = Reference::of(&cluster.entries[..count]);
    let generations = disk.list(&dir().join("state")).unwrap();
    assert_eq!(generations.len(), 1, "{at}: {generations:?}");
    let state = dir().join("state").join(&generations[0]);
    // Looking for what is due, it writes what has gathered.
    node.storage.state.first_deadline_ms().unwrap();
    reference.assert_is(&*disk.open(&state, crate::disk::Layout::State).unwrap());
    let snapshots = disk.list(&dir().join("snapshots")).unwrap();
    assert!(snapshots.len() <= 1, "{at}: {snapshots:?}");
    assert!(snapshots.iter().all(|name| !name.ends_with(".tmp")), "{at}: {snapshots:?}");

    // It goes on: the leader of term 3 overwrites what differs, and the rest is applied.
    let agreed = match after.last_log_id {
        Some(last) if last.committed_leader_id().term == 2 => {
            log.truncate_after(Some(log_id(1, 16))).await.unwrap();
            17
        }
        last => last.map_or(0, |last| usize::try_from(last.index).unwrap() + 1),
    };
    node.append(cluster.take(agreed, 40)).await.unwrap();
    node.apply(cluster.take(count, 40)).await.unwrap();
    cluster.entries[count..].iter().for_each(|entry| reference.apply(entry));
    let snapshot = node.build().await.unwrap();
    let (index, term, hash) = node.storage.state.hash(&snapshot).unwrap();
    assert_eq!((index, term, hash), (39, 3, reference.hash()), "{at}");
    assert_eq!(disk.list(&dir().join("snapshots")).unwrap().len(), 1, "{at}");
}

#[tokio::test]
async fn a_node_that_is_killed_at_any_write_starts_again_with_all_that_it_said() {
    let cluster = Cluster::new().await;
    let whole = SimulatedDisk::default();
    live(&whole, &cluster, &mut Said::default()).await.unwrap();
    // How writes to the log fall into groups differs by a few from life to life.
    let writes = whole.writes() + 6;
    assert!(writes > 40, "only {writes} writes: the life is too short to test anything");
    for kill in 0..=writes {
        for variant in 0..6 {
            let seed = kill * 6 + variant;
            let at = format!("killed at write {kill} of {writes}, variant {variant}");
            let _at = Failing(at.clone());
            let mut rng = rng(seed);
            let disk = SimulatedDisk::default();
            disk.fail_writes_after(kill);
            let mut said = Said::default();
            let lived = live(&disk, &cluster, &mut said).await;
            assert!(lived.is_err() || kill > writes - 12, "{at}: it was not killed");
            let mut cut = || match variant {
                0 => disk.power_cut(),
                1 => disk.power_cut_keeping(|pending| pending),
                // A killed process loses nothing; only the next start tells it from a power cut.
                2 => {}
                _ => disk.power_cut_keeping(|pending| rng.random_range(0..=pending)),
            };
            cut();
            if variant >= 4 {
                disk.fail_writes_after(kill % 7);
                if let Ok(node) = Node::open(&disk) {
                    drop(node.start().await);
                }
                cut();
            }
            disk.fail_writes(false);
            check(&disk, &cluster, &said, &at).await;
        }
    }
}
