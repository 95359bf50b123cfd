//! One connection to a node, with many calls in flight.
//!
//! A call encodes its frame into a buffer that all calls share; one task writes whatever the
//! buffer holds, so that calls made together leave in one write, and hands answers back as they
//! arrive, in any order.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::frame::{
    Ask, ClientFrame, Hello, IN_FLIGHT, MAGIC, PROTOCOL, Request, ServerFrame, Welcome,
};
use tenure_state_machine::Command;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use crate::net::{Net, Socket};
use crate::wire::{self, Broken, Frames};

/// Bytes that one place of the [`IN_FLIGHT`] stands for: a larger request takes several, so that
/// the requests in flight hold at most 16 MiB.
const PLACE_BYTES: usize = 4 * 1024;
/// Most bytes not yet taken by the socket. The requests in flight and their cancellations fit into
/// half of it; more piles up only in front of a node that does not read.
const UNSENT_BYTES: usize = 2 * IN_FLIGHT * PLACE_BYTES;
/// Bytes of the shared buffer that are kept after a large write.
const KEPT_BYTES: usize = 256 * 1024;
/// Longest budget of a call; it only keeps sums of times in range.
const BUDGET_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// What the node is told of the budget is shorter by a tenth, at most by this: its answer has to
/// travel.
const TRAVEL_MAX: Duration = Duration::from_millis(50);

/// How long each step of a dial may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialTimeouts {
    /// For the name to resolve and the TCP connection to stand.
    pub connect: Duration,
    /// For the node's answer to the hello.
    pub hello: Duration,
}

impl Default for DialTimeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(1), hello: Duration::from_secs(1) }
    }
}

/// Why there is no connection. Nothing was asked.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No TCP connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address dialled.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A step took too long.
    #[error("{address} did not {step} within {limit:?}")]
    Timeout {
        /// The address dialled.
        address: String,
        /// What it did not do.
        step: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// What answers is no node of this protocol, or it hung up.
    #[error("{address} did not greet")]
    Hello {
        /// The address dialled.
        address: String,
        /// What happened.
        #[source]
        source: Broken,
    },
    /// The node does not speak with this dialler.
    #[error("{address} refuses: {reason}")]
    Refused {
        /// The address dialled.
        address: String,
        /// Its reason, for people.
        reason: String,
    },
    /// The node speaks another version of the frames.
    #[error("{address} speaks protocol {found}, this build {PROTOCOL}")]
    Protocol {
        /// The address dialled.
        address: String,
        /// The node's version.
        found: u16,
    },
    /// The node belongs to another cluster: its records and tokens are others.
    #[error("{address} belongs to cluster {found}, not {wanted}")]
    Cluster {
        /// The address dialled.
        address: String,
        /// The cluster that is meant.
        wanted: String,
        /// The node's cluster.
        found: String,
    },
}

/// Why a call has no answer, and whether its request may have reached the node.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// Nothing of the request has left, and nothing will.
    #[error("not sent")]
    NotSent(#[source] NotSent),
    /// Sent, at least in part, and the connection broke before the answer.
    #[error("sent, and no answer: the connection broke")]
    Lost(#[source] Broken),
    /// Sent, or still to be, and no answer within the budget. The node was told to forget it.
    #[error("sent, and no answer in time")]
    NoAnswer,
}

/// Why a request was not sent.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotSent {
    /// The connection was broken already.
    #[error("the connection is broken")]
    Broken(#[source] Broken),
    /// All [`IN_FLIGHT`] places were taken for the whole budget.
    #[error("too many requests are in flight on the connection")]
    Full,
    /// The request makes no frame.
    #[error("the request is larger than a frame may be")]
    TooLarge,
}

impl ConnectionError {
    /// Whether the node may have the request: then a command's outcome is unknown.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        match self {
            Self::NotSent(_) => false,
            Self::Lost(_) | Self::NoAnswer => true,
        }
    }
}

