//! The native protocol's frames: what Rust clients, and nodes that forward for others, send over
//! a long-lived connection with many requests in flight.
//!
//! A connection starts with eight bytes, [`MAGIC`], then a [`Hello`] each way; everything is a
//! frame: length (u32, little-endian, at most [`FRAME_BYTES`]), then one bincode value through
//! `tenure_state_machine::codec`. The client sends [`ClientFrame`]s, the node [`ServerFrame`]s, in
//! any order; `id` says what belongs together. THE WIRE FORMAT: a new variant or field is a new
//! [`PROTOCOL`].

use serde::{Deserialize, Serialize};
use tenure_state_machine::limits::KEY_CHARS;
use tenure_state_machine::{Answer, At, Command, Invalid, Name, Record, check_scope};

use crate::body;
use crate::cluster::ClusterStatus;
use crate::refusal::{Node, Refusal};
use crate::view::{Listed, View};

/// What every connection to an RPC port starts with.
pub const MAGIC: [u8; 8] = *b"tenure\r\n";
/// The version of all frames, of clients and of peers.
pub const PROTOCOL: u16 = 1;
/// Largest frame, in bytes: a batch or an answer with 8 MiB of payload, and room.
pub const FRAME_BYTES: usize = 12 * 1024 * 1024;
/// Most requests that one connection may have in flight; further ones are not read until some
/// are answered.
pub const IN_FLIGHT: usize = 4096;

/// The first frame, from who dials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The dialler's [`PROTOCOL`].
    pub protocol: u16,
    /// The cluster that the dialler belongs to or means; none when any will do.
    pub cluster_id: Option<String>,
    /// What will be spoken.
    pub role: Role,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Requests, in [`ClientFrame`]s.
    Client,
    /// Raft messages of the node with this id, in frames of the network crate.
    Peer {
        /// Which node dials.
        node_id: u64,
    },
}

/// The answer to a [`Hello`]. After a refusal the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// Go on.
    Accepted {
        /// The node's [`PROTOCOL`].
        protocol: u16,
        /// The node's cluster.
        cluster_id: String,
        /// The node's id.
        node_id: u64,
    },
    /// The node does not speak with this dialler.
    Refused {
        /// Why, for people.
        reason: String,
    },
}

/// From a client to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// Asks something.
    Request(Request),
    /// The answer to request `id` is not wanted any more; a waiting acquire leaves its queue.
    Cancel {
        /// The request's id.
        id: u64,
    },
}

/// Something asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, unique among its connection's requests in flight.
    pub id: u64,
    /// How long the client will wait for the answer from the moment it sent this, in
    /// milliseconds. The node answers within it, and within its own limits.
    pub budget_ms: u64,
    /// Sent by a node for its own client: the receiver must not forward it again.
    pub forwarded: bool,
    /// What.
    pub ask: Ask,
}

/// What a request asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// One command. `wait_ms` is how long an acquire may wait for the record; zero for others.
    Command {
        /// What to do.
        command: Command,
        /// At most `WAIT_MAX_MS`.
        wait_ms: u64,
    },
    /// Independent commands (no purge), proposed in one log entry.
    Batch(Vec<Command>),
    /// Reads a record.
    Get {
        /// Which.
        name: Name,
        /// How fresh.
        consistency: Consistency,
    },
    /// Waits until a record is COMPLETE, absent, or its lease has expired.
    Wait {
        /// Which.
        name: Name,
        /// How long, in milliseconds, at most `WAIT_MAX_MS`.
        timeout_ms: u64,
    },
    /// Lists records of a scope, stale.
    List(List),
    /// Changes who belongs to the cluster, or who leads it.
    Change(Change),
}

/// A change of the cluster itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Adds a node as a learner. Its id must never have been a member's.
    Add(Node),
    /// Makes a learner a voter.
    Promote {
        /// Which.
        id: u64,
    },
    /// Removes a member for ever.
    Remove {
        /// Which.
        id: u64,
    },
    /// Hands leadership to a voter.
    Transfer {
        /// Which.
        to: u64,
    },
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Consistency {
    /// It sees every write acknowledged before it was asked (Raft thesis, section 6.4).
    #[default]
    Linearizable,
    /// Whatever the asked node has applied; the answer's `at` says what that is.
    Stale,
}

