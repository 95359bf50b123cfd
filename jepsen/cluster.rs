//! Three processes of the binary, started by `tenure dev`, in a directory and on ports of their
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{self, Process, tenure};
use crate::{eventually, http};

/// Base ports: below the range from which the kernel takes ports for outgoing connections, so that
/// a node that starts again finds its own free.
const BASE_PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Between two base ports: HTTP is base + id, RPC base + 100 + id.
const STEP: u16 = 200;
/// For nodes to be ready again after a fault has healed: an election, and what they recover.
pub const READY_WITHIN: Duration = Duration::from_secs(60);

/// Ports that no other test takes.
#[derive(Debug)]
pub struct Ports {
    /// HTTP is base + id, RPC is base + 100 + id.
    pub base: u16,
    /// Nobody listens on the base port itself: who holds it has the whole block, across processes.
    _held: TcpListener,
}

impl Ports {
    /// Draws a block.
    ///
    /// # Panics
    /// When none is free.
    #[must_use]
    pub fn draw() -> Self {
        let blocks = (BASE_PORTS.end - BASE_PORTS.start) / STEP;
        for _ in 0..10 * blocks {
            let base = BASE_PORTS.start + STEP * (rand::random::<u16>() % blocks);
            let free = |port: u16| TcpListener::bind(("127.0.0.1", port));
            let Ok(held) = free(base) else { continue };
            if (1..=5).all(|id| free(base + id).is_ok() && free(base + 100 + id).is_ok()) {
                return Self { base, _held: held };
            }
        }
        panic!("no free ports in {BASE_PORTS:?}");
    }

    /// The HTTP address of a node.
    #[must_use]
    pub fn http(&self, id: u16) -> String {
        format!("127.0.0.1:{}", self.base + id)
    }

    /// The RPC address of a node.
    #[must_use]
    pub fn rpc(&self, id: u16) -> String {
        format!("127.0.0.1:{}", self.base + 100 + id)
    }
}

/// One node, as `tenure dev` shows it.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its id.
    pub id: u64,
    /// host:port.
    pub http: String,
    /// host:port.
    pub rpc: String,
    /// Of the process that runs or ran last.
    pub pid: u32,
    /// Where its data lives.
    pub data_dir: PathBuf,
    /// Starts it again.
    pub command: Vec<String>,
}

/// Nodes that run. Dropping it kills them, and shows the ends of their logs if a test failed.
#[derive(Debug)]
pub struct Cluster {
    dev: Process,
    nodes: Vec<Node>,
    /// Nodes that were started again by their printed command.
    restarted: BTreeMap<u64, Process>,
    down: BTreeSet<u64>,
    paused: BTreeSet<u64>,
    /// `TENURE_*` variables of all nodes.
    settings: Vec<(String, String)>,
    /// The line that `tenure dev` printed.
    pub ready: Value,
    /// Their ports.
    pub ports: Ports,
    directory: TempDir,
}

/// The line that `tenure dev -o json` prints once there is a leader.
///
/// # Panics
/// When it ends without one.
#[must_use]
pub fn ready_line(dev: &mut Process) -> Value {
    let mut line = String::new();
    BufReader::new(dev.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|_| panic!("tenure dev says {line:?}"))
}

/// The nodes that such a line shows.
#[must_use]
pub fn nodes_of(ready: &Value) -> Vec<Node> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let nodes = ready["nodes"].as_array().unwrap().iter().map(|node| Node {
        id: node["id"].as_u64().unwrap(),
        http: text(&node["http"]),
        rpc: text(&node["rpc"]),
        pid: u32::try_from(node["pid"].as_u64().unwrap()).unwrap(),
        data_dir: text(&node["data_dir"]).into(),
        command: node["command"].as_array().unwrap().iter().map(text).collect(),
    });
    nodes.collect()
}

/// `tenure dev` with its output in pipes.
#[must_use]
pub fn dev(arguments: &[&str]) -> Command {
    let mut command = tenure(&["dev", "-o", "json"]);
    command.args(arguments).stdout(Stdio::piped());
    command
}

