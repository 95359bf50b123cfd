//! What nodes say to each other, in frames after a hello.
//!
//! Votes and heartbeats, appends and snapshots each have a connection of their own, so that a
//! vote never queues behind a megabyte. THE WIRE FORMAT: a change is a new protocol version. It is
//! public so that its decoders can be fuzzed.

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};
use tenure_storage::{Chunk, SnapshotMeta, TypeConfig, Vote};

/// From the node that dialled.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerFrame {
    /// The sender's present, if it is an anchored leader.
    pub leader_now_ms: Option<u64>,
    pub message: PeerMessage,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Answered with [`PeerAnswer::Append`].
    Append(AppendEntriesRequest<TypeConfig>),
    /// One of many in flight, answered in order with [`PeerAnswer::Streamed`].
    Stream(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Transfer(TransferLeaderRequest<TypeConfig>),
    /// Starts a snapshot; chunks follow, then the end. Each is answered.
    SnapshotBegin,
    SnapshotChunk(Chunk),
    SnapshotEnd {
        vote: Vote,
        meta: Box<SnapshotMeta>,
    },
    /// Whether the receiver knows that this voter may have voted or acknowledged anything.
    HaveYouSeen {
        node_id: u64,
    },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum PeerAnswer {
    Append(AppendEntriesResponse<TypeConfig>),
    Streamed(StreamAppendResult<TypeConfig>),
    Vote(VoteResponse<TypeConfig>),
    Transfer(TransferLeaderResponse<TypeConfig>),
    SnapshotGoOn,
    Snapshot(SnapshotResponse<TypeConfig>),
    Seen(bool),
    /// The node could not do it: its Raft has stopped, or its disk failed.
    Failed(String),
}
