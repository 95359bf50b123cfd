//! A data directory of format 1, written by the first build that had it, opens for ever.
//!
//! `TENURE_WRITE_FIXTURE=<new directory> cargo test --profile checked -p tenure-storage --test
//! fixture` writes another one. Never replace `fixtures/v1`: a build that cannot read it cannot read what
//! users have. A new format gets a directory of its own beside it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use futures_util::stream;
use openraft::alias::{LeaderIdOf, OneshotReceiverOf};
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::vote::RaftLeaderIdExt;
use openraft::{EntryPayload, Membership, RaftLogReader, RaftSnapshotBuilder, StorageHelper};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Counters, Entry, Extend, Fingerprint, Holder, MemoryStore,
    Name, Payload, Purge, Release, Token, apply, snapshot,
};
use tenure_storage::{Disk, LogEntry, LogId, Member, Storage, TypeConfig, Vote, open};

/// The hash of the state after entry 9, which the snapshot covers, and after entry 13, the last applied one.
const HASHES: [&str; 2] = [
    "9515531ae2962ef1deaf8f92ee4b4cabc31026d0b03014a975dd4a07910d0db2",
    "ff7a25106e0a04dd59addad4acc8f98a598a4396fca81f4fd65e295dd38331f5",
];

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(LeaderIdOf::<TypeConfig>::new_committed(term, 1), index)
}

fn name(key: &str) -> Name {
    Name::new("scope", key).unwrap()
}

fn acquire(key: &str, attempt: &str, lease_ms: u64, fingerprint: Option<&str>) -> Command {
    Command::Acquire(Acquire {
        name: name(key),
        attempt: Attempt::new(attempt).unwrap(),
        holder: Holder::new("host-1").unwrap(),
        lease_ms,
        ttl_ms: 100_000,
        fingerprint: fingerprint.map(|digits| Fingerprint::new(digits).unwrap()),
        not_after_ms: Some(1_000_000),
    })
}

fn complete(key: &str, token: u64, ttl_ms: Option<u64>, payload: Option<Payload>) -> Command {
    let (token, payload) = (Token::new(token).unwrap(), payload.map(Arc::new));
    Command::Complete(Complete { name: name(key), token, ttl_ms, payload, not_after_ms: None })
}

fn payload() -> Payload {
    let attributes = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    Payload::new(Some("text/plain".to_owned()), b"done".to_vec(), attributes).unwrap()
}

fn members(ids: &[u64]) -> EntryPayload<Arc<Entry>, u64, Member> {
    let voters: BTreeSet<u64> = ids.iter().copied().collect();
    let member = |id: &u64| Member { http: format!("h:{id}"), rpc: format!("r:{id}") };
    let nodes: BTreeMap<u64, Member> = ids.iter().map(|id| (*id, member(id))).collect();
    EntryPayload::Membership(Membership::new(vec![voters], nodes).unwrap())
}

/// Every kind of entry, command and record.
fn entries() -> Vec<LogEntry> {
    let token = |token| Token::new(token).unwrap();
    let commands: Vec<Vec<Command>> = vec![
        vec![
            acquire("plain", "a", 5000, None),
            acquire("printed", "b", 5000, Some("0123456789abcdef")),
        ],
        vec![complete("plain", 1, None, Some(payload()))],
        vec![acquire("none", "c", 10, None), complete("none", 3, Some(50_000), None)],
        vec![acquire("stolen", "d", 10, None)],
        vec![],
        vec![acquire("stolen", "e", 60_000, None), acquire("released", "f", 10, None)],
        vec![
            Command::Release(Release {
                name: name("released"),
                token: token(6),
                not_after_ms: None,
            }),
            acquire("purged", "g", 2, None),
            complete("purged", 7, Some(1), Some(Payload::default())),
        ],
        vec![Command::Extend(Extend {
            name: name("stolen"),
            token: token(5),
            lease_ms: 90_000,
            not_after_ms: None,
        })],
        vec![Command::Purge(Purge { limit: 10, not_after_ms: None })],
        vec![acquire("late", "h", 5000, None)],
    ];
    let mut payloads = vec![members(&[1, 2, 3]), EntryPayload::Blank];
    for (number, commands) in (0..).zip(commands) {
        let stamp_ms = 1_000 + 100 * number;
        payloads.push(EntryPayload::Normal(Arc::new(Entry { stamp_ms, commands })));
    }
    payloads.push(members(&[1, 2, 4]));
    payloads.extend([EntryPayload::Blank, EntryPayload::Blank]);
    let term = |index| if index < 8 { 1 } else { 2 };
    let entries = (0..).zip(payloads);
    entries
        .map(|(index, payload)| LogEntry { log_id: log_id(term(index), index), payload })
        .collect()
}