/// One connection to a node. Shared by reference; dropping it closes the socket.
#[derive(Debug)]
pub struct Connection {
    address: String,
    cluster_id: String,
    node_id: u64,
    calls: Arc<Calls>,
    places: Semaphore,
    task: AbortHandle,
}

impl Connection {
    /// Connects to `address` (host:port) over `net` and greets. When this returns, the node has said that it
    /// speaks this protocol, and belongs to the cluster that `hello` names, if it names one.
    ///
    /// # Errors
    /// [`DialError`]; nothing was asked.
    ///
    /// # Dropping
    /// The socket is closed.
    pub async fn dial(
        net: &dyn Net,
        address: &str,
        hello: Hello,
        timeouts: DialTimeouts,
    ) -> Result<Self, DialError> {
        let late = |step, limit| DialError::Timeout { address: address.to_owned(), step, limit };
        let failed = |source| DialError::Connect { address: address.to_owned(), source };
        let Socket { read, mut write } = timeout(timeouts.connect, net.connect(address))
            .await
            .map_err(|_| late("accept a connection", timeouts.connect))?
            .map_err(failed)?;
        let mut frames = Frames::new(read);
        let wanted = hello.cluster_id.clone();
        let welcome = timeout(timeouts.hello, greet(&mut frames, &mut write, &hello))
            .await
            .map_err(|_| late("greet", timeouts.hello))?
            .map_err(|source| DialError::Hello { address: address.to_owned(), source })?;
        let (cluster_id, node_id) = welcomed(address, wanted, welcome)?;

        let calls = Arc::new(Calls::default());
        let task = tokio::spawn(run(Arc::clone(&calls), frames, write)).abort_handle();
        let places = Semaphore::new(IN_FLIGHT);
        debug!(address, node_id, "connected");
        Ok(Self { address: address.to_owned(), cluster_id, node_id, calls, places, task })
    }

    /// Asks, and waits at most `budget` for the answer, the wait for one of the [`IN_FLIGHT`]
    /// places included. The node is told to answer a little earlier. With `forwarded` it must not
    /// forward the request again.
    ///
    /// When the future is dropped, or the budget is over, the node is told to forget the request;
    /// a command may commit all the same.
    ///
    /// # Errors
    /// [`ConnectionError`], which tells *not sent* from *sent, and no answer*.
    pub async fn call(
        &self,
        ask: Ask,
        budget: Duration,
        forwarded: bool,
    ) -> Result<ServerFrame, ConnectionError> {
        let places = places(&ask);
        let made = self.call_late(places, || Some(ask), budget, forwarded).await?;
        // It was put together before, so it was sent.
        made.ok_or(ConnectionError::NotSent(NotSent::Full))
    }

