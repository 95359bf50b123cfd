//! A cluster on this machine: one child process a node, all in one directory.
//!
//! A child gets a pipe as its standard input and ends when that closes, so no node outlives this
//! process, however it ends. It is its own process group, so that a Ctrl-C reaches this process
//! alone, which then stops the nodes in order.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hyper::Method;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tenure_api::{ClusterStatus, NodeRole};
use tokio::time::{Instant, sleep};

use crate::cli::http;

/// Most nodes: their RPC ports start a hundred above their HTTP ports.
const NODES_MAX: u64 = 99;
/// How far RPC ports are above HTTP ports.
const RPC_ABOVE: u16 = 100;
/// How long nodes get to elect a leader and to recover what a kept directory holds.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long nodes get to drain before they are killed: their own limit is 10 s.
const STOP_WITHIN: Duration = Duration::from_secs(12);
/// How often children and nodes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a node gets to answer such a look.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// The file that says what a directory holds.
const DESCRIPTION: &str = "cluster.json";

/// What a directory holds; kept in it, so that it starts again as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    cluster_id: String,
    nodes: u64,
    base_port: u16,
}

/// One node, as it is shown.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LocalNode {
    pub(crate) id: u64,
    /// host:port.
    pub(crate) http: String,
    /// host:port.
    pub(crate) rpc: String,
    /// Of its first process.
    pub(crate) pid: u32,
    data_dir: PathBuf,
    /// Starts it again after it died.
    command: Vec<String>,
    #[serde(skip)]
    log: PathBuf,
    /// Another node may have its port.
    #[serde(skip)]
    cluster_id: String,
}

impl LocalNode {
    /// Its command as one types it.
    pub(crate) fn shell_command(&self) -> String {
        self.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Where its output goes.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Nodes that run. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct LocalCluster {
    directory: PathBuf,
    description: Description,
    nodes: Vec<LocalNode>,
    children: BTreeMap<u64, Child>,
    /// Removed at the end, after the last child has ended.
    _temporary: Option<TempDir>,
}

/// Where a cluster lives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// How many nodes; none for what the directory says, or 3.
    pub(crate) nodes: Option<u64>,
    /// Kept at the end; none for a temporary one.
    pub(crate) data_dir: Option<PathBuf>,
    /// HTTP ports start above it; none for what the directory says, or `default_port`.
    pub(crate) base_port: Option<u16>,
    /// The base port where nothing else says one.
    pub(crate) default_port: u16,
}

impl LocalCluster {
    /// Starts all nodes. They have no leader yet: see [`LocalCluster::ready`].
    pub(crate) fn start(place: &Place) -> anyhow::Result<Self> {
        let (directory, temporary) = match &place.data_dir {
            Some(directory) => (directory.clone(), None),
            None => {
                let made = tempfile::Builder::new().prefix("tenure-").tempdir();
                let made = made.context("cannot make a temporary directory")?;
                (made.path().to_owned(), Some(made))
            }
        };
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = fs::canonicalize(&directory)
            .with_context(|| format!("cannot find {}", directory.display()))?;
        let description = describe(place, &directory)?;
        let nodes = plan(&description, &directory)?;
        let children = BTreeMap::new();
        let mut cluster = Self { directory, description, nodes, children, _temporary: temporary };
        for id in cluster.ids() {
            cluster.spawn(id)?;
        }
        Ok(cluster)
    }

    /// Where all of it is.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// All nodes, in the order of their ids.
    pub(crate) fn nodes(&self) -> &[LocalNode] {
        &self.nodes
    }

    /// The node with this id.
    pub(crate) fn node(&self, id: u64) -> anyhow::Result<&LocalNode> {
        self.nodes.iter().find(|node| node.id == id).context("there is no such node")
    }

    fn ids(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// Starts a node that does not run.
    pub(crate) fn spawn(&mut self, id: u64) -> anyhow::Result<()> {
        let node = self.nodes.iter_mut().find(|node| node.id == id);
        let node = node.context("there is no such node")?;
        let log = OpenOptions::new().create(true).append(true).open(&node.log);
        let log = log.with_context(|| format!("cannot open {}", node.log.display()))?;
        let (program, arguments) = node.command.split_first().context("the command is empty")?;
        let child = Command::new(program)
            .args(arguments)
            .arg("--exit-with-parent")
            .env_remove("TENURE_JOIN")
            .stdin(Stdio::piped())
            .stdout(log.try_clone().context("cannot share the log file")?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        node.pid = child.id();
        self.children.insert(id, child);
        Ok(())
    }

    /// Children that have ended since the last look.
    pub(crate) fn ended(&mut self) -> Vec<(u64, ExitStatus)> {
        let mut ended = Vec::new();
        self.children.retain(|id, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.push((*id, status));
                false
            }
            // The kernel knows no such child of ours.
            Err(_) => {
                ended.push((*id, ExitStatus::default()));
                false
            }
        });
        ended
    }

