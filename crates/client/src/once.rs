//! The whole of it in one call: acquire, run under heartbeats, record; or be handed the result.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_state_machine::limits::WAIT_MAX_MS;
use tenure_state_machine::{Fingerprint, Invalid, Payload};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::client::Client;
use crate::codec::{Codec, CodecError};
use crate::flight::Turn;
use crate::held::Lost;
use crate::lease::{Lease, LeaseHandle};
use crate::once_error::OnceError;
use crate::request::{LeaseError, LeaseRequest, Leased};

/// The attribute of a record that is COMPLETE without its result, because that could not be
/// written: why.
pub const UNWRITTEN: &str = "tenure-unwritten";
/// Longest reason in that attribute, in characters.
const REASON_CHARS: usize = 512;

/// An action that is to run once; [`Client::once`] starts one.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is run"]
pub struct Once {
    request: LeaseRequest,
    codec: Codec,
    record_within: Duration,
}

/// The result of an action, and who ran it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done<T> {
    /// This call ran it, and its result is recorded.
    Ran(T),
    /// It was run before, or elsewhere: this is the recorded result.
    Replayed(T),
}

impl<T> Done<T> {
    /// The result, whoever ran it.
    pub fn into_inner(self) -> T {
        match self {
            Self::Ran(value) | Self::Replayed(value) => value,
        }
    }

    /// Whether this call ran the action.
    #[must_use]
    pub fn is_ran(&self) -> bool {
        matches!(self, Self::Ran(_))
    }
}

impl Client {
    /// Runs an action once for a key, wherever it is asked for. Without more words: a lease of
    /// 30 s, a ttl of 24 h, the client's holder, JSON, and a wait of a minute for a result that
    /// another caller is about to have, which outlives the lease of one that has died.
    ///
    /// Calls of one client (and its clones) for the same record and fingerprint that overlap take
    /// turns: one acquires, and when it is done, the others are handed its result; when it
    /// fails, the next one tries.
    ///
    /// ```no_run
    /// # async fn deliver(client: tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_client::Done;
    ///
    /// let sent = client.once("mail", "order-1").run(|lease| async move {
    ///     // Send the mail, with `lease.token()` where the sink can compare it.
    ///     Ok::<_, std::io::Error>(format!("sent under token {}", lease.token().get()))
    /// });
    /// match sent.await? {
    ///     Done::Ran(receipt) => println!("{receipt}"),
    ///     Done::Replayed(receipt) => println!("before: {receipt}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn once(&self, scope: &str, key: &str) -> Once {
        let request = self.lease(scope, key).wait(Duration::from_millis(WAIT_MAX_MS));
        Once { request, codec: Codec::Json, record_within: self.timeout() }
    }
}