    /// As [`Connection::call`], for a request that is put together only when it has its places:
    /// right after `make` it is in the socket's buffer, and if that gives nothing, nothing is sent.
    pub(crate) async fn call_late(
        &self,
        places: u32,
        make: impl FnOnce() -> Option<Ask>,
        budget: Duration,
        forwarded: bool,
    ) -> Result<Option<ServerFrame>, ConnectionError> {
        let deadline = Instant::now() + budget.min(BUDGET_MAX);
        let _places = self.take_places(places, deadline).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        let told = left.saturating_sub(TRAVEL_MAX.min(left / 10));
        let budget_ms = u64::try_from(told.as_millis()).unwrap_or(u64::MAX);
        let Some(ask) = make() else { return Ok(None) };
        let (id, answer) = self.calls.send(ask, budget_ms, forwarded)?;
        let _forget = Forget { calls: &self.calls, id };
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer.map(Some),
            // The task ends only after it has answered every call; this is a runtime going down.
            Ok(Err(_)) => Err(ConnectionError::Lost(Broken::Closed)),
            Err(_) => Err(ConnectionError::NoAnswer),
        }
    }

    async fn take_places(
        &self,
        wanted: u32,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'_>, ConnectionError> {
        if let Ok(permit) = self.places.try_acquire_many(wanted) {
            return Ok(permit);
        }
        match timeout_at(deadline, self.places.acquire_many(wanted)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(ConnectionError::NotSent(NotSent::Full)),
        }
    }

    /// Whether it carries nothing any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.calls.lock().broken.is_some()
    }

    /// Whether a further call would have to wait for another one's end.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Gives it up because the node is silent: calls in flight end as lost, or as not sent.
    pub fn give_up(&self) {
        self.calls.break_off(&Broken::Silent);
        self.task.abort();
    }

    /// The address that was dialled.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The node's cluster.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The node's id.
    #[must_use]
    pub fn node_id(&self) -> u64 {
        self.node_id
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn greet<R, W>(
    frames: &mut Frames<R>,
    write: &mut W,
    hello: &Hello,
) -> Result<Welcome, Broken>
where
    R: tokio::io::AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut bytes = MAGIC.to_vec();
    // A hello is far below the limit of a frame.
    wire::push(&mut bytes, hello).map_err(|_| Broken::Oversized(bytes.len()))?;
    write.write_all(&bytes).await?;
    wire::decode(&frames.next().await?)
}

fn welcomed(
    address: &str,
    wanted: Option<String>,
    welcome: Welcome,
) -> Result<(String, u64), DialError> {
    let address = address.to_owned();
    match welcome {
        Welcome::Refused { reason } => Err(DialError::Refused { address, reason }),
        Welcome::Accepted { protocol, .. } if protocol != PROTOCOL => {
            Err(DialError::Protocol { address, found: protocol })
        }
        Welcome::Accepted { cluster_id, node_id, .. } => match wanted {
            Some(wanted) if wanted != cluster_id => {
                Err(DialError::Cluster { address, wanted, found: cluster_id })
            }
            _ => Ok((cluster_id, node_id)),
        },
    }
}

/// How many places a request takes: one for each [`PLACE_BYTES`] begun.
fn places(ask: &Ask) -> u32 {
    let size = match ask {
        Ask::Command { command, .. } => command.size(),
        Ask::Batch(commands) => commands.iter().map(Command::size).sum(),
        Ask::Get { .. } | Ask::Wait { .. } | Ask::List(_) | Ask::Change(_) => 0,
    };
    places_for(size)
}

/// How many places so many bytes of commands take.
pub(crate) fn places_for(size: usize) -> u32 {
    let places = (size / PLACE_BYTES).saturating_add(1).min(IN_FLIGHT);
    u32::try_from(places).unwrap_or(1)
}

/// Writes what calls have pushed and hands out what the node answers, until either fails.
async fn run<R, W>(calls: Arc<Calls>, mut frames: Frames<R>, mut write: W)
where
    R: tokio::io::AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let broken = tokio::select! {
        broken = read_answers(&calls, &mut frames) => broken,
        broken = write_requests(&calls, &mut write) => broken,
    };
    debug!(reason = %broken, "a connection ended");
    calls.break_off(&broken);
}

async fn read_answers<R>(calls: &Calls, frames: &mut Frames<R>) -> Broken
where
    R: tokio::io::AsyncRead + Unpin,
{
    loop {
        match frames.next().await.and_then(|frame| wire::decode::<ServerFrame>(&frame)) {
            Ok(frame) => calls.answer(frame),
            Err(broken) => return broken,
        }
    }
}

async fn write_requests<W: AsyncWrite + Unpin>(calls: &Calls, write: &mut W) -> Broken {
    let mut bytes = Vec::new();
    loop {
        calls.take_unsent(&mut bytes);
        if bytes.is_empty() {
            calls.pushed.notified().await;
            // Callers that were woken together get to push their frames too: one write for all.
            tokio::task::yield_now().await;
            continue;
        }
        if let Err(error) = write.write_all(&bytes).await {
            return Broken::from(error);
        }
        bytes.clear();
        bytes.shrink_to(KEPT_BYTES);
    }
}

