//! Nodes, their disks, and what happens to them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_api::frame::Change;
use tenure_api::{Node as Address, NodeRole};
use tenure_client::{Client, DialError};
use tenure_network::{Admission, Config, Node, PeerTcp, Setup, StartError};
use tenure_storage::{Disk, Member, SimulatedDisk, Storage};
use tokio::net::TcpListener;

use super::caller::Caller;
use super::clocks::Clocks;
use super::http::Http;
use super::links::{Door, End, Links};
use super::until::eventually;

/// The cluster of all tests.
const CLUSTER: &str = "test";

/// How a cluster is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Voters at the start, with ids from 1.
    pub nodes: u64,
    /// Whether clocks follow real time, or stand until a test moves them.
    pub follow_time: bool,
    /// What every node is told; its address is its own.
    pub config: Config,
}

impl Default for Options {
    fn default() -> Self {
        let config = Config {
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(250),
            election_max: Duration::from_millis(500),
            purge_interval: Duration::from_millis(50),
            ..Config::default()
        };
        Self { nodes: 3, follow_time: true, config }
    }
}

impl Options {
    /// The same, with clocks that stand until they are moved.
    #[must_use]
    pub fn standing(self) -> Self {
        Self { follow_time: false, ..self }
    }

    /// The same, with other settings.
    #[must_use]
    pub fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(&mut self.config);
        self
    }
}

/// A cluster in this process.
#[derive(Debug)]
pub struct Cluster {
    /// The network between its nodes.
    pub links: Links,
    /// Its nodes' clocks.
    pub clocks: Clocks,
    options: Options,
    bootstrap: BTreeMap<u64, Member>,
    seats: BTreeMap<u64, Seat>,
}

/// A node's place: what stays when the node goes.
#[derive(Debug)]
struct Seat {
    disk: SimulatedDisk,
    door: Door,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    node: Node,
    http: Http,
    rpc: String,
}

impl Cluster {
    /// Starts `nodes` voters and waits until one of them leads.
    pub async fn start(nodes: u64) -> Self {
        Self::start_with(Options { nodes, ..Options::default() }).await
    }

    /// Starts as told and waits until a node leads.
    ///
    /// # Panics
    /// When a node does not start.
    pub async fn start_with(options: Options) -> Self {
        let mut cluster = Self::prepare(options).await;
        let ids: Vec<u64> = cluster.seats.keys().copied().collect();
        let started = cluster.start_nodes(&ids).await;
        started.into_iter().for_each(|started| started.unwrap());
        cluster.leader().await;
        cluster
    }

    /// Everything but running nodes.
    pub async fn prepare(options: Options) -> Self {
        let (links, clocks) = (Links::default(), Clocks::default());
        if options.follow_time {
            clocks.follow_time();
        }
        let (mut seats, mut bootstrap) = (BTreeMap::new(), BTreeMap::new());
        for id in 1..=options.nodes {
            let door = links.door(id).await;
            let http = format!("127.0.0.1:{}", 9000 + id);
            bootstrap.insert(id, Member { http, rpc: door.address.to_string() });
            seats.insert(id, Seat { disk: SimulatedDisk::default(), door, running: None });
        }
        Self { links, clocks, options, bootstrap, seats }
    }

    /// Starts nodes of the bootstrap list together, as they are told on their command line.
    pub async fn start_nodes(&mut self, ids: &[u64]) -> Vec<Result<(), StartError>> {
        let admission = Admission::Bootstrap(self.bootstrap.clone());
        let starts = ids.iter().map(|id| self.start_node(*id, admission.clone()));
        let started = join_all(starts).await;
        let mut results = Vec::new();
        for (id, started) in ids.iter().zip(started) {
            results.push(started.map(|running| self.seat(*id, running)));
        }
        results
    }

    fn seat(&mut self, id: u64, running: Running) {
        self.seats.get_mut(&id).unwrap().running = Some(running);
    }

