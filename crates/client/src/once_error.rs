//! Why an action has no recorded result to hand out.

use std::sync::Arc;

use tenure_state_machine::Payload;

use crate::codec::CodecError;
use crate::held::Lost;
use crate::lease::{CompleteError, Lease};
use crate::request::LeaseError;

/// Why [`crate::Once::run`] has no result. The first group has not run the action here, the second
/// has run it and left no trace, the third has run it to its end.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<T, E> {
    /// Not run: there was neither a lease nor a result.
    #[error("not run: no lease and no result")]
    Lease(#[source] LeaseError),
    /// Not run here: it was run before, and what is recorded is no result of this type. It has none
    /// at all if it could not be written ([`crate::UNWRITTEN`]).
    #[error("run before, and its result cannot be read")]
    Unreadable {
        /// What is recorded.
        payload: Option<Arc<Payload>>,
        /// Why it cannot be read; none if there is nothing to be read.
        #[source]
        source: Option<CodecError>,
    },

    /// Run in part: the action returned this error. The record was released, or expires.
    #[error("the action failed, and may run again")]
    Action(E),
    /// Run in part: the lease was lost, and the action was dropped.
    #[error("the action was stopped: its lease was lost")]
    LeaseLost(#[source] Lost),

    /// Run, not recorded: the result is over the limit. The lease is kept and its heartbeats go on:
    /// store less with [`Lease::complete`]. If it is dropped it expires, and the action may run
    /// again.
    #[error("run, not recorded: the result has {size} bytes, the limit is {limit}")]
    TooLarge {
        /// The result.
        value: T,
        /// The lease.
        lease: Lease,
        /// The limit, in bytes.
        limit: usize,
        /// The size of the result as it would be stored, in bytes.
        size: usize,
    },
    /// Run, not recorded, or not known to be. The lease is kept, unless it is that what was lost:
    /// [`Lease::complete`] may be tried again. If it is dropped it expires, and the action may run
    /// again.
    #[error("run, not recorded")]
    NotRecorded {
        /// The result.
        value: T,
        /// The lease.
        lease: Lease,
        /// Why.
        #[source]
        source: CompleteError,
    },
    /// Run, and recorded as COMPLETE without its result, which could not be written: the action
    /// does not run again, and duplicates get [`OnceError::Unreadable`].
    #[error("run, and recorded without its result, which cannot be written")]
    Unwritten {
        /// The result.
        value: T,
        /// Why.
        #[source]
        source: CodecError,
    },
}

impl<T, E> OnceError<T, E> {
    /// The result, if the action has run to its end.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::TooLarge { value, .. }
            | Self::NotRecorded { value, .. }
            | Self::Unwritten { value, .. } => Some(value),
            Self::Lease(_) | Self::Unreadable { .. } | Self::Action(_) | Self::LeaseLost(_) => None,
        }
    }
}
