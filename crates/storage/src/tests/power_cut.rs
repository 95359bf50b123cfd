//! Power cuts at random moments of random use of the log.

use std::collections::BTreeMap;
use std::io;

use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use rand::RngExt;

use super::generate::{Entries, Failing, Rng, log_id, rng};
use super::node::Node;
use crate::{LogEntry, LogId, SimulatedDisk, Vote};

const SEEDS: u64 = 300;

/// What the log was told, and what it has acknowledged.
#[derive(Debug, Default)]
struct Told {
    term: u64,
    /// Entries as they are now, acknowledged or not.
    entries: BTreeMap<u64, LogEntry>,
    /// How many of them are acknowledged, counted from the first index.
    acknowledged: u64,
    /// Cut off, so that they must not come back: the acknowledged truncations' ids.
    truncated: Vec<LogId>,
    purged: Option<LogId>,
    committed: Option<LogId>,
    vote: Option<Vote>,
    /// May or may not have been written when the power went.
    last_vote: Option<Vote>,
    last_purge: Option<LogId>,
}

impl Told {
    fn next(&self) -> u64 {
        let purged = self.purged.map_or(0, |purged| purged.index + 1);
        self.entries.last_key_value().map_or(purged, |(index, _)| index + 1)
    }

    fn id_before(&self, index: u64) -> Option<LogId> {
        let before = index.checked_sub(1)?;
        self.entries.get(&before).map(|entry| entry.log_id).or(self.purged)
    }
}

/// Uses the log until something fails.
async fn run(node: &Node, rng: &mut Rng, told: &mut Told) -> io::Result<()> {
    let mut draw = Entries::new(rng.random());
    let mut log = node.storage.log.clone();
    let mut flushed = Vec::new();
    told.term = 1;
    for _ in 0..200 {
        match rng.random_range(0..20) {
            0..12 => {
                let count = rng.random_range(1..6);
                let entries: Vec<_> =
                    (told.next()..told.next() + count).map(|i| draw.next(told.term, i)).collect();
                told.entries
                    .extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
                flushed.push((told.next(), node.submit(entries).await?));
            }
            12..16 => {
                for (next, flushed) in flushed.drain(..) {
                    flushed.await.map_err(io::Error::other)??;
                    told.acknowledged = next;
                }
            }
            16 => {
                told.term += 1;
                told.last_vote = Some(Vote::new_committed(told.term, 1));
                log.save_vote(&Vote::new_committed(told.term, 1)).await?;
                told.vote = told.last_vote;
            }
            17 => {
                told.committed = told.id_before(told.next()).max(told.committed);
                log.save_committed(told.committed).await?;
            }
            18 => {
                let first = told.purged.max(told.committed).map_or(0, |id| id.index + 1);
                let from = rng.random_range(first..=told.next());
                let cut: Vec<_> = told.entries.split_off(&from).into_values().collect();
                told.acknowledged = told.acknowledged.min(from);
                flushed.iter_mut().for_each(|(next, _)| *next = from.min(*next));
                log.truncate_after(told.id_before(from)).await?;
                told.truncated.extend(cut.iter().map(|entry| entry.log_id));
                // The same ids are never given twice.
                told.term += 1;
            }
            _ => {
                let beyond = rng.random_range(0..3);
                let index = rng.random_range(0..told.next() + beyond + 1);
                let id = told.entries.get(&index).map(|entry| entry.log_id);
                let id = id.unwrap_or(log_id(told.term, index));
                if told.purged.is_some_and(|purged| purged.index >= index) {
                    continue;
                }
                told.last_purge = Some(id);
                log.purge(id).await?;
                told.entries = told.entries.split_off(&(index + 1));
                told.purged = Some(id);
            }
        }
    }
    Ok(())
}

async fn check(node: &Node, told: &Told) {
    let mut log = node.storage.log.clone();
    let state = log.get_log_state().await.unwrap();
    let purged = state.last_purged_log_id;
    assert!(purged == told.purged || purged == told.last_purge, "purged {purged:?}");
    let vote = log.read_vote().await.unwrap();
    assert!(vote == told.vote || vote == told.last_vote, "L3: {vote:?}");
    let found = node.entries(0, u64::MAX).await.unwrap();
    let first = purged.map_or(0, |purged| purged.index + 1);
    for (index, entry) in (first..).zip(&found) {
        assert_eq!(entry.log_id.index, index, "L1");
        assert!(!told.truncated.contains(&entry.log_id), "{} came back", entry.log_id);
    }
    assert_eq!(state.last_log_id, found.last().map(|entry| entry.log_id).or(purged));
    for index in first..told.acknowledged {
        let entry = usize::try_from(index - first).ok().and_then(|place| found.get(place));
        assert_eq!(entry, told.entries.get(&index), "L2: entry {index} was acknowledged");
    }
    let committed = log.read_committed().await.unwrap();
    assert!(committed <= state.last_log_id, "{committed:?} is committed and lost");
}

async fn one(seed: u64) {
    let _seed = Failing(format!("seed {seed}"));
    let mut rng = rng(seed);
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    let mut told = Told::default();
    disk.fail_writes_after(rng.random_range(0..60));
    let ran = run(&node, &mut rng, &mut told).await;
    assert!(ran.is_ok() || node.storage.fail.reason().is_some());
    drop(node);
    disk.power_cut_keeping(|pending| rng.random_range(0..=pending));
    disk.fail_writes(false);
    let node = Node::open(&disk).unwrap();
    check(&node, &told).await;
}

#[tokio::test]
async fn a_power_cut_takes_nothing_that_was_acknowledged_and_brings_nothing_back() {
    for seed in 0..SEEDS {
        one(seed).await;
    }
}