impl Once {
    /// See [`LeaseRequest::lease`]. It bounds what a crash of the holder costs others, not how long
    /// the action may take.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request = self.request.lease(lease);
        self
    }

    /// How long the result is kept, from the completion: 1 ms to 3650 days.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// How long to wait for another caller, in this process or elsewhere, that runs the action.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.request = self.request.wait(wait);
        self
    }

    /// A hash of the request: another one for the same key is refused.
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.request = self.request.fingerprint(fingerprint);
        self
    }

    /// Who runs it, for people; the client's holder if it is not given.
    pub fn holder(mut self, holder: impl Into<Box<str>>) -> Self {
        self.request = self.request.holder(holder);
        self
    }

    /// See [`LeaseRequest::margin`].
    pub fn margin(mut self, margin: Duration) -> Self {
        self.request = self.request.margin(margin);
        self
    }

    /// How results are written; JSON if it is not given.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// How long to go on with recording a result before it is reported as not recorded; the
    /// client's timeout if it is not given.
    pub fn record_within(mut self, limit: Duration) -> Self {
        self.record_within = limit;
        self
    }

    /// Runs the action, or is handed its result.
    ///
    /// The action's future is dropped when the lease is lost. When it returns an error or panics,
    /// the record is released, and the next caller runs it; a panic goes on after that. When it
    /// returns a value, that is recorded, and nothing is released any more, whatever comes.
    ///
    /// # Errors
    /// [`OnceError`], which says whether the action ran here.
    ///
    /// # Dropping
    /// While it waits, it leaves the queue; while the action runs, that is dropped, and the record
    /// is released in the background; once the action has returned a value, the value goes on to
    /// be recorded in the background.
    pub async fn run<T, E, F, R>(self, action: F) -> Result<Done<T>, OnceError<T, E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(LeaseHandle) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let codec = self.codec;
        let write = |value: &T| {
            let body = codec.encode(value).map_err(Unwritten::Codec)?;
            payload(codec.kind(), body).map(Some)
        };
        let read = |payload: Option<&Payload>| match payload {
            Some(payload) if !payload.attributes().contains_key(UNWRITTEN) => {
                codec.decode(payload.body()).map_err(Some)
            }
            _ => Err(None),
        };
        Box::pin(self.run_with(action, write, read)).await
    }

    /// As [`Once::run`], for an action whose result is bytes, kept as they are.
    ///
    /// # Errors
    /// As [`Once::run`].
    ///
    /// # Dropping
    /// As [`Once::run`].
    pub async fn run_bytes<E, F, R>(self, action: F) -> Result<Done<Vec<u8>>, OnceError<Vec<u8>, E>>
    where
        F: FnOnce(LeaseHandle) -> R,
        R: Future<Output = Result<Vec<u8>, E>>,
    {
        let write = |value: &Vec<u8>| payload("application/octet-stream", value.clone()).map(Some);
        let read = |payload: Option<&Payload>| match payload {
            Some(payload) if !payload.attributes().contains_key(UNWRITTEN) => {
                Ok(payload.body().to_vec())
            }
            _ => Err(None),
        };
        Box::pin(self.run_with(action, write, read)).await
    }

    /// As [`Once::run`], for an action that makes the payload itself, or none.
    ///
    /// # Errors
    /// As [`Once::run`].
    ///
    /// # Dropping
    /// As [`Once::run`].
    pub async fn run_payload<E, F, R>(
        self,
        action: F,
    ) -> Result<Done<Option<Arc<Payload>>>, OnceError<Option<Arc<Payload>>, E>>
    where
        F: FnOnce(LeaseHandle) -> R,
        R: Future<Output = Result<Option<Arc<Payload>>, E>>,
    {
        let write = |value: &Option<Arc<Payload>>| Ok(value.clone());
        let read = |payload: Option<&Payload>| Ok(payload.cloned().map(Arc::new));
        Box::pin(self.run_with(action, write, read)).await
    }

    async fn run_with<T, E, F, R>(
        mut self,
        action: F,
        write: impl FnOnce(&T) -> Result<Option<Arc<Payload>>, Unwritten>,
        read: impl FnOnce(Option<&Payload>) -> Result<T, Option<CodecError>>,
    ) -> Result<Done<T>, OnceError<T, E>>
    where
        F: FnOnce(LeaseHandle) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let replayed = |payload: Option<Arc<Payload>>| match read(payload.as_deref()) {
            Ok(value) => Ok(Done::Replayed(value)),
            Err(source) => Err(OnceError::Unreadable { payload, source }),
        };
        let turn = self.turn().await?;
        if let Some(landed) = turn.as_ref().and_then(Turn::landed) {
            return replayed(landed);
        }
        let record_within = self.record_within;
        let lease = match self.request.acquire().await? {
            Leased::Held(lease) => lease,
            Leased::Replay(replay) => {
                if let Some(turn) = turn {
                    turn.land(replay.payload.clone());
                }
                return replayed(replay.payload);
            }
        };
        let value = match act(action, lease.handle()).await {
            Act::Returned(Ok(value)) => value,
            Act::Returned(Err(error)) => {
                give_up(lease).await;
                return Err(OnceError::Action(error));
            }
            Act::Panicked(panic) => {
                give_up(lease).await;
                drop(turn);
                resume_unwind(panic);
            }
            Act::Lost(lost) => return Err(OnceError::LeaseLost(lost)),
        };
        record(lease, value, write, record_within, turn).await
    }

    /// Waits for the calls of this client that are before this one, as long as it may wait. None if
    /// that was not long enough: then the cluster says who holds the record.
    async fn turn(&mut self) -> Result<Option<Turn>, Invalid> {
        let name = self.request.name.clone()?;
        self.request.terms()?;
        let flights = Arc::clone(&self.request.client.shared.flights);
        let seat = flights.join(&name, self.request.fingerprint.as_ref());
        let began = Instant::now();
        let turn = timeout(self.request.wait, seat.turn()).await.ok();
        self.request.wait = self.request.wait.saturating_sub(began.elapsed());
        Ok(turn)
    }
}

