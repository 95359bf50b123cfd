//! Writes the seeds of all corpora: a few small valid inputs for each target. Run it again when a
//! format has changed: `cargo run --profile checked -p tenure-decoders --example seeds`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a tool for people at a desk"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use openraft::alias::LeaderIdOf;
use openraft::raft::{AppendEntriesRequest, VoteRequest};
use openraft::vote::RaftLeaderIdExt as _;
use openraft::{EntryPayload, Membership, RaftSnapshotBuilder as _};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;
use tenure_api::frame::{Ask, ClientFrame, Hello, List, PROTOCOL, Request, Role, Welcome};
use tenure_api::frame::{Consistency, Decided, Reply, ServerFrame};
use tenure_api::{Refusal, body};
use tenure_decoders::Chunks;
use tenure_network::peer::{PeerAnswer, PeerFrame, PeerMessage};
use tenure_state_machine::{
    Answer, At, Attempt, Command, Counters, Entry, MemoryStore, Name, Record, Store as _, apply,
    codec, snapshot,
};
use tenure_storage::{Chunk, Disk, LogEntry, LogId, Member, SimulatedDisk, TypeConfig, Vote, open};

const BODIES: [&str; 10] = [
    r#"{"scope":"s","key":"k","attempt":"a","holder":"h","lease_ms":5000,"ttl_ms":60000,"wait_ms":10,"fingerprint":"0123456789abcdef","not_after_ms":9}"#,
    r#"{"scope":"s","key":"k","token":7,"ttl_ms":5,"payload":{"type":"a/b","body":"c2VudA==","attributes":{"a":"b"}}}"#,
    r#"{"scope":"s","key":"k","token":7,"payload":{"text":"\u00e9\n"},"not_after_ms":1}"#,
    r#"{"scope":"s","key":"k","token":7,"lease_ms":300}"#,
    r#"{"limit":10}"#,
    r#"{"scope":"s","key":"k","timeout_ms":100}"#,
    r#"{"commands":[{"acquire":{"scope":"s","key":"k"}},{"release":{"scope":"s","key":"k","token":1}},{"complete":{"scope":"s","key":"k","token":1,"payload":{}}}]}"#,
    r#"{"id":4,"http":"127.0.0.1:7604","rpc":"[::1]:7704"}"#,
    r#"{"to":2}"#,
    "prefix=a&state=complete&page_size=5",
];

struct Corpus {
    target: &'static str,
    number: usize,
}

fn corpus(target: &'static str) -> Corpus {
    Corpus { target, number: 0 }
}

impl Corpus {
    fn add(&mut self, bytes: &[u8]) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(self.target);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("seed-{}", self.number)), bytes).unwrap();
        self.number += 1;
    }

    fn value(&mut self, kind: Option<u8>, value: &impl Serialize) {
        let mut bytes: Vec<u8> = kind.into_iter().collect();
        codec::encode_into(&mut bytes, value).unwrap();
        self.add(&bytes);
    }
}

fn acquire() -> Command {
    let fresh = || Attempt::new("fresh").unwrap();
    Command::Acquire(body::acquire(BODIES[0].as_bytes(), fresh).unwrap().0)
}

fn commands() -> Vec<Command> {
    let bytes = |at: usize| BODIES[at].as_bytes();
    vec![
        acquire(),
        Command::Complete(body::complete(bytes(1)).unwrap()),
        Command::Extend(body::extend(bytes(3)).unwrap()),
        Command::Purge(body::purge(bytes(4)).unwrap()),
    ]
}

fn log_id(index: u64) -> LogId {
    LogId::new(LeaderIdOf::<TypeConfig>::new_committed(3, 1), index)
}

fn entries() -> Vec<LogEntry> {
    let entry = Arc::new(Entry { stamp_ms: 1000, commands: commands() });
    let node = Member { http: "h:1".to_owned(), rpc: "h:2".to_owned() };
    let nodes: BTreeMap<u64, Member> = (1..=3).map(|id| (id, node.clone())).collect();
    let membership = Membership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap();
    let payloads =
        [EntryPayload::Blank, EntryPayload::Normal(entry), EntryPayload::Membership(membership)];
    let entries = payloads.into_iter().zip(1..);
    entries.map(|(payload, index)| LogEntry { log_id: log_id(index), payload }).collect()
}

