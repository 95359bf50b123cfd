//! A running node: its parts, put together, started and stopped in order.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use tenure_client::Net;
use tenure_storage::{Disk, FailStop, Member, Raft, StateStore, Storage};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::budget::Budget;
use crate::clock::Clock;
use crate::config::Config;
use crate::dial::{Dialer, Network};
use crate::forward::Forwarder;
use crate::http;
use crate::leader_time::LeaderTime;
use crate::local::Local;
use crate::members::Members;
use crate::metrics::Metrics;
use crate::peer::{PeerAnswer, PeerFrame, PeerMessage};
use crate::propose::Proposer;
use crate::purge;
use crate::read_index::ReadIndex;
use crate::roles::{self, Roles};
use crate::route::Router;
use crate::rpc;
use crate::serve_peer::PeerService;
use crate::shared::Shared;
use crate::socket::Listener;
use crate::trim;
use crate::wait::Waiters;

/// For a connection to a peer to stand.
const DIAL: Duration = Duration::from_secs(1);
/// A peer that has not answered an append for so many election timeouts is dialled again.
const ELECTIONS_TO_ANSWER: u32 = 5;
/// Between two looks at the free disk space.
const DISK_CHECK: Duration = Duration::from_secs(1);
/// Between two tries to reach a peer before this node is admitted.
const RETRY: Duration = Duration::from_millis(100);
/// For requests in flight when the node stops.
const DRAIN: Duration = Duration::from_secs(10);

/// A node that takes part in no Raft yet may not, ever.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A voter that lost its disk.
    #[error(
        "node {id} was here before and lost its data: remove it and join with a new id \
         and an empty data directory (tenure cluster remove {id}, then tenure server --id NEW \
         --data-dir EMPTY --join URL)"
    )]
    LostItsData {
        /// Its id.
        id: u64,
    },
    /// An empty node that was not told how it comes into a cluster.
    #[error("node {id} has no log yet: give --bootstrap or --join")]
    NoEntrance {
        /// Its id.
        id: u64,
    },
    /// Raft does not start on what the disk holds.
    #[error("Raft cannot start: {0}")]
    Raft(String),
    /// A port cannot be served.
    #[error("cannot listen")]
    Listen(#[source] io::Error),
}

/// How a node without a log comes into a cluster; who must be asked before it takes part in Raft.
#[derive(Debug, Clone, Default)]
pub enum Admission {
    /// It does not: it needs a log.
    #[default]
    None,
    /// It is one of these first members, and asks all others.
    Bootstrap(BTreeMap<u64, Member>),
    /// It joins a running cluster. RPC addresses of the members to ask: all others if it is a
    /// member already, none if it is not, for then the leader refuses an id that ever was.
    Join(Vec<String>),
}

/// Everything a node needs from outside.
#[derive(Debug)]
pub struct Setup {
    /// Its opened data directory.
    pub storage: Storage,
    /// What that lies on, and where, for its free space.
    pub disk: (Disk, PathBuf),
    /// Its settings.
    pub config: Config,
    /// Its monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// Its way to other nodes.
    pub net: Arc<dyn Net>,
    /// The bound RPC port.
    pub rpc: Box<dyn Listener>,
    /// The bound HTTP port; none for a node that speaks frames alone.
    pub http: Option<Box<dyn Listener>>,
    /// Whom to ask first.
    pub admission: Admission,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    raft: Raft,
    fail: FailStop,
    shared: Arc<Shared>,
    /// Ends the clients' connections, in order.
    drain: CancellationToken,
    clients: TaskTracker,
    /// Ends everything else.
    cancel: CancellationToken,
    tasks: TaskTracker,
    /// Dropped last.
    _lock: tenure_storage::DirLock,
}

