//! What is asked for before a lease is there.

use std::time::Duration;

use tenure_state_machine::limits::{LEASE_DEFAULT_MS, TTL_DEFAULT_MS, WAIT_MAX_MS};
use tenure_state_machine::{
    Acquire, Fingerprint, Holder, Invalid, LeaseLost, Name, Replay, Token, command,
};
use tokio::time::Instant;

use crate::client::Client;
use crate::error::CallError;
use crate::held::{Held, Terms};
use crate::lease::{AdoptError, Lease};
use crate::operations::{Acquisition, new_attempt};

/// An acquire may wait so long in one send; a longer wait is several of them.
const WAIT_MAX: Duration = Duration::from_millis(WAIT_MAX_MS);
/// An acquire that took longer than this part of its lease is confirmed by a heartbeat before it
/// counts: it is not known when in that time it was granted.
const FRESH_PART: u32 = 10;

/// A lease that is asked for; [`Client::lease`] starts one.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is acquired"]
pub struct LeaseRequest {
    pub(crate) client: Client,
    pub(crate) name: Result<Name, Invalid>,
    holder: Result<Holder, Invalid>,
    pub(crate) fingerprint: Option<Fingerprint>,
    lease: Duration,
    ttl: Duration,
    pub(crate) wait: Duration,
    margin: Option<Duration>,
}

/// What a request for a lease came to.
#[derive(Debug)]
pub enum Leased {
    /// The caller holds the record, runs the action and completes it.
    Held(Lease),
    /// The action is done: here is its result.
    Replay(Replay),
}