impl Ask {
    /// Checks what came in a frame as strictly as a body: its types have checked the rest.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`], [`Refusal::PayloadTooLarge`].
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Command { command, wait_ms } => {
                command.check()?;
                let waits = matches!(command, Command::Acquire(_)) || *wait_ms == 0;
                if !waits {
                    return Err(Invalid::argument("wait_ms", "must be 0: no acquire").into());
                }
                body::wait_within("wait_ms", *wait_ms)?;
            }
            Self::Batch(commands) => {
                body::check_batch(commands.len(), commands.iter())?;
                for command in commands {
                    command.check()?;
                }
            }
            Self::Get { .. } => {}
            Self::Wait { timeout_ms, .. } => {
                body::wait_within("timeout_ms", *timeout_ms)?;
            }
            Self::List(list) => list.check()?,
            Self::Change(Change::Add(node)) => body::check_member(node)?,
            Self::Change(_) => {}
        }
        Ok(())
    }
}

/// One page of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Which scope.
    pub scope: String,
    /// Only keys that start with this.
    pub prefix: String,
    /// Only records in this state.
    pub state: Option<Phase>,
    /// At most so many, 1 to [`PAGE_MAX`].
    pub page_size: u32,
    /// Only keys after this one: the `next` of the page before.
    pub after: Option<String>,
}

impl List {
    /// Checks scope, prefix and page size.
    ///
    /// # Errors
    /// [`Invalid::Argument`] on the field.
    pub fn check(&self) -> Result<(), Invalid> {
        check_scope(&self.scope)?;
        if self.prefix.chars().count() > KEY_CHARS {
            let reason = format!("must have at most {KEY_CHARS} characters");
            return Err(Invalid::argument("prefix", reason));
        }
        if !(1..=PAGE_MAX).contains(&self.page_size) {
            let reason = format!("must be 1 to {PAGE_MAX}, not {}", self.page_size);
            return Err(Invalid::argument("page_size", reason));
        }
        Ok(())
    }
}

/// Records of a page that names no size.
pub const PAGE_DEFAULT: u32 = 100;
/// Most records of a page.
pub const PAGE_MAX: u32 = 1000;

/// The state of a visible record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// IN_PROGRESS.
    InProgress,
    /// COMPLETE.
    Complete,
}

impl Phase {
    /// The phase of a record.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        match record.state {
            tenure_state_machine::State::InProgress { .. } => Self::InProgress,
            tenure_state_machine::State::Complete { .. } => Self::Complete,
        }
    }
}

/// From a node to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFrame {
    /// The request's id.
    pub id: u64,
    /// The leader as far as the node knows, when it is not the node itself: dial that.
    pub leader: Option<Node>,
    /// The answer. A refusal says whether the command can still commit.
    pub reply: Result<Reply, Refusal>,
}

/// What a request is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Ask::Command`].
    Answer(Decided),
    /// To [`Ask::Batch`], in the order of the commands. A payload that did not fit into the
    /// answer is refused in its place.
    Batch(Vec<Result<Decided, Refusal>>),
    /// To [`Ask::Get`].
    Record {
        /// The record, if there is one.
        view: Option<View>,
        /// Where and when it was read.
        at: At,
    },
    /// To [`Ask::Wait`].
    Waited {
        /// What was seen.
        waited: Waited,
        /// Where and when.
        at: At,
    },
    /// To [`Ask::List`].
    List {
        /// The records, in the order of their keys.
        records: Vec<Listed>,
        /// Where the next page starts, if there is one.
        next: Option<String>,
        /// Where and when they were read.
        at: At,
    },
    /// To [`Ask::Change`]: the cluster after it.
    Changed(Box<ClusterStatus>),
}

/// An answer with its place in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// What the state machine said.
    pub answer: Answer,
    /// Where and when.
    pub at: At,
}

/// What a wait ended with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waited {
    /// The record is COMPLETE: its result.
    Complete(tenure_state_machine::Replay),
    /// There is no record.
    Absent,
    /// The holder's lease has run out; an acquire would steal it.
    LeaseExpired,
    /// The time is up and the lease lives.
    TimedOut {
        /// What is left of the lease, in milliseconds.
        retry_after_ms: u64,
    },
}
