//! Logical calls: one deadline, sent as often as it takes, settled by the rules of C2 and C3.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tenure_api::frame::{Ask, Consistency, Decided, List, Reply, Waited};
use tenure_api::{Listed, View};
use tenure_state_machine::{At, Command, Holder, Name};
use tokio::time::{Instant, sleep};

use crate::boottime::{BootTime, RealBootTime};
use crate::cluster_time::ClusterTime;
use crate::connection::DialTimeouts;
use crate::error::{CallError, Obstacle};
use crate::flight::Flights;
use crate::heartbeat::Keeper;
use crate::route::Route;
use crate::send::{Failure, Patience, send};
use crate::settle::{settle, settle_refusal};

/// Longest a call may take, its wait included; it only keeps sums of times in range.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How to reach a cluster, and how long to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// RPC addresses (host:port) of some nodes, tried in this order. The leader's is learned.
    pub endpoints: Vec<String>,
    /// The cluster that is meant. Without it, the cluster of the first node reached.
    pub cluster_id: Option<String>,
    /// How long a call may take, all sends and pauses included; a wait comes on top.
    pub timeout: Duration,
    /// How long one send may go unanswered, a wait on top, before its node is taken for dead.
    /// More than a node's own limit (`request_timeout_ms`).
    pub send_timeout: Duration,
    /// How long a dial may take.
    pub dial: DialTimeouts,
    /// How a call that had no answer is sent again.
    pub retry: Retry,
    /// Who acquires, where a request does not say so itself.
    pub holder: Holder,
}

/// Pauses between the sends of a call: they double, with jitter, from `pause_min` up to
/// `pause_max`. A node that asks for a longer one (`Retry-After`) gets it. How often a call is sent
/// follows from its deadline alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The first pause, at least a millisecond.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { pause_min: Duration::from_millis(10), pause_max: Duration::from_millis(500) }
    }
}

impl Retry {
    /// The pauses of one call.
    pub(crate) fn pauses(self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.pause_min.max(Duration::from_millis(1)))
            .with_max_delay(self.pause_max)
            .without_max_times()
            .with_jitter()
            .build()
    }
}

impl Config {
    /// The defaults, for these endpoints.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            cluster_id: None,
            timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(4),
            dial: DialTimeouts::default(),
            retry: Retry::default(),
            holder: Holder::default(),
        }
    }
}

/// A cluster, to callers. Cheap to clone; clones share connections, heartbeats and flights.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    timeout: Duration,
}

/// What clones of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    route: Arc<Route>,
    send_timeout: Duration,
    retry: Retry,
    pub(crate) holder: Holder,
    pub(crate) clock: Arc<dyn BootTime>,
    pub(crate) time: Arc<ClusterTime>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) flights: Arc<Flights>,
}

/// How a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It changes nothing: always.
    Read,
    /// It carries an attempt or a token: always, and an unknown send makes the call unsettled.
    Named,
    /// It carries neither: not after an unknown send.
    Nameless,
}

/// The reply to the last send of a call.
struct Delivered {
    reply: Reply,
    /// An earlier send may have committed, or still may.
    unsettled: bool,
}

