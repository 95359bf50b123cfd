//! What a command is answered. Refusals are values too: they are equal on every replica.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::Payload;
use crate::text::{Fingerprint, Holder};
use crate::token::Token;

/// Where and when an answer was decided, so that a history can be checked without guessing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// The log index. A read saw everything up to and including it.
    pub index: u64,
    /// The command's place in that entry; none for a read.
    pub slot: Option<u32>,
    /// The term of that entry, which names its leader.
    pub term: u64,
    /// The cluster clock, in milliseconds.
    pub now_ms: u64,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The caller holds the record and runs the action.
    Acquired {
        /// The fencing token.
        token: Token,
        /// The lease's deadline, in milliseconds of cluster time.
        lease_until_ms: u64,
        /// The ttl's deadline, in milliseconds of cluster time.
        ttl_until_ms: u64,
        /// Whether this attempt held the record already (rule R8).
        resumed: bool,
        /// Whose expired lease was stolen.
        took_over: Option<TookOver>,
    },
    /// The action is done: here is its result.
    Replay(Replay),
    /// Refused: another attempt holds the record.
    InProgress {
        /// What is left of the holder's lease, in milliseconds.
        retry_after_ms: u64,
        /// Who holds it.
        holder: Holder,
        /// The holder's token.
        token: Token,
        /// Whether both requests carry fingerprints and these differ (rule R9).
        fingerprint_differs: bool,
    },
    /// Refused: the key stands for another request (rule R9).
    FingerprintMismatch {
        /// The record's fingerprint.
        stored: Fingerprint,
        /// The request's.
        received: Fingerprint,
    },
    /// The record is COMPLETE now.
    Completed(Completion),
    /// It was COMPLETE before, by the same token; the first payload and times stay (rule R8).
    AlreadyComplete(Completion),
    /// The record is gone without a trace.
    Released,
    /// The lease is longer now, or as long as it was.
    Extended {
        /// The fencing token.
        token: Token,
        /// The lease's deadline, in milliseconds of cluster time.
        lease_until_ms: u64,
    },
    /// Refused: the token holds nothing (rule R3).
    LeaseLost(LeaseLost),
    /// What a purge did.
    Purged {
        /// How many records it deleted.
        deleted: u32,
        /// Whether more are purgeable.
        more: bool,
    },
    /// Refused: the request's own deadline has passed (rule R10).
    TooLate,
}

/// Whose expired lease a steal ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TookOver {
    /// The token that is worth nothing now.
    pub token: Token,
    /// Who held it.
    pub holder: Holder,
    /// When it was acquired, in milliseconds of cluster time.
    pub acquired_ms: u64,
}

/// The result of an action that is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// The token that completed it.
    pub token: Token,
    /// The result, or none.
    pub payload: Option<Arc<Payload>>,
    /// When it was completed, in milliseconds of cluster time.
    pub completed_ms: u64,
    /// Until when it is kept, in milliseconds of cluster time.
    pub expires_ms: u64,
}

/// When a record was completed, and how long it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The token that completed it.
    pub token: Token,
    /// When, in milliseconds of cluster time.
    pub completed_ms: u64,
    /// Until when it is kept, in milliseconds of cluster time.
    pub expires_ms: u64,
}

/// Why a token holds nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseLost {
    /// There is no record: released, purged, expired or never there.
    Absent,
    /// The record is IN_PROGRESS with another token.
    Stolen {
        /// The token that holds it.
        current_token: Token,
    },
    /// The record is COMPLETE.
    Completed {
        /// The token that completed it.
        current_token: Token,
    },
}

/// The answers to the commands of one entry, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Answers {
    /// The cluster clock at which all were decided, in milliseconds.
    pub now_ms: u64,
    /// One answer a command.
    pub answers: Vec<Answer>,
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answers at {} ms", self.answers.len(), self.now_ms)
    }
}