impl Node {
    /// Starts a node. It serves its ports at once; an empty one takes part in Raft only after it
    /// has been admitted.
    ///
    /// # Errors
    /// [`StartError`]. The node is stopped then.
    // Boxed, as are the others below: so that all of Raft is compiled here, once, and not in each
    // crate that starts a node.
    pub fn start(setup: Setup) -> BoxFuture<'static, Result<Self, StartError>> {
        Self::start_parts(setup).boxed()
    }

    async fn start_parts(setup: Setup) -> Result<Self, StartError> {
        let Setup { storage, disk, config, clock, net, rpc, http, admission } = setup;
        let Storage { identity, log, state, seen, fail, lock } = storage;
        let time = Arc::new(LeaderTime::new(clock));
        let waiters = Waiters::new(config.max_waiters, Arc::clone(&time));
        state.set_observer(Arc::clone(&waiters) as Arc<_>);
        let metrics = Arc::new(Metrics::new(&log.counters(), &state.counters()));
        let dialer = Dialer {
            node_id: identity.node_id,
            cluster_id: identity.cluster_id.clone(),
            time: Arc::clone(&time),
            seen: Arc::clone(&seen),
            net: Arc::clone(&net),
            timeout: DIAL,
            answer_within: config.election_max * ELECTIONS_TO_ANSWER,
        };
        let raft = start_raft(&identity, &config, &dialer, &log, &state).await?;
        let (admit, admitted) = watch::channel(false);
        let (roles_out, roles) = watch::channel(Roles::default());
        let proposer = Proposer::start(raft.clone(), Arc::clone(&time), Arc::clone(&metrics));
        let disk_full = Arc::new(AtomicBool::new(false));
        let members = Members {
            raft: raft.clone(),
            state: state.clone(),
            cluster_id: identity.cluster_id.clone(),
            node_id: identity.node_id,
            silent: config.silent(),
        };
        let (read_index, rounds) =
            ReadIndex::new(raft.clone(), state.clone(), config.request_timeout);
        let router = Arc::new(Router {
            local: Local {
                state: state.clone(),
                read_index,
                time: Arc::clone(&time),
                proposer: proposer.clone(),
                waiters: Arc::clone(&waiters),
                disk_full: Arc::clone(&disk_full),
            },
            members: members.clone(),
            forwarder: Forwarder::new(identity.cluster_id.clone(), net, DIAL),
            roles,
            metrics: Arc::clone(&metrics),
            request_timeout: config.request_timeout,
            stopping: Arc::new(AtomicBool::new(false)),
            budget: Budget::default(),
        });
        let shared = Arc::new(Shared {
            router: Arc::clone(&router),
            members,
            metrics: Arc::clone(&metrics),
            waiters: Arc::clone(&waiters),
            state: state.clone(),
            raft: raft.clone(),
            log: log.clone(),
            time: Arc::clone(&time),
            config: config.clone(),
            recovered: AtomicBool::new(false),
        });
        let peers = PeerService {
            raft: raft.clone(),
            state: state.clone(),
            time: Arc::clone(&time),
            seen: Arc::clone(&seen),
            admitted,
        };
        let (drain, clients) = (CancellationToken::new(), TaskTracker::new());
        let service = Arc::new(rpc::Service {
            cluster_id: identity.cluster_id.clone(),
            node_id: identity.node_id,
            router,
            peers,
            drain: drain.clone(),
            clients: clients.clone(),
        });
        let node = Self {
            raft: raft.clone(),
            fail,
            shared: Arc::clone(&shared),
            drain,
            clients,
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
            _lock: lock,
        };
        let follow =
            roles::follow(raft.clone(), state.clone(), time.clone(), waiters, metrics, roles_out);
        node.spawn(follow);
        node.spawn(rounds.run());
        node.spawn(purge::run(state.clone(), Arc::clone(&time), proposer, config.purge_interval));
        let trim = trim::run(raft.clone(), log.clone(), state.clone(), Arc::clone(&disk_full));
        node.spawn(trim);
        node.spawn(watch_disk(disk, config.min_free_disk, disk_full));
        node.spawn(recover(Arc::clone(&shared)));
        node.tasks.spawn(rpc::listen(rpc, service, node.cancel.clone()));
        if let Some(http) = http {
            node.clients.spawn(http::listen(http, shared, node.drain.clone()));
        }
        match node.enter(&dialer, admission, &admit).await {
            Ok(()) => Ok(node),
            Err(error) => {
                node.stop().await;
                Err(error)
            }
        }
    }

    /// An empty node takes part in Raft once it has been admitted.
    async fn enter(
        &self,
        dialer: &Dialer,
        admission: Admission,
        admit: &watch::Sender<bool>,
    ) -> Result<(), StartError> {
        let initialized = self.raft.is_initialized().await;
        if !initialized.map_err(|error| StartError::Raft(error.to_string()))? {
            self.admit(dialer, &admission).await?;
        }
        admit.send_replace(true);
        match admission {
            Admission::Bootstrap(members) => self.initialize(members).await,
            Admission::None | Admission::Join(_) => Ok(()),
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// An empty node asks the others whether it was here before.
    async fn admit(&self, dialer: &Dialer, admission: &Admission) -> Result<(), StartError> {
        let id = dialer.node_id;
        let others: Vec<&String> = match admission {
            Admission::None => return Err(StartError::NoEntrance { id }),
            Admission::Join(members) => members.iter().collect(),
            Admission::Bootstrap(members) => {
                let others = members.iter().filter(|(other, _)| **other != id);
                others.map(|(_, member)| &member.rpc).collect()
            }
        };
        // All at once: one that has seen it is enough, and another may be gone for good.
        let mut asked: FuturesUnordered<_> =
            others.into_iter().map(|address| self.ask_seen(dialer, address)).collect();
        while let Some(is_seen) = asked.next().await {
            if is_seen {
                return Err(StartError::LostItsData { id });
            }
        }
        Ok(())
    }

    async fn ask_seen(&self, dialer: &Dialer, address: &str) -> bool {
        let mut told = false;
        loop {
            let asked = async {
                let message = PeerMessage::HaveYouSeen { node_id: dialer.node_id };
                let frame = PeerFrame { leader_now_ms: None, message };
                dialer.dial(address).await?.call(&frame).await
            };
            match timeout(DIAL, asked).await {
                Ok(Ok(PeerAnswer::Seen(seen))) => return seen,
                Ok(Err(error)) if !told => {
                    tracing::info!(address, %error, "waiting for a member to answer");
                    told = true;
                }
                Ok(_) | Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    async fn initialize(&self, members: BTreeMap<u64, Member>) -> Result<(), StartError> {
        let is_initialized = self.raft.is_initialized().await;
        if is_initialized.map_err(|error| StartError::Raft(error.to_string()))? {
            return Ok(());
        }
        self.shared.time.bootstrap(self.shared.time.unix_ms());
        match self.raft.initialize(members).await {
            // Another first node was quicker: this one has its log already.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(StartError::Raft(error.to_string())),
        }
    }

    /// Waits until the node cannot go on, and says why.
    pub fn failed(&self) -> BoxFuture<'_, String> {
        self.failure().boxed()
    }

    async fn failure(&self) -> String {
        // It ends with Raft, and seldom changes before that: metrics change with every entry.
        let mut server = self.raft.server_metrics();
        let raft = async {
            while server.changed().await.is_ok() {}
            let metrics = self.raft.metrics();
            let state = metrics.borrow_watched().running_state.clone();
            state.map_or_else(|fatal| fatal.to_string(), |()| "Raft has stopped".to_owned())
        };
        tokio::select! {
            biased;
            reason = self.fail.raised() => reason,
            reason = raft => {
                // The disk's own word is the better one.
                self.fail.reason().map_or(reason, str::to_owned)
            }
        }
    }

    /// Hands leadership over, lets requests in flight end for up to ten seconds, and stops.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        async move {
            self.hand_over().await;
            self.shared.router.stopping.store(true, Ordering::Relaxed);
            self.stop().await;
        }
        .boxed()
    }

    async fn hand_over(&self) {
        let leads = self.raft.metrics().borrow_watched().state == ServerState::Leader;
        let me = *self.raft.node_id();
        let replication = self.raft.metrics().borrow_watched().replication.clone();
        let voters: Vec<u64> = self.raft.voter_ids().collect();
        // The one that is closest behind takes over soonest.
        let closest = replication.into_iter().flatten();
        let closest = closest.filter(|(id, _)| *id != me && voters.contains(id));
        let Some((to, _)) = closest.max_by_key(|(_, matched)| *matched).filter(|_| leads) else {
            return;
        };
        if self.raft.trigger().transfer_leader(to).await.is_err() {
            return;
        }
        let mut server = self.raft.server_metrics();
        let moved = async {
            while server.borrow_watched().state == ServerState::Leader {
                if server.changed().await.is_err() {
                    return;
                }
            }
        };
        if timeout(self.shared.config.election_max, moved).await.is_err() {
            tracing::warn!(to, "leadership was not handed over in time");
        }
    }

    /// First the clients, while Raft still commits what they have in flight; then the rest.
    async fn stop(self) {
        self.drain.cancel();
        self.clients.close();
        if timeout(DRAIN, self.clients.wait()).await.is_err() {
            tracing::warn!("some requests did not end in time");
        }
        self.cancel.cancel();
        if self.raft.shutdown().await.is_err() {
            tracing::warn!("Raft did not stop cleanly");
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Stops everything at once, as a crash would: nothing is handed over or drained.
    pub fn crash(self) -> BoxFuture<'static, ()> {
        async move {
            self.cancel.cancel();
            self.drain.cancel();
            drop(self.raft.shutdown().await);
            self.tasks.close();
            self.tasks.wait().await;
        }
        .boxed()
    }

    /// The cluster as this node sees it.
    #[must_use]
    pub fn status(&self) -> tenure_api::ClusterStatus {
        self.shared.members.status()
    }

    /// The node's state, for tests and tools that look inside.
    #[must_use]
    pub fn state(&self) -> &StateStore {
        &self.shared.state
    }
}

async fn start_raft(
    identity: &tenure_storage::Identity,
    config: &Config,
    dialer: &Dialer,
    log: &tenure_storage::LogStore,
    state: &StateStore,
) -> Result<Raft, StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError::Raft(error.to_string());
    let raft = config.raft(&identity.cluster_id).validate().map_err(|error| failed(&error))?;
    let network = Network(dialer.clone());
    Raft::new(identity.node_id, Arc::new(raft), network, log.clone(), state.clone())
        .await
        .map_err(|error| failed(&error))
}

/// Ready only once everything that was committed before the start is applied again.
async fn recover(shared: Arc<Shared>) {
    loop {
        let recovered = shared.raft.wait_for_recovery(Some(Duration::from_secs(1))).await;
        if recovered.is_ok() {
            shared.recovered.store(true, Ordering::Relaxed);
            return;
        }
        sleep(RETRY).await;
    }
}

async fn watch_disk(disk: (Disk, PathBuf), min_free: u64, full: Arc<AtomicBool>) {
    let (disk, dir) = disk;
    loop {
        match disk.free_bytes(&dir) {
            Ok(free) => {
                let is_full = free < min_free;
                if full.swap(is_full, Ordering::Relaxed) != is_full {
                    tracing::warn!(free, min_free, is_full, "free disk space");
                }
            }
            Err(error) => tracing::warn!(%error, "the free disk space could not be read"),
        }
        sleep(DISK_CHECK).await;
    }
}
