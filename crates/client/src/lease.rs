//! A lease in a holder's hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_state_machine::{
    Complete, Completion, Extend, LeaseLost, Name, Payload, Release, Token, command,
};
use tokio::runtime::Handle;
use tracing::debug;

use crate::boottime::BootTime;
use crate::client::Client;
use crate::error::CallError;
use crate::held::{Held, Lost, Terms};
use crate::operations::{Conclusion, Extension, Withdrawal};

/// How often a lease is extended for a moment from which to count it, before that counts as in vain.
const CONFIRMATIONS: usize = 3;

/// A record that is held, and whose heartbeats are sent: the guard.
///
/// Dropping it stops the heartbeats, and releases the record in the background, as well as that
/// can be done: after a last heartbeat that was on its way already, and within the client's
/// timeout. After [`Lease::expire_on_drop`] it is not released but left to expire.
#[derive(Debug)]
pub struct Lease {
    client: Client,
    /// The keeper's number for it.
    id: u64,
    handle: LeaseHandle,
    on_drop: OnDrop,
    /// Where the release of a dropped guard runs.
    runtime: Handle,
}

#[derive(Debug)]
struct OnDrop {
    /// The record is completed or released.
    ended: AtomicBool,
    releases: bool,
}

/// What an action needs of its lease. Cheap to clone; it holds nothing: the lease ends with its
/// [`Lease`].
#[derive(Debug, Clone)]
pub struct LeaseHandle {
    held: Arc<Held>,
    clock: Arc<dyn BootTime>,
}

/// Why a token could not be taken up.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdoptError {
    /// The durations cannot be; nothing was sent.
    #[error("the lease is out of bounds")]
    Invalid(#[from] tenure_state_machine::Invalid),
    /// The token holds nothing.
    #[error("the token holds nothing")]
    LeaseLost(LeaseLost),
    /// There was no answer, or none in time to be of use.
    #[error("the heartbeat that takes it up was not answered in time")]
    Call(#[source] Option<Box<CallError>>),
}

/// Why a result was not recorded. The action has run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompleteError {
    /// The record is no longer this token's: another caller may run the action, or has.
    #[error("the token holds nothing any more")]
    LeaseLost(LeaseLost),
    /// There was no answer before the call's deadline. If it is `Unknown`, it may be recorded.
    #[error("no answer says that it is recorded")]
    Call(#[source] Box<CallError>),
}

impl Client {
    /// Takes up a token that was acquired before (by [`Client::acquire`], or by a process that has
    /// stored it): extends the lease, and keeps it from then on. The holder stops a tenth of the
    /// lease before its end.
    ///
    /// # Errors
    /// [`AdoptError`]. The record is as it was, or extended.
    ///
    /// # Dropping
    /// The lease may have been extended once more; nothing is released.
    pub async fn adopt(
        &self,
        name: Name,
        token: Token,
        lease: Duration,
    ) -> Result<Lease, AdoptError> {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let lease = Duration::from_millis(command::lease_ms(Some(lease_ms))?);
        self.confirm(name, token, Terms { lease, margin: lease / 10 }).await
    }

    /// Extends a lease, for a moment from which to count it, and keeps it.
    pub(crate) async fn confirm(
        &self,
        name: Name,
        token: Token,
        terms: Terms,
    ) -> Result<Lease, AdoptError> {
        let lease_ms = u64::try_from(terms.lease.as_millis()).unwrap_or(u64::MAX);
        let hasty = self.with_timeout(self.timeout().min(terms.usable()));
        for _ in 0..CONFIRMATIONS {
            let extend = Extend { name: name.clone(), token, lease_ms, not_after_ms: None };
            let sent_at = self.shared.clock.now();
            let extended = hasty.extend(extend).await;
            let (extension, _) = extended.map_err(|error| AdoptError::Call(Some(error.into())))?;
            match extension {
                Extension::Extended { lease_until_ms, .. } => {
                    // Little of it is left if it was sent several times.
                    if self.shared.clock.now().saturating_sub(sent_at) <= terms.usable() / 2 {
                        let held = Held::new(name, token, terms, sent_at, lease_until_ms);
                        return Ok(Lease::new(self.clone(), held));
                    }
                }
                Extension::LeaseLost(lost) => return Err(AdoptError::LeaseLost(lost)),
                Extension::TooLate => break,
            }
        }
        Err(AdoptError::Call(None))
    }
}

impl Lease {
    /// Must be called within a runtime, whose end is that of the heartbeats.
    pub(crate) fn new(client: Client, held: Held) -> Self {
        let held = Arc::new(held);
        let id = client.shared.keeper.keep(Arc::clone(&held));
        let handle = LeaseHandle { held, clock: Arc::clone(&client.shared.clock) };
        let on_drop = OnDrop { ended: AtomicBool::new(false), releases: true };
        Self { client, id, handle, on_drop, runtime: Handle::current() }
    }

    /// What an action needs of it.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        self.handle.clone()
    }

    /// From now on a drop does not release it: it expires. For an action that has run, or may
    /// have, and must not run again at once.
    pub fn expire_on_drop(&mut self) {
        self.on_drop.releases = false;
    }

    /// Records the result, sent again and again until the client's timeout. Heartbeats go on until
    /// it is recorded. After an error the lease is as it was, and may be completed again, with
    /// the same payload or another.
    ///
    /// # Errors
    /// [`CompleteError`].
    ///
    /// # Dropping
    /// It may be recorded all the same.
    pub async fn complete(
        &self,
        payload: Option<Arc<Payload>>,
    ) -> Result<Completion, CompleteError> {
        let completed = self.completing(payload, self.client.timeout()).await;
        self.completed(&completed);
        completed
    }

    /// What [`Lease::complete`] does, holding nothing of the lease.
    pub(crate) fn completing(
        &self,
        payload: Option<Arc<Payload>>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Completion, CompleteError>> + Send + 'static {
        let Held { name, token, .. } = &*self.handle.held;
        let (name, token) = (name.clone(), *token);
        let complete = Complete { name, token, ttl_ms: None, payload, not_after_ms: None };
        let client = self.client.with_timeout(timeout);
        async move {
            let completed = client.complete(complete).await;
            let (conclusion, _) = completed.map_err(|error| CompleteError::Call(error.into()))?;
            match conclusion {
                Conclusion::Completed(done) | Conclusion::AlreadyComplete(done) => Ok(done),
                Conclusion::LeaseLost(lost) => Err(CompleteError::LeaseLost(lost)),
                // It has no such deadline.
                Conclusion::TooLate => Err(CompleteError::Call(CallError::foreign().into())),
            }
        }
    }

    /// Takes in what became of a complete.
    pub(crate) fn completed(&self, completed: &Result<Completion, CompleteError>) {
        match completed {
            Ok(_) => self.end(),
            Err(CompleteError::LeaseLost(lost)) => {
                self.handle.held.lose(Lost::Taken(lost.clone()));
                self.end();
            }
            Err(CompleteError::Call(_)) => {}
        }
    }

    /// Stops the heartbeats and gives the record up, without a trace.
    ///
    /// # Errors
    /// [`CallError`]: it may be held for one more lease.
    ///
    /// # Dropping
    /// It may be released or not; it expires.
    pub async fn release(self) -> Result<Withdrawal, CallError> {
        self.end();
        release(self.client.clone(), Arc::clone(&self.handle.held)).await
    }

    /// Nothing is left to do for it.
    fn end(&self) {
        self.on_drop.ended.store(true, Ordering::Relaxed);
        self.client.shared.keeper.leave(self.id);
    }
}