    async fn start_node(&self, id: u64, admission: Admission) -> Result<Running, StartError> {
        let seat = &self.seats[&id];
        let storage = open(&seat.disk, id).await;
        let rpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (rpc_at, http_at) = (rpc.local_addr().unwrap(), http.local_addr().unwrap());
        seat.door.target.send_replace(Some(rpc_at));
        let address = Member { http: http_at.to_string(), rpc: seat.door.address.to_string() };
        let setup = Setup {
            storage,
            disk: (Disk::simulated(&seat.disk), dir()),
            config: Config { address, ..self.options.config.clone() },
            clock: Arc::new(self.clocks.renew(id)),
            net: Arc::new(PeerTcp),
            rpc: Box::new(rpc),
            http: Some(Box::new(http)),
            admission,
        };
        let node = Box::pin(Node::start(setup)).await?;
        Ok(Running { node, http: Http(http_at), rpc: rpc_at.to_string() })
    }

    /// Starts all first nodes, one of them only after the others have waited for it for `pause`.
    ///
    /// # Panics
    /// When the others do not wait, or one does not start.
    pub async fn start_with_one_late(&mut self, late: u64, pause: Duration) {
        let admission = Admission::Bootstrap(self.bootstrap.clone());
        let ids: Vec<u64> = self.seats.keys().copied().filter(|id| *id != late).collect();
        let started = {
            let others = ids.iter().map(|id| self.start_node(*id, admission.clone()));
            let mut others = std::pin::pin!(join_all(others));
            let waited = tokio::time::timeout(pause, &mut others).await;
            assert!(waited.is_err(), "they did not wait for node {late}");
            let (mut others, last) = tokio::join!(others, self.start_node(late, admission));
            others.push(last);
            others
        };
        for (id, started) in ids.into_iter().chain([late]).zip(started) {
            self.seat(id, started.unwrap());
        }
    }

    /// Starts a node again, told of other first members than there were.
    ///
    /// # Errors
    /// [`StartError`], when it may not.
    pub async fn restart_told(&mut self, id: u64, first: &[u64]) -> Result<(), StartError> {
        let told = self.bootstrap.iter().filter(|(id, _)| first.contains(id));
        let bootstrap = told.map(|(id, member)| (*id, member.clone())).collect();
        let admission = Admission::Bootstrap(bootstrap);
        let running = self.start_node(id, admission).await?;
        self.seat(id, running);
        Ok(())
    }

    /// Starts a node again on what its disk holds.
    ///
    /// # Errors
    /// [`StartError`], when it may not.
    pub async fn try_restart(&mut self, id: u64) -> Result<(), StartError> {
        self.start_nodes(&[id]).await.remove(0)
    }

    /// Starts a node again on what its disk holds.
    ///
    /// # Panics
    /// When it may not start.
    pub async fn restart(&mut self, id: u64) {
        self.try_restart(id).await.unwrap();
    }

    /// Starts a node that joins the running cluster with an empty disk, without adding it.
    ///
    /// # Errors
    /// [`StartError`], when it may not.
    pub async fn start_joining(&mut self, id: u64) -> Result<(), StartError> {
        if !self.seats.contains_key(&id) {
            let door = self.links.door(id).await;
            let seat = Seat { disk: SimulatedDisk::default(), door, running: None };
            self.seats.insert(id, seat);
        }
        let running = self.seats.values().filter(|seat| seat.running.is_some());
        let join = running.map(|seat| seat.door.address.to_string()).collect();
        let admission = Admission::Join(join);
        let running = self.start_node(id, admission).await?;
        self.seat(id, running);
        Ok(())
    }

    /// Where the members are told to find a node.
    #[must_use]
    pub fn address(&self, id: u64) -> Address {
        let rpc = self.seats[&id].door.address.to_string();
        Address { id, http: format!("127.0.0.1:{}", 9000 + id), rpc }
    }

    /// Adds a started node as a learner.
    ///
    /// # Panics
    /// When that is refused.
    pub async fn add(&self, id: u64) {
        let address = self.address(id);
        self.change(Change::Add(address)).await;
    }

    /// Makes a change of the cluster through its leader, again until it is taken.
    ///
    /// # Panics
    /// When it is refused for good.
    pub async fn change(&self, change: Change) {
        eventually(&format!("{change:?}"), async || {
            let leader = self.leader().await;
            let made = self.caller(leader).await.change(change.clone()).await;
            match made {
                Ok(()) => Some(()),
                Err(super::NoAnswer::Refused(tenure_api::Refusal::InvalidArgument {
                    reason,
                    ..
                })) => panic!("{change:?} was refused: {reason}"),
                Err(_) => None,
            }
        })
        .await;
    }