/// Why there is neither a lease nor a result. The caller runs nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// A name or a duration is out of bounds; nothing was sent.
    #[error("the request is not valid")]
    Invalid(#[from] Invalid),
    /// Another attempt holds the record, still after the wait.
    #[error("in progress elsewhere, for {retry_after_ms} ms at least unless it ends before")]
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
    #[error("the key stands for another request")]
    FingerprintMismatch {
        /// The record's fingerprint.
        stored: Fingerprint,
        /// The request's.
        received: Fingerprint,
    },
    /// It was acquired, and lost before it could be used.
    #[error("acquired, and lost at once")]
    LeaseLost(LeaseLost),
    /// There was no answer. If it is `Unknown`, nobody may have the record for one lease.
    #[error("no answer to the acquire")]
    Call(#[source] Box<CallError>),
    /// It was acquired, and took so long that nothing is left of the lease.
    #[error("acquired too late to be of use; it expires")]
    TooSlow,
}

impl From<CallError> for LeaseError {
    fn from(error: CallError) -> Self {
        Self::Call(Box::new(error))
    }
}

impl Client {
    /// Asks for a lease on a record. Without more words: a lease of 30 s, a ttl of 24 h, the
    /// client's holder, and no wait.
    pub fn lease(&self, scope: &str, key: &str) -> LeaseRequest {
        LeaseRequest {
            client: self.clone(),
            name: Name::new(scope, key),
            holder: Ok(self.shared.holder.clone()),
            fingerprint: None,
            lease: Duration::from_millis(LEASE_DEFAULT_MS),
            ttl: Duration::from_millis(TTL_DEFAULT_MS),
            wait: Duration::ZERO,
            margin: None,
        }
    }
}

impl LeaseRequest {
    /// How long the holder is protected without a heartbeat: 2 ms to 24 h, in whole milliseconds.
    /// A third of it lies between two heartbeats.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long the record is kept: 1 ms to 3650 days, from the acquire and again from the
    /// completion.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for a record that another one holds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// A hash of the request: another one for the same key is refused.
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Who acquires, for people; the client's holder if it is not given.
    pub fn holder(mut self, holder: impl Into<Box<str>>) -> Self {
        self.holder = Holder::new(holder);
        self
    }

    /// How much earlier than the lease the holder stops: what it takes to stop, and what clocks
    /// may drift apart (a part in 500 is plenty). A tenth of the lease if it is not given.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    pub(crate) fn terms(&self) -> Result<Terms, Invalid> {
        let lease_ms = whole_millis("lease", self.lease)?;
        let lease = Duration::from_millis(command::lease_ms(Some(lease_ms))?);
        let margin = self.margin.unwrap_or(lease / 10);
        if margin > lease / 2 {
            return Err(Invalid::argument("margin", "must be at most half of the lease"));
        }
        Ok(Terms { lease, margin })
    }

    fn acquire_command(&self, terms: Terms) -> Result<Acquire, Invalid> {
        Ok(Acquire {
            name: self.name.clone()?,
            attempt: new_attempt(),
            holder: self.holder.clone()?,
            lease_ms: whole_millis("lease", terms.lease)?,
            ttl_ms: command::ttl_ms(Some(whole_millis("ttl", self.ttl)?))?,
            fingerprint: self.fingerprint.clone(),
            not_after_ms: None,
        })
    }

    /// Takes the record, or learns its result, after waiting for it. All sends carry one attempt,
    /// and where the client knows cluster time, none of them takes the record after this call's
    /// deadline.
    ///
    /// # Errors
    /// [`LeaseError`].
    ///
    /// # Dropping
    /// A wait leaves its queue. A record that was granted on the way stays held for one lease.
    pub async fn acquire(self) -> Result<Leased, LeaseError> {
        let terms = self.terms()?;
        let mut acquire = self.acquire_command(terms)?;
        let waits_until = Instant::now() + self.wait.min(crate::client::CALL_MAX);
        let client = &self.client;
        let mut knows_time = true;
        loop {
            let left = waits_until.saturating_duration_since(Instant::now());
            let wait = left.min(WAIT_MAX);
            let sent_at = client.shared.clock.now();
            let ahead = wait.saturating_add(client.timeout());
            let latest = client.shared.time.at_most_in(sent_at, ahead);
            acquire.not_after_ms = latest.filter(|_| knows_time);
            let (acquisition, _) = client.acquire(acquire.clone(), wait).await?;
            return match acquisition {
                Acquisition::Acquired { token, lease_until_ms, .. } => {
                    let name = acquire.name;
                    if client.shared.clock.now().saturating_sub(sent_at) > terms.lease / FRESH_PART
                    {
                        return confirmed(client.confirm(name, token, terms).await);
                    }
                    let held = Held::new(name, token, terms, sent_at, lease_until_ms);
                    Ok(Leased::Held(Lease::new(self.client, held)))
                }
                Acquisition::Replay(replay) => Ok(Leased::Replay(replay)),
                Acquisition::InProgress { .. } if left > WAIT_MAX => continue,
                Acquisition::InProgress { retry_after_ms, holder, token, fingerprint_differs } => {
                    Err(LeaseError::InProgress {
                        retry_after_ms,
                        holder,
                        token,
                        fingerprint_differs,
                    })
                }
                Acquisition::FingerprintMismatch { stored, received } => {
                    Err(LeaseError::FingerprintMismatch { stored, received })
                }
                // The cluster's clock is ahead of what was known of it: the same attempt again.
                Acquisition::TooLate if knows_time => {
                    client.shared.time.forget();
                    knows_time = false;
                    continue;
                }
                Acquisition::TooLate => Err(CallError::foreign().into()),
            };
        }
    }
}

fn confirmed(lease: Result<Lease, AdoptError>) -> Result<Leased, LeaseError> {
    match lease {
        Ok(lease) => Ok(Leased::Held(lease)),
        Err(AdoptError::Invalid(invalid)) => Err(LeaseError::Invalid(invalid)),
        Err(AdoptError::LeaseLost(lost)) => Err(LeaseError::LeaseLost(lost)),
        Err(AdoptError::Call(Some(error))) => Err(LeaseError::Call(error)),
        Err(AdoptError::Call(None)) => Err(LeaseError::TooSlow),
    }
}

/// A duration as commands carry it. Nothing is rounded.
fn whole_millis(field: &'static str, duration: Duration) -> Result<u64, Invalid> {
    let millis = u64::try_from(duration.as_millis()).ok();
    millis
        .filter(|millis| Duration::from_millis(*millis) == duration)
        .ok_or_else(|| Invalid::argument(field, "must be a whole number of milliseconds"))
}