/// The calls of one connection, between their callers and the socket.
#[derive(Debug, Default)]
struct Calls {
    state: Mutex<State>,
    /// Told when bytes come into an empty buffer.
    pushed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Frames that the writer has not taken yet.
    unsent: Vec<u8>,
    /// Bytes that the writer has taken so far: they may have left.
    taken: u64,
    last_id: u64,
    in_flight: HashMap<u64, InFlight>,
    broken: Option<Broken>,
}

#[derive(Debug)]
struct InFlight {
    /// Where its frame starts in the stream of all bytes.
    starts_at: u64,
    answer: oneshot::Sender<Result<ServerFrame, ConnectionError>>,
}

type AnswerReceiver = oneshot::Receiver<Result<ServerFrame, ConnectionError>>;

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(
        &self,
        ask: Ask,
        budget_ms: u64,
        forwarded: bool,
    ) -> Result<(u64, AnswerReceiver), ConnectionError> {
        let mut state = self.lock();
        if let Some(broken) = &state.broken {
            return Err(ConnectionError::NotSent(NotSent::Broken(broken.clone())));
        }
        if state.unsent.len() > UNSENT_BYTES {
            state.break_off(&Broken::Stalled);
            return Err(ConnectionError::NotSent(NotSent::Broken(Broken::Stalled)));
        }
        state.last_id = state.last_id.wrapping_add(1);
        let id = state.last_id;
        let starts_at = state.taken.saturating_add(state.unsent.len() as u64);
        let idle = state.unsent.is_empty();
        let frame = ClientFrame::Request(Request { id, budget_ms, forwarded, ask });
        wire::push(&mut state.unsent, &frame)
            .map_err(|_| ConnectionError::NotSent(NotSent::TooLarge))?;
        let (answer, receiver) = oneshot::channel();
        state.in_flight.insert(id, InFlight { starts_at, answer });
        drop(state);
        if idle {
            self.pushed.notify_one();
        }
        Ok((id, receiver))
    }

    /// Tells the node that nobody waits for `id`, unless it is answered already.
    fn forget(&self, id: u64) {
        let mut state = self.lock();
        if state.in_flight.remove(&id).is_none() || state.broken.is_some() {
            return;
        }
        // A cancellation always makes a frame.
        let _ = wire::push(&mut state.unsent, &ClientFrame::Cancel { id });
        drop(state);
        self.pushed.notify_one();
    }

    /// Swaps the unsent bytes into `bytes`, which is empty.
    fn take_unsent(&self, bytes: &mut Vec<u8>) {
        let mut state = self.lock();
        std::mem::swap(&mut state.unsent, bytes);
        state.taken = state.taken.saturating_add(bytes.len() as u64);
    }

    fn answer(&self, frame: ServerFrame) {
        let in_flight = self.lock().in_flight.remove(&frame.id);
        // Without one: an answer that was on its way when its call was dropped.
        if let Some(call) = in_flight {
            let _ = call.answer.send(Ok(frame));
        }
    }

    fn break_off(&self, broken: &Broken) {
        self.lock().break_off(broken);
    }
}

impl State {
    /// Ends every call: as not sent where the writer has taken nothing of its frame.
    fn break_off(&mut self, broken: &Broken) {
        let broken = self.broken.get_or_insert_with(|| broken.clone());
        for (_, call) in self.in_flight.drain() {
            let error = if call.starts_at < self.taken {
                ConnectionError::Lost(broken.clone())
            } else {
                ConnectionError::NotSent(NotSent::Broken(broken.clone()))
            };
            let _ = call.answer.send(Err(error));
        }
        self.unsent = Vec::new();
    }
}

/// Forgets a call when its future ends without an answer.
#[derive(Debug)]
struct Forget<'a> {
    calls: &'a Calls,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.calls.forget(self.id);
    }
}
