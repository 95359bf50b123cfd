//! A node's place in the cluster: what stays when the node goes, and the node while it runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure_network::{Admission, Config, Node, Setup};
use tenure_storage::{Disk, LogStore, Member, SimulatedDisk, StateStore};
use tokio::sync::Notify;

use crate::clock::DriftingClock;
use crate::links::{Links, address};

/// The cluster of all runs.
pub(crate) const CLUSTER: &str = "simulated";
/// Longest time that a healthy disk takes for a piece of work, in microseconds.
const DISK_MAX_US: u64 = 3_000;
/// Longest time that a slow one takes.
const SLOW_DISK_MAX_US: u64 = 300_000;

/// What stays.
pub(crate) struct Seat {
    pub(crate) id: u64,
    pub(crate) disk: SimulatedDisk,
    /// How its node comes into the cluster when it starts next.
    admission: Mutex<Admission>,
    /// Seconds that its clock shows for a real one.
    speed: f64,
    config: Config,
    links: Links,
    disk_max_us: Arc<AtomicU64>,
    /// Asks the node to stop in order.
    stop: Notify,
    running: Mutex<Option<Running>>,
    /// Why a node ended by itself.
    ended: Mutex<Option<String>>,
}

/// A node that runs, as far as one looks at it from outside.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) log: LogStore,
    pub(crate) state: StateStore,
    /// None until it is admitted.
    pub(crate) node: Weak<Node>,
}

impl Seat {
    pub(crate) fn new(
        id: u64,
        speed: f64,
        config: &Config,
        links: &Links,
        admission: Admission,
    ) -> Self {
        Self {
            id,
            disk: SimulatedDisk::default(),
            admission: Mutex::new(admission),
            speed,
            config: Config { address: member(id), ..config.clone() },
            links: links.clone(),
            disk_max_us: Arc::new(AtomicU64::new(DISK_MAX_US)),
            stop: Notify::new(),
            running: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// From now on its disk is slow, or quick again.
    pub(crate) fn slow_disk(&self, is_slow: bool) {
        let most = if is_slow { SLOW_DISK_MAX_US } else { DISK_MAX_US };
        self.disk_max_us.store(most, Ordering::Relaxed);
    }

    /// Changes how its node comes into the cluster.
    pub(crate) fn enter_by(&self, admission: Admission) {
        *self.admission.lock().unwrap_or_else(PoisonError::into_inner) = admission;
    }

    fn locked(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node, while it runs.
    pub(crate) fn running(&self) -> Option<Running> {
        self.locked().clone()
    }

    /// Nobody looks at the node any more.
    pub(crate) fn forget(&self) {
        let running = self.locked().take();
        drop(running);
    }

    /// Has the node stop in order; nobody looks at it any more.
    pub(crate) fn stop(&self) {
        self.forget();
        self.stop.notify_one();
    }

    /// What the process that is gone said, or was told and had not heard, is over.
    pub(crate) fn renew(&self) {
        drop(self.take_end());
        self.stop.notified().now_or_never();
    }

    /// Why the node ended by itself, once.
    pub(crate) fn take_end(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn ended(&self, why: String) {
        self.forget();
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// The life of a node, from opening its disk to its end. What is left of it then goes with its
    /// host.
    pub(crate) async fn live(self: Arc<Self>) -> turmoil::Result {
        if let Err(why) = self.run().await {
            self.ended(why);
        }
        std::future::pending().await
    }

    async fn run(&self) -> Result<(), String> {
        let dir = PathBuf::from("node");
        let disk = self.timed_disk();
        let storage = tenure_storage::open(&disk, &dir, self.id, Some(CLUSTER));
        let storage = storage.map_err(|error| format!("cannot open: {error}"))?;
        let (log, state) = (storage.log.clone(), storage.state.clone());
        *self.locked() = Some(Running { log, state, node: Weak::new() });
        let fail = storage.fail.clone();
        let setup = Setup {
            storage,
            disk: (disk, dir),
            config: self.config.clone(),
            clock: Arc::new(DriftingClock::new(self.speed)),
            net: Arc::new(self.links.clone()),
            rpc: Box::new(self.links.listen().await.map_err(|error| error.to_string())?),
            http: None,
            admission: self.admission.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        let started = tokio::select! {
            biased;
            started = Node::start(setup) => started,
            why = fail.raised() => return Err(why),
            () = self.stop.notified() => {
                self.forget();
                return Ok(());
            }
        };
        let node = Arc::new(started.map_err(|error| error.to_string())?);
        if let Some(running) = &mut *self.locked() {
            running.node = Arc::downgrade(&node);
        }
        tokio::select! {
            biased;
            why = node.failed() => Err(why),
            () = self.stop.notified() => {
                self.forget();
                if let Some(node) = Arc::into_inner(node) {
                    node.shutdown().await;
                }
                Ok(())
            }
        }
    }

    /// The disk, each piece of whose work takes a while.
    fn timed_disk(&self) -> Disk {
        let rng = Mutex::new(StdRng::seed_from_u64(rand::random()));
        let most = Arc::clone(&self.disk_max_us);
        Disk::simulated_in_time(&self.disk, move || {
            let most = most.load(Ordering::Relaxed);
            let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
            // Mostly quick.
            let us = rng.random_range(0..=most) * rng.random_range(0..=most) / most;
            Duration::from_micros(us)
        })
    }
}

/// A node as its cluster knows it.
pub(crate) fn member(id: u64) -> Member {
    Member { http: format!("node-{id}:80"), rpc: address(id) }
}
