//! Raft's types, made concrete once: no generic leaves this crate.

use std::fmt;
use std::sync::Arc;

use openraft::EntryPayload;
use openraft::impls::leader_id_std;
use serde::{Deserialize, Serialize};
use tenure_state_machine::{Answers, Entry};

use crate::state::StateStore;

openraft::declare_raft_types!(
    /// What openraft is told: entries are shared (a cached one goes to two followers and to
    /// apply), and a term has one leader, so that a term names it.
    pub TypeConfig:
        D = Arc<Entry>,
        R = Answers,
        Node = Member,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
);

/// The handle of a running node's Raft.
pub type Raft = openraft::Raft<TypeConfig, StateStore>;
/// The id of a log entry: term and index.
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
/// A log entry, with openraft's own kinds around ours.
pub type LogEntry = openraft::alias::EntryOf<TypeConfig>;
/// A vote.
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
/// A membership with the id of the entry that set it.
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;

/// Where a member of the cluster can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its HTTP address, host:port.
    pub http: String,
    /// Its RPC address, host:port.
    pub rpc: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.http, self.rpc)
    }
}

/// Up to where a state has been applied, and its clock: what every answer is judged at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// The log index of the last applied entry, zero before the first.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The cluster clock, in milliseconds.
    pub clock_ms: u64,
}

/// About how many bytes an entry's commands take.
pub(crate) fn command_bytes(entry: &LogEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(entry) => entry.commands.iter().map(|command| command.size()).sum(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}