impl Client {
    /// A client that connects when it is first asked something.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self::with_clock(config, Arc::new(RealBootTime))
    }

    /// As [`Client::new`], with the clock that leases are counted on.
    pub(crate) fn with_clock(config: Config, clock: Arc<dyn BootTime>) -> Self {
        let Config { timeout, send_timeout, retry, holder, .. } = config.clone();
        let route = Arc::new(Route::new(config));
        let time = Arc::<ClusterTime>::default();
        let keeper = Keeper::new(
            Arc::clone(&route),
            Arc::clone(&clock),
            Arc::clone(&time),
            send_timeout,
            retry,
        );
        let flights = Arc::default();
        let shared = Shared { route, send_timeout, retry, holder, clock, time, keeper, flights };
        Self { shared: Arc::new(shared), timeout }
    }

    /// How long a call may take, a wait on top.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.min(CALL_MAX)
    }

    /// The same client with another deadline for each call.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), timeout }
    }

    /// Runs one command; an acquire waits up to `wait` for its record. Refusals by the record's
    /// rules are answers. When this returns an answer, a majority has the command on disk, or it
    /// changed nothing.
    ///
    /// # Errors
    /// [`CallError`], which says what may be concluded.
    ///
    /// # Dropping
    /// The node is told to forget the request; the command may commit all the same (C6).
    pub async fn command(&self, command: Command, wait: Duration) -> Result<Decided, CallError> {
        let repeat = match command {
            Command::Purge(_) => Repeat::Nameless,
            Command::Acquire(_)
            | Command::Complete(_)
            | Command::Release(_)
            | Command::Extend(_) => Repeat::Named,
        };
        let ask = |left| Ask::Command { command: command.clone(), wait_ms: millis(left) };
        let sent_at = self.shared.clock.now();
        let delivered = self.deliver(ask, repeat, wait).await?;
        let Reply::Answer(decided) = delivered.reply else { return Err(CallError::foreign()) };
        self.shared.time.heard(decided.at, sent_at);
        settle(&command, decided, delivered.unsettled)
    }

    /// Runs independent commands in one log entry, each with its own outcome, in their order.
    /// Purges are refused in it.
    ///
    /// # Errors
    /// [`CallError`], when there is no answer for the batch as a whole.
    ///
    /// # Dropping
    /// As [`Client::command`].
    pub async fn batch(
        &self,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Decided, CallError>>, CallError> {
        let ask = |_| Ask::Batch(commands.clone());
        let delivered = self.deliver(ask, Repeat::Named, Duration::ZERO).await?;
        let Reply::Batch(answers) = delivered.reply else { return Err(CallError::foreign()) };
        if answers.len() != commands.len() {
            return Err(CallError::foreign());
        }
        let settled = commands.iter().zip(answers).map(|(command, answer)| match answer {
            Ok(decided) => settle(command, decided, delivered.unsettled),
            Err(refusal) => Err(settle_refusal(refusal, delivered.unsettled)),
        });
        Ok(settled.collect())
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`CallError`], never `Unknown`.
    ///
    /// # Dropping
    /// The node is told to forget the request (C6).
    pub async fn get(
        &self,
        name: &Name,
        consistency: Consistency,
    ) -> Result<(Option<View>, At), CallError> {
        let ask = |_| Ask::Get { name: name.clone(), consistency };
        let Reply::Record { view, at } =
            self.deliver(ask, Repeat::Read, Duration::ZERO).await?.reply
        else {
            return Err(CallError::Unavailable { last: Obstacle::WrongAnswer });
        };
        Ok((view, at))
    }

    /// Waits up to `wait` until a record is COMPLETE, absent, or its lease has expired.
    ///
    /// # Errors
    /// [`CallError`], never `Unknown`.
    ///
    /// # Dropping
    /// The node is told to forget the request (C6).
    pub async fn wait(&self, name: &Name, wait: Duration) -> Result<(Waited, At), CallError> {
        let ask = |left| Ask::Wait { name: name.clone(), timeout_ms: millis(left) };
        let Reply::Waited { waited, at } = self.deliver(ask, Repeat::Read, wait).await?.reply
        else {
            return Err(CallError::Unavailable { last: Obstacle::WrongAnswer });
        };
        Ok((waited, at))
    }

    /// One page of a scope, as stale as the asked node. Gives the records and where the next page
    /// starts.
    ///
    /// # Errors
    /// [`CallError`], never `Unknown`.
    ///
    /// # Dropping
    /// The node is told to forget the request (C6).
    pub async fn list(&self, page: List) -> Result<(Vec<Listed>, Option<String>, At), CallError> {
        let ask = |_| Ask::List(page.clone());
        let Reply::List { records, next, at } =
            self.deliver(ask, Repeat::Read, Duration::ZERO).await?.reply
        else {
            return Err(CallError::Unavailable { last: Obstacle::WrongAnswer });
        };
        Ok((records, next, at))
    }

    /// Sends what `ask` makes of the wait that is left, again and again, until a reply concludes
    /// the call or its deadline passes (C4).
    async fn deliver(
        &self,
        ask: impl Fn(Duration) -> Ask,
        repeat: Repeat,
        wait: Duration,
    ) -> Result<Delivered, CallError> {
        let started = Instant::now();
        let waits_until = started + wait.min(CALL_MAX);
        let deadline = waits_until + self.timeout.min(CALL_MAX);
        let mut unsettled = false;
        let mut pauses = self.shared.retry.pauses();
        let mut before = None;
        loop {
            let patience =
                Patience { waits_until, deadline, send_timeout: self.shared.send_timeout };
            let (obstacle, asked_pause) = match send(&self.shared.route, &ask, patience).await {
                Ok(reply) => return Ok(Delivered { reply, unsettled }),
                Err(Failure { end: Some(refusal), .. }) if repeat == Repeat::Read => {
                    return Err(CallError::Refused(refusal));
                }
                Err(Failure { end: Some(refusal), .. }) => {
                    return Err(settle_refusal(refusal, unsettled));
                }
                Err(Failure { end: None, obstacle, unknown, pause }) => {
                    unsettled |= unknown && repeat != Repeat::Read;
                    (obstacle, pause)
                }
            };
            // That the deadline came says less than what kept the call until then.
            let obstacle = match (obstacle, before.take()) {
                (Obstacle::NoConnection, Some(before)) => before,
                (obstacle, _) => obstacle,
            };
            let pause = asked_pause.max(pauses.next().unwrap_or(self.shared.retry.pause_max));
            let over = Instant::now() + pause.min(CALL_MAX) >= deadline;
            if over || (unsettled && repeat == Repeat::Nameless) {
                return Err(if unsettled {
                    CallError::Unknown { seen: None, last: Some(obstacle) }
                } else {
                    CallError::Unavailable { last: obstacle }
                });
            }
            before = Some(obstacle);
            sleep(pause).await;
        }
    }
}

/// Whole milliseconds; a node takes at most a minute, so the rest of the range does not matter.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
