//! One hop to the leader, for clients that asked another node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_api::Refusal;
use tenure_api::frame::{Ask, Hello, PROTOCOL, Reply, Role};
use tenure_client::{Connection, DialTimeouts, Net};
use tokio::time::{Instant, timeout_at};

/// Most connections to the leader: each carries some thousand requests, long waits included.
const CONNECTIONS: usize = 32;

/// The connections to the leader, shared by all requests that are sent on.
#[derive(Debug)]
pub(crate) struct Forwarder {
    cluster_id: String,
    timeouts: DialTimeouts,
    net: Arc<dyn Net>,
    connections: Mutex<Vec<Arc<Connection>>>,
    dials: Mutex<HashMap<String, Arc<Dial>>>,
}

/// Held while one request dials an address, so that a thousand do not; with the moment of the last
/// failure, which counts for all that waited for it.
type Dial = tokio::sync::Mutex<Option<Instant>>;

/// What came of sending a request on.
#[derive(Debug)]
pub(crate) enum Forwarded {
    /// The leader's answer.
    Answered(Result<Reply, Refusal>),
    /// It did not get there, or the receiver proposed nothing: it may be sent elsewhere.
    NotRun,
    /// It got there, and there is no answer.
    Silence,
}

impl Forwarder {
    pub(crate) fn new(cluster_id: String, net: Arc<dyn Net>, timeout: Duration) -> Self {
        Self {
            cluster_id,
            timeouts: DialTimeouts { connect: timeout, hello: timeout },
            net,
            connections: Mutex::default(),
            dials: Mutex::default(),
        }
    }

    /// Sends `ask` to the node at `address`, and waits for the answer until `deadline`.
    pub(crate) async fn forward(&self, address: &str, ask: Ask, deadline: Instant) -> Forwarded {
        let connection = timeout_at(deadline, self.connection(address)).await;
        let Ok(Some(connection)) = connection else { return Forwarded::NotRun };
        let budget = deadline.saturating_duration_since(Instant::now());
        match connection.call(ask, budget, true).await {
            Ok(frame) => match frame.reply {
                Err(Refusal::NotLeader { .. } | Refusal::NoLeader | Refusal::ShuttingDown) => {
                    Forwarded::NotRun
                }
                reply => Forwarded::Answered(reply),
            },
            Err(error) if error.is_sent() => Forwarded::Silence,
            Err(_) => Forwarded::NotRun,
        }
    }

    /// A connection to `address` with room; the last one, full as it is, if there may be no more.
    fn current(&self, address: &str) -> Option<Arc<Connection>> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|open| open.address() == address && !open.is_closed());
        let roomy = connections.iter().find(|open| !open.is_full());
        let last = connections.last().filter(|_| connections.len() >= CONNECTIONS);
        roomy.or(last).cloned()
    }

    async fn connection(&self, address: &str) -> Option<Arc<Connection>> {
        if let Some(open) = self.current(address) {
            return Some(open);
        }
        let asked = Instant::now();
        let dial = {
            let mut dials = self.dials.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(dials.entry(address.to_owned()).or_default())
        };
        let mut failed = dial.lock().await;
        if let Some(open) = self.current(address) {
            return Some(open);
        }
        if failed.is_some_and(|failed| failed >= asked) {
            return None;
        }
        let hello = Hello {
            protocol: PROTOCOL,
            cluster_id: Some(self.cluster_id.clone()),
            role: Role::Client,
        };
        match Connection::dial(&*self.net, address, hello, self.timeouts).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                let mut open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
                open.push(Arc::clone(&connection));
                Some(connection)
            }
            Err(error) => {
                tracing::debug!(%error, "the leader could not be reached");
                *failed = Some(Instant::now());
                None
            }
        }
    }
}
