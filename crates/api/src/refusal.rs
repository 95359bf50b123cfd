//! Why a node did not run a request, and whether it can still commit. A wrong word here is a false
//! verdict for whoever tests with faults.

use serde::{Deserialize, Serialize};
use tenure_state_machine::Invalid;

/// Where a node can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: u64,
    /// Its HTTP address, host:port.
    pub http: String,
    /// Its RPC address, host:port: peers and native clients.
    pub rpc: String,
}

/// A refusal by a node, as opposed to one by the record's rules, which is an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// A field has a value that no request may carry. Nothing was proposed.
    #[error("{reason}")]
    InvalidArgument {
        /// The dotted path of the field; none where none can be named.
        field: Option<String>,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A payload over its limit. Nothing was proposed; a lease stays.
    #[error("{size} bytes are over the limit of {limit}")]
    PayloadTooLarge {
        /// The limit, in bytes.
        limit: u64,
        /// The size, in bytes.
        size: u64,
    },
    /// The request forbids forwarding and this node does not lead. Nothing was proposed.
    #[error("this node does not lead, and the request forbids forwarding")]
    NotLeader {
        /// Who does, as far as this node knows.
        leader: Option<Node>,
    },
    /// Too many waiters or requests. Nothing was proposed.
    #[error("the node is overloaded: {reason}")]
    Overloaded {
        /// What there is too much of.
        reason: String,
        /// When to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// No leader within the request's time. Nothing was proposed.
    #[error("there is no leader that a majority follows")]
    NoLeader,
    /// The node is stopping. Nothing was proposed.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// Proposed, and no word of it since: it may have committed, or still will.
    #[error("the outcome is unknown: send it again with the same attempt or token")]
    OutcomeUnknown,
    /// The disk is almost full: only reads, release and purge go on. Nothing was proposed.
    #[error("the node has less free disk space than it needs to stay safe")]
    StorageFull,
    /// A defect of the node's. Whether the command can still commit is not known.
    #[error("internal error: the node's log has more under request id {request_id}")]
    Internal {
        /// Finds the cause in the node's log.
        request_id: String,
    },
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        match invalid {
            Invalid::Argument { field, reason } => {
                Self::InvalidArgument { field: Some(field.into_owned()), reason }
            }
            Invalid::PayloadTooLarge { limit, size } => {
                Self::PayloadTooLarge { limit: limit as u64, size: size as u64 }
            }
        }
    }
}
