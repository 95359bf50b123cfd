//! What the log and the state of one node cost on this machine's disk, through openraft's traits.
//! An append waits for its sync, so it measures the disk; the others measure us.
//!
//!     cargo bench --profile release -p tenure-storage --bench disk

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that fails should say where")]

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::stream;
use openraft::EntryPayload;
use openraft::alias::{LeaderIdOf, OneshotReceiverOf};
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::vote::RaftLeaderIdExt;
use tempfile::TempDir;
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Counters, Entry, Holder, MemoryStore, Name, Payload,
    Record, Store, Token, apply, codec,
};
use tenure_storage::{Disk, LogEntry, LogId, Storage, TypeConfig, open};
use tokio::runtime::Runtime;

/// A node in a temporary directory, below the build's own.
struct Node {
    runtime: Runtime,
    storage: Storage,
    /// Of the next entry.
    index: u64,
    /// Records acquired so far; the token of the last one.
    acquired: u64,
    _directory: TempDir,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let storage = open(&Disk::real(), directory.path(), 1, Some("bench")).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Self { runtime, storage, index: 0, acquired: 0, _directory: directory }
    }

    fn entry(&mut self, commands: Vec<Command>) -> LogEntry {
        let log_id = LogId::new(LeaderIdOf::<TypeConfig>::new_committed(1, 1), self.index);
        self.index += 1;
        let entry = Arc::new(Entry { stamp_ms: 1000, commands });
        LogEntry { log_id, payload: EntryPayload::Normal(entry) }
    }

    /// Acquires of so many fresh keys.
    fn acquires(&mut self, number: u64) -> LogEntry {
        let first = self.acquired;
        self.acquired += number;
        self.entry((first..self.acquired).map(acquire).collect())
    }

    /// Completes of the last so many of them.
    fn completes(&mut self, number: u64) -> LogEntry {
        self.entry((self.acquired - number..self.acquired).map(complete).collect())
    }

    /// Appends, and waits for the sync.
    fn append(&self, entry: LogEntry) {
        self.runtime.block_on(async {
            let (done, flushed) = TypeConfig::oneshot();
            let flushed: OneshotReceiverOf<TypeConfig, io::Result<()>> = flushed;
            let mut log = self.storage.log.clone();
            log.append([entry], IOFlushed::signal(done)).await.unwrap();
            flushed.await.unwrap().unwrap();
        });
    }

    fn apply(&self, entry: LogEntry) {
        let entries = stream::iter([Ok((entry, None))]);
        self.runtime.block_on(self.storage.state.clone().apply(entries)).unwrap();
    }
}

fn name(number: u64) -> Name {
    // Neighbours in number are none in order, as with UUIDs.
    let key = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Name::new("bench", &format!("{key:032x}")).unwrap()
}

fn acquire(number: u64) -> Command {
    Command::Acquire(Acquire {
        name: name(number),
        attempt: Attempt::new(format!("{number:036x}")).unwrap(),
        holder: Holder::default(),
        lease_ms: 30_000,
        ttl_ms: 86_400_000,
        fingerprint: None,
        not_after_ms: None,
    })
}

/// Tokens are counted: the record with this number has the next one.
fn complete(number: u64) -> Command {
    let payload = Some(Arc::new(Payload::new(None, vec![7; 256], Default::default()).unwrap()));
    let (name, token) = (name(number), Token::new(number + 1).unwrap());
    Command::Complete(Complete { name, token, ttl_ms: None, payload, not_after_ms: None })
}

fn log(c: &mut Criterion) {
    let mut group = c.benchmark_group("log");
    group.sample_size(30).measurement_time(Duration::from_secs(3));
    let mut node = Node::new();
    for number in [1, 64] {
        group.throughput(Throughput::Elements(number));
        group.bench_function(format!("append {number} acquires, synced"), |b| {
            b.iter(|| {
                let entry = node.acquires(number);
                node.append(entry);
            });
        });
    }
    group.finish();
}

fn state(c: &mut Criterion) {
    let mut group = c.benchmark_group("state");
    group.sample_size(30).measurement_time(Duration::from_secs(3));
    let mut node = Node::new();
    for number in [1, 64] {
        group.throughput(Throughput::Elements(2 * number));
        group.bench_function(format!("apply {number} acquires and completes"), |b| {
            // The state waits for the log, so all is appended before the clock starts.
            b.iter_custom(|rounds| {
                let mut entries = Vec::new();
                for _ in 0..rounds {
                    entries.extend([node.acquires(number), node.completes(number)]);
                }
                entries.iter().for_each(|entry| node.append(entry.clone()));
                timed(|| entries.into_iter().for_each(|entry| node.apply(entry)))
            });
        });
    }
    group.finish();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn records(c: &mut Criterion) {
    let (mut counters, mut store) = (Counters::default(), MemoryStore::default());
    for command in [acquire(0), complete(0)] {
        let entry = Entry { stamp_ms: 1000, commands: vec![command] };
        apply(&mut counters, &mut store, &entry).unwrap();
    }
    let record = store.get(&name(0)).unwrap().unwrap();
    let bytes = codec::seal(1, &*record).unwrap();
    let mut group = c.benchmark_group("record");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("seal", |b| b.iter(|| codec::seal(1, black_box(&*record)).unwrap()));
    group.bench_function("unseal", |b| {
        b.iter(|| codec::unseal::<Record>(1, black_box(&bytes)).unwrap());
    });
    group.finish();
}

criterion_group!(all, log, state, records);
criterion_main!(all);