/// Why a value does not become a payload.
enum Unwritten {
    TooLarge { limit: usize, size: usize },
    Codec(CodecError),
}

fn payload(kind: &str, body: Vec<u8>) -> Result<Arc<Payload>, Unwritten> {
    let size = body.len();
    match Payload::new(Some(kind.to_owned()), body, BTreeMap::new()) {
        Ok(payload) => Ok(Arc::new(payload)),
        Err(Invalid::PayloadTooLarge { limit, size }) => Err(Unwritten::TooLarge { limit, size }),
        // The type is one of ours, and there are no attributes.
        Err(Invalid::Argument { .. }) => Err(Unwritten::TooLarge { limit: 0, size }),
    }
}

/// How an action ended.
enum Act<R> {
    Returned(R),
    Panicked(Box<dyn Any + Send>),
    Lost(Lost),
}

/// Runs the action until it ends or its lease is lost; then it is dropped.
async fn act<F, R>(action: F, lease: LeaseHandle) -> Act<R::Output>
where
    F: FnOnce(LeaseHandle) -> R,
    R: Future,
{
    let handle = lease.clone();
    let future = match catch_unwind(AssertUnwindSafe(|| action(handle))) {
        Ok(future) => future,
        Err(panic) => return Act::Panicked(panic),
    };
    let mut future = pin!(future);
    // Nothing of the action is looked at after a panic but the panic.
    let caught = std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Ready(returned)) => Poll::Ready(Act::Returned(returned)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Act::Panicked(panic)),
        }
    });
    tokio::select! {
        biased;
        ended = caught => ended,
        lost = lease.lost() => Act::Lost(lost),
    }
}

/// Releases after an action that failed. If that does not succeed, the lease expires.
async fn give_up(lease: Lease) {
    if let Err(error) = lease.release().await {
        debug!(%error, "the record of a failed action is not released; it expires");
    }
}

/// Records what an action returned. From here on nothing is released.
async fn record<T, E>(
    mut lease: Lease,
    value: T,
    write: impl FnOnce(&T) -> Result<Option<Arc<Payload>>, Unwritten>,
    within: Duration,
    turn: Option<Turn>,
) -> Result<Done<T>, OnceError<T, E>> {
    lease.expire_on_drop();
    let (payload, unwritten) = match write(&value) {
        Ok(payload) => (payload, None),
        Err(Unwritten::TooLarge { limit, size }) => {
            return Err(OnceError::TooLarge { value, lease, limit, size });
        }
        // It has run, and is not to run again because of this.
        Err(Unwritten::Codec(error)) => (marked(&error), Some(error)),
    };
    let completed = ToItsEnd::new(lease.completing(payload.clone(), within)).await;
    lease.completed(&completed);
    if let Err(source) = completed {
        return Err(OnceError::NotRecorded { value, lease, source });
    }
    if let Some(turn) = turn {
        turn.land(payload);
    }
    match unwritten {
        Some(source) => Err(OnceError::Unwritten { value, source }),
        None => Ok(Done::Ran(value)),
    }
}

/// Work that goes on to its end: here, or in the background once this is dropped.
struct ToItsEnd<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send> ToItsEnd<T> {
    fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::current() }
    }
}

impl<T: Send> Future for ToItsEnd<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = self.work.as_mut() else { return Poll::Pending };
        let end = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(end)
    }
}

impl<T: Send> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

/// What is kept instead of a result that could not be written.
fn marked(error: &CodecError) -> Option<Arc<Payload>> {
    let reason = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    let reason = reason.chars().take(REASON_CHARS).collect();
    let attributes = BTreeMap::from([(UNWRITTEN.to_owned(), reason)]);
    Payload::new(None, Vec::new(), attributes).ok().map(Arc::new)
}

impl<T, E> From<Invalid> for OnceError<T, E> {
    fn from(invalid: Invalid) -> Self {
        Self::Lease(LeaseError::Invalid(invalid))
    }
}

impl<T, E> From<LeaseError> for OnceError<T, E> {
    fn from(error: LeaseError) -> Self {
        Self::Lease(error)
    }
}
