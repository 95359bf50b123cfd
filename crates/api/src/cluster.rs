//! What a node says of its cluster.

use serde::{Deserialize, Serialize};

use crate::refusal::Node;

/// The body of `GET /v1/cluster`, as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster_id: String,
    /// The id of the node that answers.
    pub id: u64,
    /// What that node is.
    pub role: NodeRole,
    /// Who leads, as far as that node knows.
    pub leader: Option<Node>,
    /// The node's term.
    pub term: u64,
    /// All members, in the order of their ids.
    pub members: Vec<Member>,
    /// The last log index that the node has, zero before the first.
    pub last_index: u64,
    /// The last log index that it knows to be committed, zero before the first.
    pub committed_index: u64,
    /// The last log index that it has applied, zero before the first.
    pub applied_index: u64,
    /// The last log index that its newest snapshot covers.
    pub snapshot_index: Option<u64>,
    /// Its cluster clock, in milliseconds.
    pub clock_ms: u64,
}

/// What a node is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It leads.
    Leader,
    /// It follows, and votes.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It follows without a vote.
    Learner,
}

/// One member of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Its HTTP address, host:port.
    pub http: String,
    /// Its RPC address, host:port.
    pub rpc: String,
    /// What it is.
    pub role: MemberRole,
    /// The last log index that it is known to have; only a leader knows.
    pub matched_index: Option<u64>,
}

/// What a member is in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// The voter that leads.
    Leader,
    /// It votes.
    Voter,
    /// It has no vote.
    Learner,
}

/// The body of `POST /v1/cluster/snapshot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTaken {
    /// The last log index that it covers.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// Its size, in bytes.
    pub bytes: u64,
    /// The hash of the state, in hex: equal hash, equal state.
    pub hash: String,
}
