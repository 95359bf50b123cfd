//! What a caller may conclude when a call has no answer.

use std::sync::Arc;

use tenure_api::Refusal;
use tenure_api::frame::Decided;

use crate::connection::{ConnectionError, DialError};

/// Why a call has no answer. Refusals by a record's rules are answers, not errors.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// A node refused it before the log, and asking again would not help. No record changed.
    #[error("refused")]
    Refused(#[source] Refusal),
    /// It may have committed, or still will: send it again with the same attempt or token.
    #[error("the outcome is unknown")]
    Unknown {
        /// An answer to a later send, which does not tell what became of the first (C2).
        seen: Option<Box<Decided>>,
        /// The last obstacle, if one kept the call from its answer.
        #[source]
        last: Option<Obstacle>,
    },
    /// Nothing was proposed, and the deadline has passed.
    #[error("no node could take it before the deadline")]
    Unavailable {
        /// The last obstacle.
        #[source]
        last: Obstacle,
    },
}

impl CallError {
    /// The node answered another question: what became of the command is not known.
    pub(crate) fn foreign() -> Self {
        Self::Unknown { seen: None, last: Some(Obstacle::WrongAnswer) }
    }
}

/// What came between a send and its answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Obstacle {
    /// There was no endpoint to dial.
    #[error("no endpoints are configured")]
    NoEndpoints,
    /// The deadline passed before a connection stood.
    #[error("no connection before the deadline")]
    NoConnection,
    /// No endpoint could be dialled.
    #[error("no endpoint answers")]
    Dial(#[source] Arc<DialError>),
    /// The connection failed, or had no room.
    #[error("the call had no answer")]
    Connection(#[source] ConnectionError),
    /// A node could not run it then.
    #[error("a node could not run it")]
    Refusal(#[source] Refusal),
    /// The node answered another question than the one that was asked.
    #[error("the node's answer is not one to this request")]
    WrongAnswer,
}
