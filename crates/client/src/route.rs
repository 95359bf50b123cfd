//! Which connection a call takes: the leader's where it is known, else the next endpoint's.
//!
//! Any node takes any request and forwards it, so a connection to a follower is good enough to go
//! on with while the one to the leader is dialled.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_api::Node;
use tenure_api::frame::{Hello, PROTOCOL, Role};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::client::Config;
use crate::connection::{Connection, DialError};
use crate::error::Obstacle;
use crate::net::Tcp;

/// How long a leader's address that could not be dialled is left alone.
const HINT_REST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Route {
    config: Config,
    state: Mutex<State>,
    /// Held while endpoints are dialled: callers that find no connection share one round.
    round: tokio::sync::Mutex<Option<FailedRound>>,
    /// The cluster of the first node reached; endpoints of another one are refused (C7).
    cluster_id: OnceLock<String>,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Connection>>,
    /// The endpoint to try next.
    next: usize,
    /// A leader named by a node, and not dialled yet.
    leader: Option<String>,
    /// No leader's address is dialled in the background before this.
    hints_rest_until: Option<Instant>,
    /// A leader's address is being dialled in the background.
    following: bool,
}

/// A round in which no endpoint could be dialled.
#[derive(Debug)]
struct FailedRound {
    began: Instant,
    error: Arc<DialError>,
}

impl Route {
    pub(crate) fn new(config: Config) -> Self {
        let cluster_id = OnceLock::new();
        if let Some(id) = &config.cluster_id {
            let _ = cluster_id.set(id.clone());
        }
        Self { config, state: Mutex::default(), round: tokio::sync::Mutex::default(), cluster_id }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open connection with room, if the current one is that.
    fn current(&self) -> Option<Arc<Connection>> {
        let state = self.lock();
        state.current.as_ref().filter(|c| !c.is_closed() && !c.is_full()).cloned()
    }

    /// An open connection: the current one, or a new one dialled before `deadline`.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<Arc<Connection>, Obstacle> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        timeout_at(deadline, self.dial_any()).await.unwrap_or(Err(Obstacle::NoConnection))
    }

    async fn dial_any(&self) -> Result<Arc<Connection>, Obstacle> {
        let arrived = Instant::now();
        let mut round = self.round.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if let Some(failed) = round.as_ref().filter(|failed| failed.began >= arrived) {
            return Err(Obstacle::Dial(Arc::clone(&failed.error)));
        }
        let began = Instant::now();
        let mut last = None;
        for (address, endpoint) in self.candidates() {
            self.trying(endpoint);
            match self.dial(&address).await {
                Ok(connection) => return Ok(self.take(connection, endpoint)),
                Err(error) => {
                    debug!(%error, "an endpoint does not answer");
                    last = Some(Arc::new(error));
                }
            }
        }
        // A full connection is better than none: the call waits for a place on it.
        if let Some(full) = self.lock().current.clone().filter(|c| !c.is_closed()) {
            return Ok(full);
        }
        let error = last.ok_or(Obstacle::NoEndpoints)?;
        *round = Some(FailedRound { began, error: Arc::clone(&error) });
        Err(Obstacle::Dial(error))
    }

    /// The next round starts behind this endpoint, if this one ends before its dial does.
    fn trying(&self, endpoint: Option<usize>) {
        if let Some(endpoint) = endpoint {
            let endpoints = self.config.endpoints.len().max(1);
            self.lock().next = endpoint.wrapping_add(1) % endpoints;
        }
    }

    /// What to dial, best first, each with its place among the endpoints if it has one: the node
    /// of a connection that is only full, a leader that was named, then all endpoints in turn.
    fn candidates(&self) -> Vec<(String, Option<usize>)> {
        let mut state = self.lock();
        let full = state.current.as_ref().filter(|c| !c.is_closed()).map(|c| c.address().into());
        let leader = state.leader.take();
        let first = state.next;
        let endpoints = &self.config.endpoints;
        let turns = (0..endpoints.len()).filter_map(|turn| {
            let place = first.wrapping_add(turn) % endpoints.len();
            Some((endpoints.get(place)?.clone(), Some(place)))
        });
        let named = full.into_iter().chain(leader).map(|address| (address, None));
        named.chain(turns).collect()
    }

    async fn dial(&self, address: &str) -> Result<Arc<Connection>, DialError> {
        let cluster_id = self.cluster_id.get().cloned();
        let hello = Hello { protocol: PROTOCOL, cluster_id, role: Role::Client };
        let connection = Connection::dial(&Tcp, address, hello, self.config.dial).await?;
        let found = connection.cluster_id();
        let wanted = self.cluster_id.get_or_init(|| found.to_owned());
        if wanted != found {
            return Err(DialError::Cluster {
                address: address.to_owned(),
                wanted: wanted.clone(),
                found: found.to_owned(),
            });
        }
        Ok(Arc::new(connection))
    }

    fn take(&self, connection: Arc<Connection>, endpoint: Option<usize>) -> Arc<Connection> {
        let mut state = self.lock();
        if let Some(endpoint) = endpoint {
            state.next = endpoint;
        }
        state.current = Some(Arc::clone(&connection));
        connection
    }

    /// Takes no further call to `connection`: the next one goes to another endpoint.
    pub(crate) fn leave(&self, connection: &Arc<Connection>) {
        let mut state = self.lock();
        if state.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            state.current = None;
            let endpoints = &self.config.endpoints;
            if endpoints.get(state.next).is_some_and(|next| next == connection.address()) {
                state.next = state.next.wrapping_add(1) % endpoints.len();
            }
        }
    }

    /// Leaves `connection` for the leader that its node named in a refusal.
    pub(crate) fn go_to(&self, connection: &Arc<Connection>, leader: &Node) {
        self.leave(connection);
        self.lock().leader = Some(leader.rpc.clone()).filter(|rpc| !rpc.is_empty());
    }

    /// Takes in who leads, as said beside an answer. Calls go on over `connection` until the one
    /// to the leader stands.
    pub(crate) fn heard(self: &Arc<Self>, connection: &Connection, leader: Option<&Node>) {
        let Some(leader) = leader else { return };
        if leader.rpc.is_empty() || leader.rpc == connection.address() {
            return;
        }
        let mut state = self.lock();
        let known = state.current.as_ref().is_some_and(|c| c.address() == leader.rpc);
        let resting = state.hints_rest_until.is_some_and(|until| Instant::now() < until);
        if known || resting || state.following {
            return;
        }
        state.following = true;
        drop(state);
        let (route, address) = (Arc::clone(self), leader.rpc.clone());
        tokio::spawn(async move { route.follow(&address).await });
    }

    async fn follow(&self, address: &str) {
        let dialled = self.dial(address).await;
        let mut state = self.lock();
        state.following = false;
        match dialled {
            Ok(connection) => {
                debug!(address, "calls go to the leader now");
                state.current = Some(connection);
            }
            Err(error) => {
                debug!(%error, "the leader cannot be dialled; a follower forwards");
                state.hints_rest_until = Some(Instant::now() + HINT_REST);
            }
        }
    }
}