    /// Hands leadership to a node and waits until it leads.
    ///
    /// # Panics
    /// When it does not come to lead.
    pub async fn transfer(&self, to: u64) {
        eventually(&format!("node {to} leads"), async || {
            let leader = self.leader().await;
            if leader == to {
                return Some(());
            }
            self.caller(leader).await.change(Change::Transfer { to }).await.ok();
            None
        })
        .await;
    }

    /// Ids of the nodes that run.
    #[must_use]
    pub fn ids(&self) -> Vec<u64> {
        let running = self.seats.iter().filter(|(_, seat)| seat.running.is_some());
        running.map(|(id, _)| *id).collect()
    }

    /// A running node.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn node(&self, id: u64) -> &Node {
        &self.running(id).node
    }

    fn running(&self, id: u64) -> &Running {
        self.seats[&id].running.as_ref().unwrap_or_else(|| panic!("node {id} does not run"))
    }

    /// A node's disk.
    #[must_use]
    pub fn disk(&self, id: u64) -> &SimulatedDisk {
        &self.seats[&id].disk
    }

    /// Opens the storage of a node that does not run.
    pub async fn open(&self, id: u64) -> Storage {
        open(self.disk(id), id).await
    }

    /// The node that leads: in the highest term, if several believe so.
    pub async fn leader(&self) -> u64 {
        let ids = self.ids();
        self.leader_among(&ids).await
    }

    /// The one of these that leads; waits until one of them does, and serves.
    pub async fn leader_among(&self, ids: &[u64]) -> u64 {
        eventually(&format!("one of {ids:?} leads"), async || {
            let statuses = ids.iter().map(|id| self.node(*id).status());
            let leading = statuses.filter(|status| status.role == NodeRole::Leader);
            let newest = leading.max_by_key(|status| status.term)?;
            let applied = self.node(newest.id).state().applied();
            (applied.term == newest.term).then_some(newest.id)
        })
        .await
    }

    /// The nodes that do not lead now.
    pub async fn followers(&self) -> Vec<u64> {
        let leader = self.leader().await;
        self.ids().into_iter().filter(|id| *id != leader).collect()
    }

    /// A connection to a node, past its proxy: links do not touch it.
    ///
    /// # Panics
    /// When the node does not greet.
    pub async fn caller(&self, id: u64) -> Caller {
        let rpc = &self.running(id).rpc;
        eventually(&format!("node {id} greets"), async || Caller::dial(rpc, None).await.ok()).await
    }

    /// A connection to a node through its proxy.
    ///
    /// # Errors
    /// When it does not stand in time.
    pub async fn caller_through(&self, id: u64) -> Result<Caller, DialError> {
        Caller::dial(&self.seats[&id].door.address.to_string(), None).await
    }

    /// A connection that names a cluster, past the proxy.
    ///
    /// # Errors
    /// When the node refuses it.
    pub async fn caller_of(&self, id: u64, cluster_id: &str) -> Result<Caller, DialError> {
        Caller::dial(&self.running(id).rpc, Some(cluster_id)).await
    }

    /// A connection to the leader, past its proxy.
    pub async fn lead(&self) -> Caller {
        let leader = self.leader().await;
        self.caller(leader).await
    }

    /// A client of all nodes, through their proxies.
    #[must_use]
    pub fn client(&self) -> Client {
        let endpoints = self.seats.values().map(|seat| seat.door.address.to_string()).collect();
        let mut config = tenure_client::Config::new(endpoints);
        config.timeout = super::LIMIT;
        Client::new(config)
    }

    /// A node's HTTP API.
    #[must_use]
    pub fn http(&self, id: u64) -> Http {
        self.running(id).http.clone()
    }

    /// A number of a node's metrics, by its name without the prefix.
    ///
    /// # Panics
    /// When there is none of that name.
    pub async fn metric(&self, id: u64, name: &str) -> u64 {
        let page = self.http(id).get("/metrics").await.unwrap().text;
        let prefix = format!("tenure_{name} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&prefix));
        value.unwrap_or_else(|| panic!("no {name} in:\n{page}")).parse().unwrap()
    }

    /// Waits until so many wait for records on a node.
    pub async fn waiters(&self, id: u64, count: u64) {
        eventually(&format!("{count} waiters on node {id}"), async || {
            (self.metric(id, "waiters").await == count).then_some(())
        })
        .await;
    }

    /// Cuts a node off from all others, in both directions. Clients still reach it.
    pub fn isolate(&self, id: u64) {
        for other in self.seats.keys().filter(|other| **other != id) {
            self.links.cut(End::Node(id), End::Node(*other));
        }
    }

    /// Kills a node's process: what it has written stays, synced or not.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn crash(&mut self, id: u64) {
        let seat = self.seats.get_mut(&id).unwrap();
        seat.door.target.send_replace(None);
        let running = seat.running.take().unwrap_or_else(|| panic!("node {id} does not run"));
        Box::pin(running.node.crash()).await;
    }

    /// Stops a node in order.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn shutdown(&mut self, id: u64) {
        let running = self.seats.get_mut(&id).unwrap().running.take().unwrap();
        Box::pin(running.node.shutdown()).await;
        self.seats[&id].door.target.send_replace(None);
    }

    /// Takes a node out of the cluster's hands, to be stopped by the test itself.
    ///
    /// # Panics
    /// When it does not run.
    pub fn take(&mut self, id: u64) -> Node {
        self.seats.get_mut(&id).unwrap().running.take().unwrap().node
    }

    /// Cuts the power of every node at one moment: nothing that is not synced is left of any.
    pub async fn power_cut_all(&mut self) {
        self.power_cut_all_keeping(|_| 0).await;
    }

    /// As [`Cluster::power_cut_all`], but some of what is not synced survives: see
    /// `SimulatedDisk::power_cut_keeping`.
    pub async fn power_cut_all_keeping(&mut self, mut keep: impl FnMut(usize) -> usize) {
        self.seats.values().for_each(|seat| seat.disk.power_cut_keeping(&mut keep));
        for id in self.ids() {
            self.crash(id).await;
        }
    }

    /// Starts all first nodes again, together.
    ///
    /// # Panics
    /// When one may not start.
    pub async fn restart_all(&mut self) {
        let ids: Vec<u64> = self.bootstrap.keys().copied().collect();
        let started = self.start_nodes(&ids).await;
        started.into_iter().for_each(|started| started.unwrap());
        self.leader().await;
    }

    /// Replaces a node's disk by an empty one.
    ///
    /// # Panics
    /// When the node runs.
    pub fn wipe(&mut self, id: u64) {
        let seat = self.seats.get_mut(&id).unwrap();
        assert!(seat.running.is_none(), "node {id} runs");
        seat.disk = SimulatedDisk::default();
    }

    /// Waits until all running nodes have applied the same, and gives the index.
    pub async fn settled(&self) -> u64 {
        eventually("all nodes have applied the same", async || {
            let applied = self.ids().into_iter().map(|id| self.node(id).state().applied().index);
            let applied: Vec<u64> = applied.collect();
            let leader = self.leader().await;
            let last = self.node(leader).status().last_index;
            applied.iter().all(|index| *index == last).then_some(last)
        })
        .await
    }

    /// The hash of every running node's state at one index, once they are all there.
    ///
    /// # Panics
    /// When a node does not take a snapshot.
    pub async fn hashes(&self) -> BTreeMap<u64, String> {
        eventually("snapshots of one index", async || {
            let index = self.settled().await;
            let mut hashes = BTreeMap::new();
            for id in self.ids() {
                let taken = self.http(id).post("/v1/cluster/snapshot", serde_json::json!({})).await;
                let taken = taken.unwrap().json();
                if taken["index"] != index {
                    return None;
                }
                hashes.insert(id, taken["hash"].as_str().unwrap().to_owned());
            }
            Some(hashes)
        })
        .await
    }
}

fn dir() -> PathBuf {
    PathBuf::from("node")
}

/// Opens a node's storage, once whoever had it open has let go.
async fn open(disk: &SimulatedDisk, id: u64) -> Storage {
    eventually(&format!("the disk of node {id} is free"), async || {
        match tenure_storage::open(&Disk::simulated(disk), &dir(), id, Some(CLUSTER)) {
            Ok(storage) => Some(storage),
            Err(tenure_storage::OpenError::InUse { .. }) => None,
            Err(error) => panic!("the disk of node {id}: {error}"),
        }
    })
    .await
}
