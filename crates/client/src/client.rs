//! Logical calls: one deadline, sent as often as it takes, settled by the rules of C2 and C3.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tenure_api::Refusal;
use tenure_api::frame::{Ask, Consistency, Decided, List, Reply, Waited};
use tenure_api::{Listed, View};
use tenure_state_machine::{At, Command, Name};
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, ConnectionError, DialTimeouts, NotSent};
use crate::error::{CallError, Obstacle};
use crate::route::Route;
use crate::settle::{may_commit, settle, settle_refusal};

/// First pause between two sends of a call.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two sends of a call, unless a node asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Longest a call may take, its wait included; it only keeps sums of times in range.
const CALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

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
        }
    }
}

/// A cluster, to callers. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    route: Arc<Route>,
    timeout: Duration,
    send_timeout: Duration,
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
        let (timeout, send_timeout) = (config.timeout, config.send_timeout);
        Self { route: Arc::new(Route::new(config)), timeout, send_timeout }
    }

    /// The same client with another deadline for each call.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Runs one command; an acquire waits up to `wait` for its record. Refusals by the record's
    /// rules are answers. When this returns an answer, a majority has the command on disk, or it
    /// changed nothing.
    ///
    /// # Errors
    /// [`CallError`], which says what may be concluded.
    pub async fn command(&self, command: Command, wait: Duration) -> Result<Decided, CallError> {
        let repeat = match command {
            Command::Purge(_) => Repeat::Nameless,
            Command::Acquire(_)
            | Command::Complete(_)
            | Command::Release(_)
            | Command::Extend(_) => Repeat::Named,
        };
        let ask = |left| Ask::Command { command: command.clone(), wait_ms: millis(left) };
        let delivered = self.deliver(ask, repeat, wait).await?;
        let Reply::Answer(decided) = delivered.reply else { return Err(CallError::foreign()) };
        settle(&command, decided, delivered.unsettled)
    }

    /// Runs independent commands in one log entry, each with its own outcome, in their order.
    /// Purges are refused in it.
    ///
    /// # Errors
    /// [`CallError`], when there is no answer for the batch as a whole.
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
        let mut pauses = pauses();
        loop {
            let sent = self.send(&ask, waits_until, deadline).await;
            let (obstacle, asked_pause) = match sent {
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
            let pause = asked_pause.max(pauses.next().unwrap_or(PAUSE_MAX));
            let over = Instant::now() + pause.min(CALL_MAX) >= deadline;
            if over || (unsettled && repeat == Repeat::Nameless) {
                return Err(if unsettled {
                    CallError::Unknown { seen: None, last: Some(obstacle) }
                } else {
                    CallError::Unavailable { last: obstacle }
                });
            }
            sleep(pause).await;
        }
    }

    /// One send.
    async fn send(
        &self,
        ask: impl Fn(Duration) -> Ask,
        waits_until: Instant,
        deadline: Instant,
    ) -> Result<Reply, Failure> {
        let connection = self.route.connection(deadline).await.map_err(Failure::unsent)?;
        let now = Instant::now();
        let wait = waits_until.saturating_duration_since(now);
        let patience = wait.saturating_add(self.send_timeout);
        let budget = patience.min(deadline.saturating_duration_since(now));
        match connection.call(ask(wait), budget, false).await {
            Ok(frame) => {
                self.route.heard(&connection, frame.leader.as_ref());
                frame.reply.map_err(|refusal| self.refused(&connection, refusal))
            }
            Err(error) => {
                let silent = matches!(error, ConnectionError::NoAnswer) && budget == patience;
                Err(self.failed(&connection, error, silent))
            }
        }
    }

    /// What to make of a refusal.
    fn refused(&self, connection: &Arc<Connection>, refusal: Refusal) -> Failure {
        let mut pause = Duration::ZERO;
        match &refusal {
            Refusal::InvalidArgument { .. }
            | Refusal::PayloadTooLarge { .. }
            | Refusal::StorageFull
            | Refusal::Internal { .. } => return Failure::end(refusal),
            Refusal::NotLeader { leader: Some(leader) } => self.route.go_to(connection, leader),
            Refusal::Overloaded { retry_after_ms, .. } => {
                pause = Duration::from_millis(*retry_after_ms);
            }
            Refusal::NotLeader { leader: None }
            | Refusal::NoLeader
            | Refusal::ShuttingDown
            | Refusal::OutcomeUnknown => self.route.leave(connection),
        }
        let unknown = may_commit(&refusal);
        Failure { end: None, obstacle: Obstacle::Refusal(refusal), unknown, pause }
    }

    /// What to make of a send without an answer.
    fn failed(
        &self,
        connection: &Arc<Connection>,
        error: ConnectionError,
        silent: bool,
    ) -> Failure {
        match &error {
            ConnectionError::NotSent(NotSent::TooLarge) => {
                return Failure::end(Refusal::InvalidArgument {
                    field: None,
                    reason: error.to_string(),
                });
            }
            ConnectionError::NotSent(NotSent::Full) => {}
            ConnectionError::NotSent(NotSent::Broken(_)) | ConnectionError::Lost(_) => {
                self.route.leave(connection);
            }
            ConnectionError::NoAnswer if silent => {
                // Half open, stopped or stuck: no other call should wait for it either.
                self.route.leave(connection);
                connection.give_up();
            }
            ConnectionError::NoAnswer => {}
        }
        let unknown = error.is_sent();
        let obstacle = Obstacle::Connection(error);
        Failure { end: None, obstacle, unknown, pause: Duration::ZERO }
    }
}

/// A send that gave no reply.
struct Failure {
    /// A refusal that ends the call: sending again would not help.
    end: Option<Refusal>,
    /// What to report if the call ends here.
    obstacle: Obstacle,
    /// Whether a command may commit all the same.
    unknown: bool,
    /// How long the node asks to be left alone.
    pause: Duration,
}

impl Failure {
    fn end(refusal: Refusal) -> Self {
        let (obstacle, unknown) = (Obstacle::Refusal(refusal.clone()), may_commit(&refusal));
        Self { end: Some(refusal), obstacle, unknown, pause: Duration::ZERO }
    }

    fn unsent(obstacle: Obstacle) -> Self {
        Self { end: None, obstacle, unknown: false, pause: Duration::ZERO }
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(PAUSE_MIN)
        .with_max_delay(PAUSE_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

/// Whole milliseconds; a node takes at most a minute, so the rest of the range does not matter.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