fn hash_of(entries: &[LogEntry]) -> String {
    let (mut counters, mut store) = (Counters::default(), MemoryStore::default());
    for entry in entries {
        if let EntryPayload::Normal(entry) = &entry.payload {
            apply(&mut counters, &mut store, entry).unwrap();
        }
    }
    snapshot::hash(|sink| snapshot::write(counters, &store, sink)).unwrap()
}

async fn apply_to(storage: &Storage, entries: &[LogEntry]) {
    let entries = entries.iter().cloned().map(|entry| Ok((entry, None)));
    storage.state.clone().apply(stream::iter(entries)).await.unwrap();
}

/// Snapshot of entry 9, log purged through 4, all applied but entry 14, which is not committed.
async fn write(dir: &Path) {
    let storage = open(&Disk::real(), dir, 1, Some("fixture")).unwrap();
    let entries = entries();
    let mut log = storage.log.clone();
    log.save_vote(&Vote::new_committed(2, 1)).await.unwrap();
    let (done, flushed) = TypeConfig::oneshot();
    let flushed: OneshotReceiverOf<TypeConfig, std::io::Result<()>> = flushed;
    log.append(entries.clone(), IOFlushed::signal(done)).await.unwrap();
    flushed.await.unwrap().unwrap();
    apply_to(&storage, &entries[..10]).await;
    storage.state.clone().build_snapshot().await.unwrap();
    log.purge(log_id(1, 4)).await.unwrap();
    apply_to(&storage, &entries[10..14]).await;
    log.save_committed(Some(log_id(2, 13))).await.unwrap();
    storage.seen.insert(2).unwrap();
    storage.seen.insert(4).unwrap();
    drop((log, storage));
    // Nobody reads these, and some name this machine.
    for directory in ["", "log", "state/1", "snapshots/9-2-1"] {
        for file in std::fs::read_dir(dir.join(directory)).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            if name == "LOCK" || name.starts_with("LOG") || name.starts_with("OPTIONS") {
                std::fs::remove_file(file.path()).unwrap();
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn a_directory_of_format_1_opens_with_all_that_is_in_it() {
    if let Some(dir) = std::env::var_os("TENURE_WRITE_FIXTURE") {
        write(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1"), dir.path());
    let storage = open(&Disk::real(), dir.path(), 1, Some("fixture")).unwrap();
    assert_eq!(storage.identity.cluster_id, "fixture");
    assert_eq!([1, 2, 3, 4].map(|id| storage.seen.contains(id)), [false, true, false, true]);

    let (mut log, mut state) = (storage.log.clone(), storage.state.clone());
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(2, 1)));
    assert_eq!(log.read_committed().await.unwrap(), Some(log_id(2, 13)));
    let found = log.get_log_state().await.unwrap();
    assert_eq!(found.last_purged_log_id, Some(log_id(1, 4)));
    let entries = entries();
    assert_eq!(log.try_get_log_entries(0..100).await.unwrap(), entries[5..]);

    let taken = state.current_snapshot().unwrap();
    assert_eq!(state.hash(&taken).unwrap(), (9, 2, HASHES[0].to_owned()));
    assert_eq!(hash_of(&entries[..10]), HASHES[0]);
    StorageHelper::new(&mut log, &mut state).with_id(1).get_initial_state().await.unwrap();
    assert_eq!(state.applied().index, 13);
    assert_eq!(state.removed_members(), BTreeSet::from([3]));
    let built = state.build_snapshot().await.unwrap();
    assert_eq!(built.meta.last_membership.membership().voter_ids().collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(state.hash(&built.snapshot).unwrap(), (13, 2, HASHES[1].to_owned()));
    assert_eq!(hash_of(&entries[..14]), HASHES[1]);
}