    /// Kills a node as a crash would: it gets no chance to say goodbye.
    pub(crate) fn kill(&mut self, id: u64) -> anyhow::Result<()> {
        let mut child = self.children.remove(&id).context("the node does not run")?;
        child.kill().and_then(|()| child.wait()).context("cannot kill the node")?;
        Ok(())
    }

    /// Starts one more node, an empty one, which joins this one's cluster as a learner. Gives its
    /// id. It is none of [`Description::nodes`]: see [`LocalCluster::leave`].
    pub(crate) fn join(&mut self, member: u64) -> anyhow::Result<u64> {
        // No id is taken twice, not even by a later run.
        let id = rand::random_range(1 << 16..1 << 48);
        let place = self.description.nodes + 1;
        let mut node = place_of(&self.description, &self.directory, id, place)?;
        let join = ("--join".to_owned(), format!("http://{}", self.node(member)?.http));
        node.command = command(&node, worker_threads(self.nodes.len()), [join])?;
        self.nodes.push(node);
        self.spawn(id)?;
        Ok(id)
    }

    /// Waits until a node has applied all that was in this one's log when it was asked.
    pub(crate) async fn caught_up(&self, id: u64, with: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let goal = status(self.node(with)?).await.context("the leader does not answer")?.last_index;
        while status(self.node(id)?).await.is_none_or(|status| status.applied_index < goal) {
            ensure!(Instant::now() < deadline, "node {id} is not up to date in {READY_WITHIN:?}");
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Removes all nodes that have joined from the cluster, with all that they stored.
    pub(crate) async fn leave(&mut self, member: u64) -> anyhow::Result<()> {
        let founders = self.description.nodes;
        let founders = usize::try_from(founders).unwrap_or(usize::MAX).min(self.nodes.len());
        for node in self.nodes.split_off(founders) {
            let path = format!("/v1/cluster/members/{}", node.id);
            let asked = &self.node(member)?.http;
            let answer = http::request(asked, Method::DELETE, &path, None, READY_WITHIN).await?;
            let body = String::from_utf8_lossy(&answer.body);
            ensure!(answer.status == 200, "node {} was not removed: {body}", node.id);
            self.kill(node.id)?;
            fs::remove_dir_all(&node.data_dir).context("cannot remove what a node stored")?;
        }
        Ok(())
    }

    /// Waits until a node leads and every node that runs is ready. Gives the leader's id, and
    /// calls `on_end` for each node that ends meanwhile.
    pub(crate) async fn ready(
        &mut self,
        mut on_end: impl FnMut(&LocalNode, ExitStatus),
    ) -> anyhow::Result<u64> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            for (id, status) in self.ended() {
                on_end(self.node(id)?, status);
            }
            let running: Vec<_> =
                self.nodes.iter().filter(|node| self.children.contains_key(&node.id)).collect();
            ensure!(
                running.len() * 2 > self.nodes.len(),
                "only {} of {} nodes run: that is no majority",
                running.len(),
                self.nodes.len()
            );
            let mut leader = None;
            let mut all_ready = true;
            for node in running {
                all_ready &= is_ready(node).await;
                leader = leader.or(leads(node).await.then_some(node.id));
            }
            match leader {
                Some(leader) if all_ready => return Ok(leader),
                _ if Instant::now() >= deadline => bail!("no leader within {READY_WITHIN:?}"),
                _ => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Stops all nodes: asks them to drain, waits, and kills those that do not end. A temporary
    /// directory is removed. Ends at once when `hurry` does.
    pub(crate) async fn stop(mut self, hurry: impl Future<Output = ()>) {
        for child in self.children.values() {
            terminate(child);
        }
        let drained = async {
            let deadline = Instant::now() + STOP_WITHIN;
            while Instant::now() < deadline {
                self.ended();
                if self.children.is_empty() {
                    break;
                }
                sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = drained => {}
            () = hurry => {}
        }
        drop(self);
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
        }
        for child in self.children.values_mut() {
            let _ = child.wait();
        }
    }
}

/// What the directory holds, written down before the first node starts.
fn describe(place: &Place, directory: &Path) -> anyhow::Result<Description> {
    let path = directory.join(DESCRIPTION);
    let kept: Description = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not what it should be", path.display()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return found(place, directory),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let fits = place.nodes.is_none_or(|nodes| nodes == kept.nodes)
        && place.base_port.is_none_or(|port| port == kept.base_port);
    ensure!(
        fits,
        "{} holds {} nodes on base port {}: leave those flags out, or take another directory",
        directory.display(),
        kept.nodes,
        kept.base_port
    );
    Ok(kept)
}

/// A cluster for an empty directory.
fn found(place: &Place, directory: &Path) -> anyhow::Result<Description> {
    let mut entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    ensure!(
        entries.next().is_none(),
        "{} is not empty, and holds no {DESCRIPTION}: take another directory",
        directory.display()
    );
    let description = Description {
        cluster_id: format!("{:032x}", rand::random::<u128>()),
        nodes: place.nodes.unwrap_or(3),
        base_port: place.base_port.unwrap_or(place.default_port),
    };
    plan(&description, directory)?;
    let json = serde_json::to_vec_pretty(&description).context("cannot describe the cluster")?;
    let path = directory.join(DESCRIPTION);
    fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(description)
}

/// The nodes that a description means.
fn plan(description: &Description, directory: &Path) -> anyhow::Result<Vec<LocalNode>> {
    let nodes = description.nodes;
    ensure!((1..=NODES_MAX).contains(&nodes), "there can be 1 to {NODES_MAX} nodes, not {nodes}");
    let planned = (1..=nodes).map(|id| place_of(description, directory, id, id));
    let mut planned = planned.collect::<anyhow::Result<Vec<_>>>()?;
    let bootstrap: Vec<_> = planned
        .iter()
        .map(|node| format!("{}={},{}", node.id, node.http, node.rpc))
        .map(|first| ("--bootstrap".to_owned(), first))
        .collect();
    let threads = worker_threads(planned.len());
    for node in &mut planned {
        node.command = command(node, threads, bootstrap.iter().cloned())?;
    }
    Ok(planned)
}

/// Where the node in this place lives, beside the others.
fn place_of(
    description: &Description,
    directory: &Path,
    id: u64,
    place: u64,
) -> anyhow::Result<LocalNode> {
    let Description { cluster_id, base_port, .. } = description;
    let port = u16::try_from(place).ok().and_then(|place| base_port.checked_add(place));
    let ports = port.and_then(|http| Some((http, http.checked_add(RPC_ABOVE)?)));
    let (http, rpc) = ports.context("the base port is too high")?;
    Ok(LocalNode {
        id,
        http: format!("127.0.0.1:{http}"),
        rpc: format!("127.0.0.1:{rpc}"),
        pid: 0,
        data_dir: directory.join(format!("node-{id}")),
        command: Vec::new(),
        log: directory.join(format!("node-{id}.log")),
        cluster_id: cluster_id.clone(),
    })
}

/// What starts a node; `entrance` is how it comes into its cluster.
fn command(
    node: &LocalNode,
    threads: usize,
    entrance: impl IntoIterator<Item = (String, String)>,
) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = vec![utf8(&program)?, "server".to_owned()];
    let flags = [
        ("--id", node.id.to_string()),
        ("--http", node.http.clone()),
        ("--rpc", node.rpc.clone()),
        ("--data-dir", utf8(&node.data_dir)?),
        ("--cluster-id", node.cluster_id.clone()),
        ("--worker-threads", threads.to_string()),
    ];
    let flags = flags.into_iter().map(|(flag, value)| (flag.to_owned(), value));
    for (flag, value) in flags.chain(entrance) {
        command.extend([flag, value]);
    }
    Ok(command)
}

/// What each of so many nodes that share this machine's processors takes of them.
fn worker_threads(nodes: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.div_ceil(nodes.max(1))
}

fn utf8(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// Asks a child to end. It has not been reaped, so its id is still its own.
fn terminate(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// What a node says of its cluster, if it answers.
pub(crate) async fn status(node: &LocalNode) -> Option<ClusterStatus> {
    let answer = http::request(&node.http, Method::GET, "/v1/cluster", None, LOOK_WITHIN).await;
    let status: ClusterStatus = serde_json::from_slice(&answer.ok()?.body).ok()?;
    (status.cluster_id == node.cluster_id && status.id == node.id).then_some(status)
}

async fn leads(node: &LocalNode) -> bool {
    status(node).await.is_some_and(|status| status.role == NodeRole::Leader)
}

/// Whether the node itself is ready, and not another one that has its port.
async fn is_ready(node: &LocalNode) -> bool {
    if status(node).await.is_none() {
        return false;
    }
    let answer = http::request(&node.http, Method::GET, "/readyz", None, LOOK_WITHIN).await;
    answer.is_ok_and(|answer| answer.status == 200)
}

/// How a process ended, for people.
pub(crate) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: &Path, nodes: Option<u64>, base_port: Option<u16>) -> Place {
        let data_dir = Some(directory.to_owned());
        Place { nodes, data_dir, base_port, default_port: 7600 }
    }

    #[test]
    fn a_directory_starts_again_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let first = describe(&place(directory.path(), Some(5), None), directory.path()).unwrap();
        assert_eq!((first.nodes, first.base_port), (5, 7600));
        let again = describe(&place(directory.path(), None, None), directory.path()).unwrap();
        assert_eq!(again, first);
        assert!(describe(&place(directory.path(), Some(3), None), directory.path()).is_err());
        assert!(describe(&place(directory.path(), None, Some(7700)), directory.path()).is_err());
    }

    #[test]
    fn a_directory_with_something_else_in_it_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.tex"), "").unwrap();
        assert!(describe(&place(directory.path(), None, None), directory.path()).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_numbers_of_nodes_and_ports_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        for (nodes, port) in [(0, 7600), (100, 7600), (3, 65_500), (3, 65_533)] {
            let place = place(directory.path(), Some(nodes), Some(port));
            assert!(describe(&place, directory.path()).is_err(), "{nodes} on {port}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_node_is_started_with_everything_it_needs() {
        let directory = tempfile::tempdir().unwrap();
        let description = Description { cluster_id: "c".to_owned(), nodes: 2, base_port: 7600 };
        let nodes = plan(&description, directory.path()).unwrap();
        let words = nodes[1].command[1..].join(" ");
        let (data_dir, threads) = (directory.path().join("node-2"), worker_threads(2));
        assert_eq!(
            words,
            format!(
                "server --id 2 --http 127.0.0.1:7602 --rpc 127.0.0.1:7702 --data-dir {} \
                 --cluster-id c --worker-threads {threads} --bootstrap 1=127.0.0.1:7601,127.0.0.1:7701 \
                 --bootstrap 2=127.0.0.1:7602,127.0.0.1:7702",
                data_dir.display()
            )
        );
    }

    #[test]
    fn who_joins_lives_beside_all_others_and_is_told_whom_to_ask() {
        let directory = tempfile::tempdir().unwrap();
        let description = Description { cluster_id: "c".to_owned(), nodes: 3, base_port: 7600 };
        let node = place_of(&description, directory.path(), 77, 4).unwrap();
        let places = (node.http.as_str(), node.rpc.as_str(), node.data_dir.as_path());
        assert_eq!(
            places,
            ("127.0.0.1:7604", "127.0.0.1:7704", &*directory.path().join("node-77"))
        );
        let join = ("--join".to_owned(), "http://127.0.0.1:7601".to_owned());
        let words = command(&node, 1, [join]).unwrap()[1..].join(" ");
        assert!(words.starts_with("server --id 77 ") && !words.contains("--bootstrap"), "{words}");
        assert!(words.ends_with(" --cluster-id c --worker-threads 1 --join http://127.0.0.1:7601"));
    }

    #[test]
    fn nodes_share_the_processors_and_each_has_one_at_least() {
        let alone = worker_threads(1);
        assert!(worker_threads(2) * 2 >= alone && worker_threads(2) <= alone);
        assert_eq!(worker_threads(10_000), 1);
    }

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("--bootstrap"), "--bootstrap");
        assert_eq!(quoted("1=127.0.0.1:7601,127.0.0.1:7701"), "1=127.0.0.1:7601,127.0.0.1:7701");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
