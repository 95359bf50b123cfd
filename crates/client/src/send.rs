//! One send of a request, and what its end means for the next.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::Refusal;
use tenure_api::frame::{Ask, Reply};
use tokio::time::Instant;

use crate::connection::{Connection, ConnectionError, NotSent};
use crate::error::Obstacle;
use crate::route::Route;
use crate::settle::may_commit;

/// A send that gave no reply.
#[derive(Debug)]
pub(crate) struct Failure {
    /// A refusal that ends the call: sending again would not help.
    pub(crate) end: Option<Refusal>,
    /// What to report if the call ends here.
    pub(crate) obstacle: Obstacle,
    /// Whether a command may commit all the same.
    pub(crate) unknown: bool,
    /// How long the node asks to be left alone.
    pub(crate) pause: Duration,
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

/// How long a send may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Until when a wait goes on; the node is told what is left of it.
    pub(crate) waits_until: Instant,
    /// When the call is over.
    pub(crate) deadline: Instant,
    /// How long a node may be silent beyond the wait.
    pub(crate) send_timeout: Duration,
}

/// Sends what `ask` makes of the wait that is left.
pub(crate) async fn send(
    route: &Arc<Route>,
    ask: impl FnOnce(Duration) -> Ask,
    patience: Patience,
) -> Result<Reply, Failure> {
    let connection = route.connection(patience.deadline).await.map_err(Failure::unsent)?;
    let now = Instant::now();
    let wait = patience.waits_until.saturating_duration_since(now);
    let longest = wait.saturating_add(patience.send_timeout);
    let budget = longest.min(patience.deadline.saturating_duration_since(now));
    match connection.call(ask(wait), budget, false).await {
        Ok(frame) => {
            route.heard(&connection, frame.leader.as_ref());
            frame.reply.map_err(|refusal| refused(route, &connection, refusal))
        }
        Err(error) => {
            let silent = matches!(error, ConnectionError::NoAnswer) && budget == longest;
            Err(failed(route, &connection, error, silent))
        }
    }
}

/// Sends what `make` puts together at the last moment, within `budget` from now; nothing if it
/// makes nothing. A node that lets the budget pass is left, for the next send to go elsewhere; it
/// is not given up, because other calls may have more time.
pub(crate) async fn send_late(
    route: &Arc<Route>,
    places: u32,
    make: impl FnOnce() -> Option<Ask>,
    budget: Duration,
) -> Result<Option<Reply>, Failure> {
    let deadline = Instant::now() + budget;
    let connection = route.connection(deadline).await.map_err(Failure::unsent)?;
    let left = deadline.saturating_duration_since(Instant::now());
    match connection.call_late(places, make, left, false).await {
        Ok(None) => Ok(None),
        Ok(Some(frame)) => {
            route.heard(&connection, frame.leader.as_ref());
            frame.reply.map(Some).map_err(|refusal| refused(route, &connection, refusal))
        }
        Err(error) => {
            if matches!(error, ConnectionError::NoAnswer) {
                route.leave(&connection);
            }
            Err(failed(route, &connection, error, false))
        }
    }
}

/// What to make of a refusal.
fn refused(route: &Arc<Route>, connection: &Arc<Connection>, refusal: Refusal) -> Failure {
    let mut pause = Duration::ZERO;
    match &refusal {
        Refusal::InvalidArgument { .. }
        | Refusal::PayloadTooLarge { .. }
        | Refusal::StorageFull
        | Refusal::Internal { .. } => return Failure::end(refusal),
        Refusal::NotLeader { leader: Some(leader) } => route.go_to(connection, leader),
        Refusal::Overloaded { retry_after_ms, .. } => {
            pause = Duration::from_millis(*retry_after_ms);
        }
        Refusal::NotLeader { leader: None }
        | Refusal::NoLeader
        | Refusal::ShuttingDown
        | Refusal::OutcomeUnknown => route.leave(connection),
    }
    let unknown = may_commit(&refusal);
    Failure { end: None, obstacle: Obstacle::Refusal(refusal), unknown, pause }
}

/// What to make of a send without an answer.
fn failed(
    route: &Arc<Route>,
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
            route.leave(connection);
        }
        ConnectionError::NoAnswer if silent => {
            // Half open, stopped or stuck: no other call should wait for it either.
            route.leave(connection);
            connection.give_up();
        }
        ConnectionError::NoAnswer => {}
    }
    let unknown = error.is_sent();
    let obstacle = Obstacle::Connection(error);
    Failure { end: None, obstacle, unknown, pause: Duration::ZERO }
}
