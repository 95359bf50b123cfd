//! The five commands, each with the answers that it can have.

use std::time::Duration;

use tenure_api::frame::Decided;
use tenure_state_machine::{
    Acquire, Answer, At, Attempt, Command, Complete, Completion, Extend, Fingerprint, Holder,
    LeaseLost, Name, Purge, Release, Replay, Token, TookOver, limits,
};

use crate::client::Client;
use crate::error::CallError;

/// What an acquire came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquisition {
    /// The caller holds the record and runs the action.
    Acquired {
        /// The fencing token.
        token: Token,
        /// The lease's deadline, in milliseconds of cluster time.
        lease_until_ms: u64,
        /// The ttl's deadline, in milliseconds of cluster time.
        ttl_until_ms: u64,
        /// Whether this attempt held the record already.
        resumed: bool,
        /// Whose expired lease was stolen.
        took_over: Option<TookOver>,
    },
    /// The action is done: here is its result.
    Replay(Replay),
    /// Another attempt holds the record.
    InProgress {
        /// What is left of the holder's lease, in milliseconds.
        retry_after_ms: u64,
        /// Who holds it.
        holder: Holder,
        /// The holder's token.
        token: Token,
        /// Whether both requests carry fingerprints and these differ.
        fingerprint_differs: bool,
    },
    /// The key stands for another request.
    FingerprintMismatch {
        /// The record's fingerprint.
        stored: Fingerprint,
        /// The request's.
        received: Fingerprint,
    },
    /// `not_after_ms` has passed.
    TooLate,
}

/// What a complete came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The record is COMPLETE now.
    Completed(Completion),
    /// It was COMPLETE before, by the same token; the first payload and times stay.
    AlreadyComplete(Completion),
    /// The token holds nothing.
    LeaseLost(LeaseLost),
    /// `not_after_ms` has passed.
    TooLate,
}

/// What a release came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withdrawal {
    /// The record is gone without a trace.
    Released,
    /// The token holds nothing.
    LeaseLost(LeaseLost),
    /// `not_after_ms` has passed.
    TooLate,
}

/// What an extend came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extension {
    /// The lease is longer now, or as long as it was.
    Extended {
        /// The fencing token.
        token: Token,
        /// The lease's deadline, in milliseconds of cluster time.
        lease_until_ms: u64,
    },
    /// The token holds nothing.
    LeaseLost(LeaseLost),
    /// `not_after_ms` has passed.
    TooLate,
}

/// What a purge came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purgation {
    /// It ran.
    Purged {
        /// How many records it deleted.
        deleted: u32,
        /// Whether more are purgeable.
        more: bool,
    },
    /// `not_after_ms` has passed.
    TooLate,
}

/// A fresh attempt: a random UUID. One for each logical try, whatever becomes of its sends (C1).
#[must_use]
pub fn new_attempt() -> Attempt {
    let uuid = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
    let attempt = Attempt::new(uuid.hyphenated().to_string());
    let Ok(attempt) = attempt else { unreachable!("a UUID is shorter than an attempt may be") };
    attempt
}

/// An acquire of `name` by a fresh attempt, with the default lease and ttl.
#[must_use]
pub fn new_acquire(name: Name) -> Acquire {
    Acquire {
        name,
        attempt: new_attempt(),
        holder: Holder::default(),
        lease_ms: limits::LEASE_DEFAULT_MS,
        ttl_ms: limits::TTL_DEFAULT_MS,
        fingerprint: None,
        not_after_ms: None,
    }
}

impl Client {
    /// Takes a record, or learns who has it, after waiting for it up to `wait`. After an
    /// `Unknown`, the same `acquire` may be called with again.
    ///
    /// # Errors
    /// As [`Client::command`].
    ///
    /// # Dropping
    /// As [`Client::command`].
    pub async fn acquire(
        &self,
        acquire: Acquire,
        wait: Duration,
    ) -> Result<(Acquisition, At), CallError> {
        let Decided { answer, at } = self.command(Command::Acquire(acquire), wait).await?;
        let acquisition = match answer {
            Answer::Acquired { token, lease_until_ms, ttl_until_ms, resumed, took_over } => {
                Acquisition::Acquired { token, lease_until_ms, ttl_until_ms, resumed, took_over }
            }
            Answer::Replay(replay) => Acquisition::Replay(replay),
            Answer::InProgress { retry_after_ms, holder, token, fingerprint_differs } => {
                Acquisition::InProgress { retry_after_ms, holder, token, fingerprint_differs }
            }
            Answer::FingerprintMismatch { stored, received } => {
                Acquisition::FingerprintMismatch { stored, received }
            }
            Answer::TooLate => Acquisition::TooLate,
            Answer::Completed(_)
            | Answer::AlreadyComplete(_)
            | Answer::Released
            | Answer::Extended { .. }
            | Answer::LeaseLost(_)
            | Answer::Purged { .. } => return Err(CallError::foreign()),
        };
        Ok((acquisition, at))
    }

