//! Where a request is answered: here, if this node serves; else one hop away; else it is held
//! until there is a leader or its time is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_api::frame::{Ask, Consistency, Reply};
use tenure_api::{Node as Address, Refusal};
use tenure_state_machine::Command;
use tenure_state_machine::seeded::{SeededBug, seeded};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::budget::Budget;
use crate::forward::{Forwarded, Forwarder};
use crate::local::{Deadlines, Local, Unanswered, Way};
use crate::members::Members;
use crate::metrics::Metrics;
use crate::roles::Roles;
use crate::stale;

/// Between two tries when nothing tells that there is something new.
const PAUSE: Duration = Duration::from_millis(25);

/// Answers any request, on any node.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) local: Local,
    pub(crate) members: Members,
    pub(crate) forwarder: Forwarder,
    pub(crate) roles: watch::Receiver<Roles>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_timeout: Duration,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) budget: Budget,
}

/// How far a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To the leader.
    Cluster,
    /// No further than this node.
    ThisNode,
    /// No further: another node sent it on, and counts it.
    Forwarded,
}

impl Router {
    /// The leader, when it is another node.
    pub(crate) fn other_leader(&self) -> Option<Address> {
        self.roles.borrow().other.clone()
    }

    /// Answers within the request's wait and the node's own limit, at most `budget`.
    pub(crate) async fn ask(
        &self,
        ask: Ask,
        budget: Duration,
        reach: Reach,
    ) -> Result<Reply, Refusal> {
        let reply = match self.budget.take(bytes(&ask)) {
            Ok(_room) => self.answer(&ask, budget, reach).await,
            Err(refusal) => Err(refusal),
        };
        let reply = reply.map_err(said);
        if reach != Reach::Forwarded {
            self.metrics.answered(&ask, reply.as_ref());
        }
        reply
    }

    /// How this node answers a command in one step, and room in memory for it; none for any other
    /// request, which must be asked.
    pub(crate) fn short_way(&self, ask: &Ask) -> Option<(Way, OwnedSemaphorePermit)> {
        let Ask::Command { command, wait_ms: 0 } = ask else { return None };
        if !self.serves() || ask.check().is_err() {
            return None;
        }
        let way = self.local.way(command)?;
        Some((way, self.budget.take(bytes(ask)).ok()?))
    }

    fn serves(&self) -> bool {
        self.roles.borrow().serves && !self.stopping.load(Ordering::Relaxed)
    }

    async fn answer(&self, ask: &Ask, budget: Duration, reach: Reach) -> Result<Reply, Refusal> {
        if let Ask::List(list) = ask {
            return stale::list(&self.local.state, list).await;
        }
        if let Ask::Get { name, consistency: Consistency::Stale } = ask {
            return stale::get(&self.local.state, name);
        }
        let deadlines = Deadlines::new(wait_ms(ask), budget, self.request_timeout);
        if self.serves() {
            match self.here(ask, deadlines).await {
                Ok(reply) => return Ok(reply),
                Err(Unanswered::Refused(refusal)) => return Err(refusal),
                Err(Unanswered::NotLeading) => {}
            }
        }
        // Seldom, and large: every request would have room for it.
        Box::pin(self.seek(ask, deadlines, reach)).await
    }

    /// Asks whoever leads, as long as there is time.
    async fn seek(&self, ask: &Ask, deadlines: Deadlines, reach: Reach) -> Result<Reply, Refusal> {
        let mut roles = self.roles.clone();
        loop {
            if self.stopping.load(Ordering::Relaxed) {
                return Err(Refusal::ShuttingDown);
            }
            let now = roles.borrow_and_update().clone();
            if now.serves {
                match self.here(ask, deadlines).await {
                    Ok(reply) => return Ok(reply),
                    Err(Unanswered::Refused(refusal)) => return Err(refusal),
                    Err(Unanswered::NotLeading) => {}
                }
            } else if reach != Reach::Cluster {
                if now.other.is_some() {
                    return Err(Refusal::NotLeader { leader: now.other });
                }
            } else if let Some(leader) = now.other {
                match self.there(&leader, ask, deadlines).await {
                    Forwarded::Answered(reply) => return reply,
                    Forwarded::Silence if seeded(SeededBug::RetryAppliedTwice) => {}
                    Forwarded::Silence if is_write(ask) => return Err(Refusal::OutcomeUnknown),
                    Forwarded::Silence | Forwarded::NotRun => {}
                }
            }
            if !pause(&mut roles, deadlines.answer).await {
                return Err(Refusal::NoLeader);
            }
        }
    }

    async fn here(&self, ask: &Ask, deadlines: Deadlines) -> Result<Reply, Unanswered> {
        if let Ask::Change(change) = ask {
            return Box::pin(self.members.change(change, deadlines.answer)).await;
        }
        self.local.answer(ask, deadlines).await
    }

    async fn there(&self, leader: &Address, ask: &Ask, deadlines: Deadlines) -> Forwarded {
        self.metrics.forwarded.inc();
        let ask = with_what_is_left(ask.clone(), deadlines.wait);
        let mut deadline = deadlines.answer;
        if seeded(SeededBug::RetryAppliedTwice) {
            deadline = deadline.min(Instant::now() + 10 * PAUSE);
        }
        self.forwarder.forward(&leader.rpc, ask, deadline).await
    }
}

/// Where bug 15 is seeded.
pub(crate) fn said(refusal: Refusal) -> Refusal {
    let seeded = refusal == Refusal::OutcomeUnknown && seeded(SeededBug::UnknownSaidRefused);
    if seeded { Refusal::NoLeader } else { refusal }
}

/// Waits for news of the leader or a little while; says whether there is time left.
async fn pause(roles: &mut watch::Receiver<Roles>, deadline: Instant) -> bool {
    let news = async {
        let pause = sleep(PAUSE);
        tokio::pin!(pause);
        tokio::select! {
            changed = roles.changed() => if changed.is_err() { pause.await },
            () = &mut pause => {}
        }
    };
    timeout_at(deadline, news).await.is_ok() && Instant::now() < deadline
}

/// About how much memory a request holds.
fn bytes(ask: &Ask) -> usize {
    match ask {
        Ask::Command { command, .. } => command.size(),
        Ask::Batch(commands) => commands.iter().map(Command::size).sum(),
        Ask::Get { .. } | Ask::Wait { .. } | Ask::List(_) | Ask::Change(_) => 0,
    }
}

fn wait_ms(ask: &Ask) -> u64 {
    match ask {
        Ask::Command { wait_ms, .. } => *wait_ms,
        Ask::Wait { timeout_ms, .. } => *timeout_ms,
        Ask::Batch(_) | Ask::Get { .. } | Ask::List(_) | Ask::Change(_) => 0,
    }
}

fn is_write(ask: &Ask) -> bool {
    match ask {
        Ask::Command { .. } | Ask::Batch(_) | Ask::Change(_) => true,
        Ask::Get { .. } | Ask::Wait { .. } | Ask::List(_) => false,
    }
}

fn with_what_is_left(mut ask: Ask, wait: Option<Instant>) -> Ask {
    let left = wait.map_or(0, |wait| {
        let left = wait.saturating_duration_since(Instant::now()).as_millis();
        u64::try_from(left).unwrap_or(u64::MAX)
    });
    match &mut ask {
        Ask::Command { wait_ms, .. } => *wait_ms = left,
        Ask::Wait { timeout_ms, .. } => *timeout_ms = left,
        Ask::Batch(_) | Ask::Get { .. } | Ask::List(_) | Ask::Change(_) => {}
    }
    ask
}