impl std::ops::Deref for Lease {
    type Target = LeaseHandle;
    fn deref(&self) -> &LeaseHandle {
        &self.handle
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.client.shared.keeper.leave(self.id);
        let is_taken = matches!(self.handle.held.lost(), Some(Lost::Taken(_)));
        if self.on_drop.ended.load(Ordering::Relaxed) || !self.on_drop.releases || is_taken {
            return;
        }
        let released = release(self.client.clone(), Arc::clone(&self.handle.held));
        self.runtime.spawn(async move {
            if let Err(error) = released.await {
                debug!(%error, "a lease that was dropped is not released; it expires");
            }
        });
    }
}

/// Releases after the last heartbeat: no later one reaches the cluster.
async fn release(client: Client, held: Arc<Held>) -> Result<Withdrawal, CallError> {
    held.until_idle().await;
    let (name, token) = (held.name.clone(), held.token);
    let (withdrawal, _) = client.release(Release { name, token, not_after_ms: None }).await?;
    Ok(withdrawal)
}

impl LeaseHandle {
    /// The record's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.held.name
    }

    /// The fencing token, for sinks that refuse a smaller one than they have seen.
    #[must_use]
    pub fn token(&self) -> Token {
        self.held.token
    }

    /// How long the holder may still act if no further heartbeat succeeds; zero when it is lost.
    #[must_use]
    pub fn left(&self) -> Duration {
        if self.held.lost().is_some() {
            return Duration::ZERO;
        }
        self.held.deadline().saturating_sub(self.clock.now())
    }

    /// Why the holder may not act any more, if so. It looks at the clock itself, so it is right
    /// even when the runtime has no time for heartbeats.
    #[must_use]
    pub fn is_lost(&self) -> Option<Lost> {
        if self.held.deadline() <= self.clock.now() {
            self.held.lose(Lost::Expired);
        }
        self.held.lost()
    }

    /// Returns once the holder may not act any more: before anybody can have stolen the record, as
    /// long as clocks are right, or as soon as the cluster says that it is lost.
    ///
    /// # Dropping
    /// It may be called again.
    pub async fn lost(&self) -> Lost {
        self.held.until_lost().await
    }
}