    /// Ends an action with its result.
    ///
    /// # Errors
    /// As [`Client::command`].
    ///
    /// # Dropping
    /// As [`Client::command`].
    pub async fn complete(&self, complete: Complete) -> Result<(Conclusion, At), CallError> {
        let command = Command::Complete(complete);
        let Decided { answer, at } = self.command(command, Duration::ZERO).await?;
        let conclusion = match answer {
            Answer::Completed(completion) => Conclusion::Completed(completion),
            Answer::AlreadyComplete(completion) => Conclusion::AlreadyComplete(completion),
            Answer::LeaseLost(lost) => Conclusion::LeaseLost(lost),
            Answer::TooLate => Conclusion::TooLate,
            Answer::Acquired { .. }
            | Answer::Replay(_)
            | Answer::InProgress { .. }
            | Answer::FingerprintMismatch { .. }
            | Answer::Released
            | Answer::Extended { .. }
            | Answer::Purged { .. } => return Err(CallError::foreign()),
        };
        Ok((conclusion, at))
    }

    /// Ends an action without a trace.
    ///
    /// # Errors
    /// As [`Client::command`].
    ///
    /// # Dropping
    /// As [`Client::command`].
    pub async fn release(&self, release: Release) -> Result<(Withdrawal, At), CallError> {
        let command = Command::Release(release);
        let Decided { answer, at } = self.command(command, Duration::ZERO).await?;
        let withdrawal = match answer {
            Answer::Released => Withdrawal::Released,
            Answer::LeaseLost(lost) => Withdrawal::LeaseLost(lost),
            Answer::TooLate => Withdrawal::TooLate,
            Answer::Acquired { .. }
            | Answer::Replay(_)
            | Answer::InProgress { .. }
            | Answer::FingerprintMismatch { .. }
            | Answer::Completed(_)
            | Answer::AlreadyComplete(_)
            | Answer::Extended { .. }
            | Answer::Purged { .. } => return Err(CallError::foreign()),
        };
        Ok((withdrawal, at))
    }

    /// The holder's heartbeat.
    ///
    /// # Errors
    /// As [`Client::command`].
    ///
    /// # Dropping
    /// As [`Client::command`].
    pub async fn extend(&self, extend: Extend) -> Result<(Extension, At), CallError> {
        let command = Command::Extend(extend);
        let Decided { answer, at } = self.command(command, Duration::ZERO).await?;
        let extension = match answer {
            Answer::Extended { token, lease_until_ms } => {
                Extension::Extended { token, lease_until_ms }
            }
            Answer::LeaseLost(lost) => Extension::LeaseLost(lost),
            Answer::TooLate => Extension::TooLate,
            Answer::Acquired { .. }
            | Answer::Replay(_)
            | Answer::InProgress { .. }
            | Answer::FingerprintMismatch { .. }
            | Answer::Completed(_)
            | Answer::AlreadyComplete(_)
            | Answer::Released
            | Answer::Purged { .. } => return Err(CallError::foreign()),
        };
        Ok((extension, at))
    }

    /// Deletes purgeable records. Not sent again after an unknown outcome: call it again.
    ///
    /// # Errors
    /// As [`Client::command`].
    ///
    /// # Dropping
    /// As [`Client::command`].
    pub async fn purge(&self, purge: Purge) -> Result<(Purgation, At), CallError> {
        let command = Command::Purge(purge);
        let Decided { answer, at } = self.command(command, Duration::ZERO).await?;
        let purgation = match answer {
            Answer::Purged { deleted, more } => Purgation::Purged { deleted, more },
            Answer::TooLate => Purgation::TooLate,
            Answer::Acquired { .. }
            | Answer::Replay(_)
            | Answer::InProgress { .. }
            | Answer::FingerprintMismatch { .. }
            | Answer::Completed(_)
            | Answer::AlreadyComplete(_)
            | Answer::Released
            | Answer::Extended { .. }
            | Answer::LeaseLost(_) => return Err(CallError::foreign()),
        };
        Ok((purgation, at))
    }
}