fn client_frames() {
    let mut corpus = corpus("client_frame");
    let (protocol, cluster_id) = (PROTOCOL, "c".to_owned());
    corpus.value(Some(0), &Hello { protocol, cluster_id: None, role: Role::Client });
    let role = Role::Peer { node_id: 2 };
    corpus.value(Some(0), &Hello { protocol, cluster_id: Some(cluster_id.clone()), role });
    corpus.value(Some(1), &Welcome::Accepted { protocol, cluster_id, node_id: 1 });
    let name = || Name::new("s", "k").unwrap();
    let (scope, prefix, page_size) = ("s".to_owned(), "k".to_owned(), 5);
    for ask in [
        Ask::Command { command: acquire(), wait_ms: 10 },
        Ask::Batch(commands()[..2].to_vec()),
        Ask::Get { name: name(), consistency: Consistency::Stale },
        Ask::Wait { name: name(), timeout_ms: 9 },
        Ask::List(List { scope, prefix, state: None, page_size, after: None }),
    ] {
        let request = Request { id: 1, budget_ms: 3000, forwarded: false, ask };
        corpus.value(Some(2), &ClientFrame::Request(request));
    }
    corpus.value(Some(2), &ClientFrame::Cancel { id: 7 });
    let at = At { index: 5, slot: Some(0), term: 1, now_ms: 9 };
    let refused = Refusal::InvalidArgument { field: None, reason: "no".to_owned() };
    for reply in [Ok(Reply::Answer(Decided { answer: Answer::Released, at })), Err(refused)] {
        corpus.value(Some(3), &ServerFrame { id: 1, leader: None, reply });
    }
}

fn peer_frames() {
    let mut corpus = corpus("peer_frame");
    let vote = Vote::new_committed(3, 1);
    let append = || AppendEntriesRequest::<TypeConfig> {
        vote,
        prev_log_id: Some(log_id(0)),
        entries: entries(),
        leader_commit: Some(log_id(2)),
    };
    let bytes = vec![1, 2, 3];
    let checksum = crc32c::crc32c(&bytes);
    let chunk = Chunk { file: "000010.sst".to_owned(), offset: 0, bytes, checksum };
    for message in [
        PeerMessage::Append(append()),
        PeerMessage::Stream(append()),
        PeerMessage::Vote(VoteRequest::new(vote, Some(log_id(4)))),
        PeerMessage::SnapshotBegin,
        PeerMessage::SnapshotChunk(chunk),
        PeerMessage::HaveYouSeen { node_id: 3 },
    ] {
        corpus.value(Some(0), &PeerFrame { leader_now_ms: Some(1000), message });
    }
    for answer in [PeerAnswer::SnapshotGoOn, PeerAnswer::Seen(true)] {
        corpus.value(Some(1), &answer);
    }
}

fn streams() {
    let mut corpus = corpus("frame_stream");
    for frames in [&[&b"abc"[..], b"", b"defgh"][..], &[b"one"]] {
        let mut bytes = vec![3];
        for frame in frames {
            bytes.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(frame);
        }
        corpus.add(&bytes);
    }
}

fn states() {
    let (mut counters, mut store) = (Counters::default(), MemoryStore::default());
    for (stamp_ms, commands) in [(5, vec![acquire()]), (6, commands())] {
        apply(&mut counters, &mut store, &Entry { stamp_ms, commands }).unwrap();
    }
    let name = Name::new("s", "k").unwrap();
    let Ok(record) = store.get(&name);
    let one: (Name, Record) = (name, Record::clone(&record.unwrap()));
    corpus("record").value(None, &one);

    let mut whole = Vec::new();
    snapshot::write(counters, &store, |chunk| whole.push(chunk.to_vec())).unwrap();
    let mut bytes = Vec::new();
    for chunk in whole.chunks(2).map(|pair| &pair[1]) {
        let body = chunk.get(5..).unwrap_or_default();
        bytes.extend_from_slice(&u16::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(body);
    }
    corpus("logical_snapshot").add(&bytes);
}

async fn received_snapshot() {
    let disk = Disk::simulated(&SimulatedDisk::default());
    let storage = open(&disk, Path::new("node"), 1, Some("seed")).unwrap();
    let built = storage.state.clone().build_snapshot().await.unwrap();
    let mut chunks = Vec::new();
    for file in built.snapshot.files().unwrap() {
        let mut offset = 0;
        while let Some(chunk) = built.snapshot.chunk(&file, offset).unwrap() {
            offset += chunk.bytes.len() as u64;
            let is_empty = chunk.bytes.is_empty();
            chunks.push((chunk.file, chunk.offset, chunk.bytes));
            if is_empty {
                break;
            }
        }
    }
    corpus("received_snapshot").value(None, &Chunks { chunks, meta: built.meta });
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    client_frames();
    peer_frames();
    streams();
    let mut logs = corpus("log_entry");
    entries().iter().for_each(|entry| logs.value(None, entry));
    states();
    received_snapshot().await;
    let mut bodies = corpus("body");
    BODIES.iter().for_each(|body| bodies.add(body.as_bytes()));
    let mut walks = corpus("commands");
    for seed in 0..4 {
        let mut bytes = [0; 600];
        StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
        walks.add(&bytes);
    }
}
