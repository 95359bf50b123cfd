//! What the log carries. THE LOG FORMAT: a new variant or field is a format change.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, in_range};
use crate::limits::{
    LEASE_DEFAULT_MS, LEASE_MAX_MS, LEASE_MIN_MS, PURGE_DEFAULT, PURGE_MAX, TTL_DEFAULT_MS,
    TTL_MAX_MS, TTL_MIN_MS,
};
use crate::name::Name;
use crate::payload::Payload;
use crate::text::{Attempt, Fingerprint, Holder};
use crate::token::Token;

/// One entry of the log: the leader's time and the commands that it found waiting. Without a
/// command it is a tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's time when it proposed the entry, in milliseconds of cluster time.
    pub stamp_ms: u64,
    /// At most [`crate::limits::ENTRY_COMMANDS`]; a command's place is its slot.
    pub commands: Vec<Command>,
}

/// One transition of a record, or a purge of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Takes a record, or learns who has it.
    Acquire(Acquire),
    /// Ends an action with its result.
    Complete(Complete),
    /// Ends an action without a trace.
    Release(Release),
    /// The holder's heartbeat.
    Extend(Extend),
    /// Deletes purgeable records.
    Purge(Purge),
}

/// Takes a record, or learns who has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// Which record.
    pub name: Name,
    /// Whose logical try this is.
    pub attempt: Attempt,
    /// Who asks.
    pub holder: Holder,
    /// A lease as checked by [`lease_ms`].
    pub lease_ms: u64,
    /// A ttl as checked by [`ttl_ms`].
    pub ttl_ms: u64,
    /// A hash of the request.
    pub fingerprint: Option<Fingerprint>,
    /// After this moment of cluster time the command changes nothing (rule R10).
    pub not_after_ms: Option<u64>,
}

/// Ends an action with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    /// Which record.
    pub name: Name,
    /// The token that its acquire was given.
    pub token: Token,
    /// A ttl as checked by [`ttl_ms`]; without it, the acquire's.
    pub ttl_ms: Option<u64>,
    /// The result to keep.
    pub payload: Option<Arc<Payload>>,
    /// After this moment of cluster time the command changes nothing (rule R10).
    pub not_after_ms: Option<u64>,
}

/// Ends an action without a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Which record.
    pub name: Name,
    /// The token that its acquire was given.
    pub token: Token,
    /// After this moment of cluster time the command changes nothing (rule R10).
    pub not_after_ms: Option<u64>,
}

/// The holder's heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extend {
    /// Which record.
    pub name: Name,
    /// The token that its acquire was given.
    pub token: Token,
    /// A lease as checked by [`lease_ms`], counted from now.
    pub lease_ms: u64,
    /// After this moment of cluster time the command changes nothing (rule R10).
    pub not_after_ms: Option<u64>,
}

/// Deletes purgeable records, oldest deadline first (rule R11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purge {
    /// At most so many, as checked by [`purge_limit`].
    pub limit: u32,
    /// After this moment of cluster time the command changes nothing (rule R10).
    pub not_after_ms: Option<u64>,
}

/// A lease within its bounds, the default where none is given.
///
/// # Errors
/// [`Invalid::Argument`] on `lease_ms`.
pub fn lease_ms(lease_ms: Option<u64>) -> Result<u64, Invalid> {
    in_range("lease_ms", lease_ms.unwrap_or(LEASE_DEFAULT_MS), LEASE_MIN_MS, LEASE_MAX_MS)
}

/// A ttl within its bounds, the default where none is given.
///
/// # Errors
/// [`Invalid::Argument`] on `ttl_ms`.
pub fn ttl_ms(ttl_ms: Option<u64>) -> Result<u64, Invalid> {
    in_range("ttl_ms", ttl_ms.unwrap_or(TTL_DEFAULT_MS), TTL_MIN_MS, TTL_MAX_MS)
}

/// A purge limit within its bounds, the default where none is given.
///
/// # Errors
/// [`Invalid::Argument`] on `limit`.
pub fn purge_limit(limit: Option<u64>) -> Result<u32, Invalid> {
    let limit = limit.unwrap_or(u64::from(PURGE_DEFAULT));
    in_range("limit", limit, 1, u64::from(PURGE_MAX))
        .map(|limit| u32::try_from(limit).unwrap_or(PURGE_MAX))
}

impl Command {
    /// Checks the plain numbers of a command that came from outside; all other fields are checked
    /// by their types.
    ///
    /// # Errors
    /// [`Invalid::Argument`] on the field that is out of bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Acquire(acquire) => {
                lease_ms(Some(acquire.lease_ms))?;
                ttl_ms(Some(acquire.ttl_ms))?;
            }
            Self::Complete(complete) => {
                ttl_ms(complete.ttl_ms)?;
            }
            Self::Extend(extend) => {
                lease_ms(Some(extend.lease_ms))?;
            }
            Self::Purge(purge) => {
                purge_limit(Some(u64::from(purge.limit)))?;
            }
            Self::Release(_) => {}
        }
        Ok(())
    }

    /// The record that the command is about; none for a purge.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Acquire(acquire) => Some(&acquire.name),
            Self::Complete(complete) => Some(&complete.name),
            Self::Release(release) => Some(&release.name),
            Self::Extend(extend) => Some(&extend.name),
            Self::Purge(_) => None,
        }
    }

    /// The request's own deadline.
    #[must_use]
    pub fn not_after_ms(&self) -> Option<u64> {
        match self {
            Self::Acquire(acquire) => acquire.not_after_ms,
            Self::Complete(complete) => complete.not_after_ms,
            Self::Release(release) => release.not_after_ms,
            Self::Extend(extend) => extend.not_after_ms,
            Self::Purge(purge) => purge.not_after_ms,
        }
    }

    /// About how many bytes the command takes in an entry.
    #[must_use]
    pub fn size(&self) -> usize {
        let name = self.name().map_or(0, |name| name.as_stored().len());
        let rest = match self {
            Self::Acquire(acquire) => {
                acquire.attempt.as_str().len()
                    + acquire.holder.as_str().len()
                    + acquire.fingerprint.as_ref().map_or(0, |print| print.as_str().len())
            }
            Self::Complete(complete) => complete.payload.as_ref().map_or(0, |p| p.size()),
            Self::Release(_) | Self::Extend(_) | Self::Purge(_) => 0,
        };
        64 + name + rest
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands at {} ms", self.commands.len(), self.stamp_ms)
    }
}