impl Cluster {
    /// Starts three nodes and waits until they are ready.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn start() -> Self {
        Self::of(3)
    }

    /// Starts so many nodes.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn of(nodes: u64) -> Self {
        Self::with(nodes, &[])
    }

    /// Starts so many nodes with settings of their own, as `TENURE_*` variables.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn with(nodes: u64, settings: &[(&str, &str)]) -> Self {
        let settings: Vec<(String, String)> =
            settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let directory = tempfile::Builder::new().prefix("tenure-jepsen-").tempdir().unwrap();
        let ports = Ports::draw();
        let data_dir = directory.path().join("cluster");
        let (nodes, base) = (nodes.to_string(), ports.base.to_string());
        let data = data_dir.to_str().unwrap();
        let arguments = ["--nodes", &nodes, "--base-port", &base, "--data-dir", data];
        let quiet = std::fs::File::create(directory.path().join("dev.log")).unwrap();
        let mut dev = Process::start(dev(&arguments).envs(settings.clone()).stderr(quiet));
        let ready = ready_line(&mut dev);
        let nodes = nodes_of(&ready);
        Self {
            dev,
            nodes,
            restarted: BTreeMap::new(),
            down: BTreeSet::new(),
            paused: BTreeSet::new(),
            settings,
            ready,
            ports,
            directory,
        }
    }

    /// All nodes, in the order of their ids.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this id.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn node(&self, id: u64) -> &Node {
        self.nodes.iter().find(|node| node.id == id).unwrap()
    }

    /// What `tenure dev` itself has said.
    #[must_use]
    pub fn dev_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("dev.log")).unwrap_or_default()
    }

    /// What a node has logged so far, all its lives together.
    #[must_use]
    pub fn log(&self, id: u64) -> String {
        std::fs::read_to_string(self.log_path(id)).unwrap_or_default()
    }

    fn log_path(&self, id: u64) -> PathBuf {
        self.directory.path().join("cluster").join(format!("node-{id}.log"))
    }

    fn is_up(&self, id: u64) -> bool {
        !self.down.contains(&id) && !self.paused.contains(&id)
    }

    /// The node that leads: it says so, in the highest term that any node knows.
    ///
    /// # Panics
    /// When there is none in time.
    #[must_use]
    pub fn leader(&self) -> u64 {
        eventually("a node leads", READY_WITHIN, || {
            let up = self.nodes.iter().filter(|node| self.is_up(node.id));
            let seen: Vec<Value> =
                up.filter_map(|node| http::get(&node.http, "/v1/cluster").ok()?.json()).collect();
            let last = seen.iter().max_by_key(|status| status["term"].as_u64())?;
            let leads =
                |status: &&Value| status["role"] == "leader" && status["term"] == last["term"];
            seen.iter().find(leads)?["id"].as_u64()
        })
    }

    /// A node that runs and does not lead.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn follower(&self) -> u64 {
        let leader = self.leader();
        self.nodes.iter().map(|node| node.id).find(|id| *id != leader && self.is_up(*id)).unwrap()
    }

    /// A node that is neither down nor paused.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn one_up(&self) -> u64 {
        self.nodes.iter().map(|node| node.id).find(|id| self.is_up(*id)).unwrap()
    }

    /// Waits until every node that is not down or paused is ready.
    ///
    /// # Panics
    /// When one is not in time.
    pub fn wait_ready(&self) {
        eventually("all nodes are ready", READY_WITHIN, || {
            let mut up = self.nodes.iter().filter(|node| self.is_up(node.id));
            let is_ready = |node: &Node| {
                http::get(&node.http, "/readyz").is_ok_and(|answer| answer.status == 200)
            };
            up.all(is_ready).then_some(())
        });
    }

    /// Sends a signal to a node, which is known to be ours.
    fn signal(&self, id: u64, signal: Signal) {
        let pid = self.node(id).pid;
        match self.restarted.get(&id) {
            Some(process) => process.signal(signal),
            None => {
                assert_eq!(process::parent(pid), Some(self.dev.0.id()), "node {id} has ended");
                process::send(pid, signal);
            }
        }
    }

    /// SIGKILL. Returns when the process is gone.
    ///
    /// # Panics
    /// When the node has ended before.
    pub fn kill(&mut self, id: u64) {
        assert!(self.down.insert(id), "node {id} is down already");
        self.signal(id, Signal::KILL);
        self.paused.remove(&id);
        if self.restarted.remove(&id).is_none() {
            let pid = self.node(id).pid;
            let dev = self.dev.0.id();
            eventually("the node is gone", READY_WITHIN, || {
                (process::parent(pid) != Some(dev)).then_some(())
            });
        }
    }

    /// Starts a node again by the command that was printed for it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn restart(&mut self, id: u64) {
        assert!(self.down.remove(&id), "node {id} is not down");
        let log = OpenOptions::new().append(true).open(self.log_path(id)).unwrap();
        let (program, arguments) = self.node(id).command.split_first().unwrap();
        let mut command = Command::new(program);
        // It ends with this process, whatever happens to that.
        command.args(arguments).arg("--exit-with-parent").envs(self.settings.clone());
        command.stdin(Stdio::piped());
        let process = Process::start(command.stdout(log.try_clone().unwrap()).stderr(log));
        let pid = process.0.id();
        self.restarted.insert(id, process);
        let node = self.nodes.iter_mut().find(|node| node.id == id).unwrap();
        node.pid = pid;
    }

    /// Hands out a node that was restarted, to be watched while it ends; it counts as down.
    ///
    /// # Panics
    /// When the node was not restarted.
    #[must_use]
    pub fn take(&mut self, id: u64) -> Process {
        self.down.insert(id);
        self.restarted.remove(&id).unwrap()
    }

    /// SIGSTOP. Returns when the node does nothing any more.
    ///
    /// # Panics
    /// When the node has ended.
    pub fn pause(&mut self, id: u64) {
        self.signal(id, Signal::STOP);
        let pid = self.node(id).pid;
        eventually("the node stands still", Duration::from_secs(10), || {
            process::is_stopped(pid).then_some(())
        });
        self.paused.insert(id);
    }

    /// SIGCONT.
    ///
    /// # Panics
    /// When the node has ended.
    pub fn resume(&mut self, id: u64) {
        self.signal(id, Signal::CONT);
        self.paused.remove(&id);
    }

    /// Asserts that no node has ended by itself, and that no log speaks of a defect.
    ///
    /// # Panics
    /// When that is not so.
    pub fn assert_sound(&mut self) {
        for node in &self.nodes {
            let runs = match self.restarted.get_mut(&node.id) {
                Some(process) => process.0.try_wait().unwrap().is_none(),
                None => process::parent(node.pid) == Some(self.dev.0.id()),
            };
            assert!(runs || self.down.contains(&node.id), "node {} has ended", node.id);
            let log = self.log(node.id);
            for word in ["panicked", "has a defect", " ERROR ", "overflow"] {
                assert!(!log.contains(word), "node {} logs {word:?}:\n{}", node.id, tail(&log));
            }
        }
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                eprintln!("-- node {}:\n{}", node.id, tail(&self.log(node.id)));
            }
        }
        let dev = self.dev.0.id();
        for node in &self.nodes {
            if process::parent(node.pid) == Some(dev) {
                process::send(node.pid, Signal::KILL);
            }
        }
    }
}
