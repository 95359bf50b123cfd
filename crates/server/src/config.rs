//! What a node is told: flags, then `TENURE_*` variables, then a TOML file whose keys are the
//! flags' names, then defaults.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use tenure_api::Node;

/// Flags of `tenure server`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, the first of three nodes:
  tenure server --id 1 --http 127.0.0.1:7601 --rpc 127.0.0.1:7701 --data-dir ./1 \\
    --bootstrap 1=127.0.0.1:7601,127.0.0.1:7701 \\
    --bootstrap 2=127.0.0.1:7602,127.0.0.1:7702 \\
    --bootstrap 3=127.0.0.1:7603,127.0.0.1:7703")]
pub(crate) struct Args {
    /// A TOML file with any of these settings; flags and variables go before it
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// End when standard input closes: for whoever starts a node as a child
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

/// What flags, variables and the file can set; none where they do not.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// The node's id: a whole number from 1, never used before in the cluster
    #[arg(long, env = "TENURE_ID")]
    id: Option<u64>,
    /// Where it serves HTTP, and where others find it
    #[arg(long, env = "TENURE_HTTP", value_name = "HOST:PORT")]
    http: Option<String>,
    /// Where it serves peers and native clients, and where they find it
    #[arg(long, env = "TENURE_RPC", value_name = "HOST:PORT")]
    rpc: Option<String>,
    /// Where its log and its state live
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    #[serde(alias = "data-dir")]
    data_dir: Option<PathBuf>,
    /// A first node, once for each, the same on all of them; ignored once there is a log
    #[arg(
        long,
        env = "TENURE_BOOTSTRAP",
        value_name = "ID=HTTP,RPC",
        value_delimiter = ' ',
        conflicts_with = "join"
    )]
    bootstrap: Vec<String>,
    /// Join the cluster of this member as a learner; ignored once there is a log
    #[arg(long, env = "TENURE_JOIN", value_name = "URL")]
    join: Option<String>,
    /// The cluster's id [default: a hash of the bootstrap list]
    #[arg(long, env = "TENURE_CLUSTER_ID", value_name = "ID")]
    #[serde(alias = "cluster-id")]
    cluster_id: Option<String>,
    /// How often the leader is heard when nothing happens [default: 100]
    #[arg(long, env = "TENURE_HEARTBEAT_MS", value_name = "MS")]
    #[serde(alias = "heartbeat-ms")]
    heartbeat_ms: Option<u64>,
    /// Shortest silence after which a follower stands for election [default: 500]
    #[arg(long, env = "TENURE_ELECTION_MIN_MS", value_name = "MS")]
    #[serde(alias = "election-min-ms")]
    election_min_ms: Option<u64>,
    /// Longest silence after which a follower stands for election [default: 1000]
    #[arg(long, env = "TENURE_ELECTION_MAX_MS", value_name = "MS")]
    #[serde(alias = "election-max-ms")]
    election_max_ms: Option<u64>,
    /// Log entries after which a snapshot is taken [default: 50000]
    #[arg(long, env = "TENURE_SNAPSHOT_ENTRIES", value_name = "N")]
    #[serde(alias = "snapshot-entries")]
    snapshot_entries: Option<u64>,
    /// How often the leader purges; 0 is never [default: 1000]
    #[arg(long, env = "TENURE_PURGE_INTERVAL_MS", value_name = "MS")]
    #[serde(alias = "purge-interval-ms")]
    purge_interval_ms: Option<u64>,
    /// How long a request may take, a wait on top [default: 3000]
    #[arg(long, env = "TENURE_REQUEST_TIMEOUT_MS", value_name = "MS")]
    #[serde(alias = "request-timeout-ms")]
    request_timeout_ms: Option<u64>,
    /// Most requests that wait for a record [default: 100000]
    #[arg(long, env = "TENURE_MAX_WAITERS", value_name = "N")]
    #[serde(alias = "max-waiters")]
    max_waiters: Option<usize>,
    /// Threads that serve requests; 0 is one a processor [default: 0]
    #[arg(long, env = "TENURE_WORKER_THREADS", value_name = "N")]
    #[serde(alias = "worker-threads")]
    worker_threads: Option<usize>,
    /// Host names under which the HTTP API may be reached, beside IP addresses, localhost and the
    /// node's own
    #[arg(long, env = "TENURE_HOSTS", value_name = "NAME,..", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Free disk below which acquires and completes are refused [default: 256]
    #[arg(long, env = "TENURE_MIN_FREE_DISK_MB", value_name = "MB")]
    #[serde(alias = "min-free-disk-mb")]
    min_free_disk_mb: Option<u64>,
    /// Listen beyond loopback, though nothing is encrypted or authenticated
    #[arg(long, env = "TENURE_INSECURE")]
    insecure: bool,
    /// What to log: a level, or a filter like tenure_network=debug,info [default: info]
    #[arg(long, env = "TENURE_LOG_LEVEL", value_name = "LEVEL")]
    #[serde(alias = "log-level")]
    log_level: Option<String>,
    /// How to log [default: text]
    #[arg(long, env = "TENURE_LOG_FORMAT", value_enum, hide_default_value = true)]
    #[serde(alias = "log-format")]
    log_format: Option<LogFormat>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

/// How a node without a log comes into a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// It is one of these first nodes.
    Bootstrap(Vec<Node>),
    /// It asks this member, host:port of its HTTP address, to be added.
    Join(String),
    /// It needs a log.
    None,
}

/// All settings of a node, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Id and addresses.
    pub(crate) node: Node,
    /// Where its log and its state live.
    pub(crate) data_dir: PathBuf,
    /// How it comes into a cluster if it has no log.
    pub(crate) entrance: Entrance,
    /// The cluster's id, if one is given.
    pub(crate) cluster_id: Option<String>,
    /// How often the leader is heard.
    pub(crate) heartbeat: Duration,
    /// Shortest election timeout; longer than a heartbeat.
    pub(crate) election_min: Duration,
    /// Longest election timeout; longer than the shortest.
    pub(crate) election_max: Duration,
    /// Log entries after which a snapshot is taken, at least 1.
    pub(crate) snapshot_entries: u64,
    /// How often the leader purges; zero for never.
    pub(crate) purge_interval: Duration,
    /// How long a request may take, a wait on top.
    pub(crate) request_timeout: Duration,
    /// Most requests that wait for a record.
    pub(crate) max_waiters: usize,
    /// Threads that serve requests, at most 1024; 0 for one a processor.
    pub(crate) worker_threads: usize,
    /// Host names of the HTTP API, beside IP addresses and localhost: the node's own is in it.
    pub(crate) hosts: Vec<String>,
    /// Free disk, in bytes, below which acquires and completes are refused.
    pub(crate) min_free_disk_bytes: u64,
    /// Whether it may listen beyond loopback.
    pub(crate) insecure: bool,
    /// A filter of tracing-subscriber.
    pub(crate) log_level: String,
    /// How log lines look.
    pub(crate) log_format: LogFormat,
    /// End when standard input closes.
    pub(crate) exit_with_parent: bool,
}

impl Args {
    /// Reads the file, if one is named, lays flags and variables over it, and checks the whole.
    pub(crate) fn resolve(self) -> anyhow::Result<Config> {
        let file = self.config.as_deref().map(read).transpose()?.unwrap_or_default();
        self.settings.over(file).check(self.exit_with_parent)
    }
}

fn read(path: &Path) -> anyhow::Result<Settings> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a configuration", path.display()))
}

impl Settings {
    /// These, and `below` where these say nothing. The two ways into a cluster are one setting.
    fn over(self, below: Self) -> Self {
        let enters = !self.bootstrap.is_empty() || self.join.is_some();
        let (bootstrap, join) =
            if enters { (self.bootstrap, self.join) } else { (below.bootstrap, below.join) };
        Self {
            id: self.id.or(below.id),
            http: self.http.or(below.http),
            rpc: self.rpc.or(below.rpc),
            data_dir: self.data_dir.or(below.data_dir),
            bootstrap,
            join,
            cluster_id: self.cluster_id.or(below.cluster_id),
            heartbeat_ms: self.heartbeat_ms.or(below.heartbeat_ms),
            election_min_ms: self.election_min_ms.or(below.election_min_ms),
            election_max_ms: self.election_max_ms.or(below.election_max_ms),
            snapshot_entries: self.snapshot_entries.or(below.snapshot_entries),
            purge_interval_ms: self.purge_interval_ms.or(below.purge_interval_ms),
            request_timeout_ms: self.request_timeout_ms.or(below.request_timeout_ms),
            max_waiters: self.max_waiters.or(below.max_waiters),
            worker_threads: self.worker_threads.or(below.worker_threads),
            hosts: if self.hosts.is_empty() { below.hosts } else { self.hosts },
            min_free_disk_mb: self.min_free_disk_mb.or(below.min_free_disk_mb),
            insecure: self.insecure || below.insecure,
            log_level: self.log_level.or(below.log_level),
            log_format: self.log_format.or(below.log_format),
        }
    }

    fn check(self, exit_with_parent: bool) -> anyhow::Result<Config> {
        let id = self.id.context("--id is needed")?;
        ensure!(id > 0, "--id must be 1 or more");
        let http = address("--http", &self.http.context("--http is needed")?)?;
        let rpc = address("--rpc", &self.rpc.context("--rpc is needed")?)?;
        let mut hosts = self.hosts;
        hosts.extend(http.rsplit_once(':').map(|(host, _)| host.to_owned()));
        let node = Node { id, http, rpc };
        let data_dir = self.data_dir.context("--data-dir is needed")?;
        let entrance = match (self.bootstrap.is_empty(), self.join) {
            (false, Some(_)) => bail!("--bootstrap and --join exclude each other"),
            (false, None) => Entrance::Bootstrap(first_nodes(&self.bootstrap, &node)?),
            (true, Some(url)) => {
                let member = url.trim_end_matches('/');
                let member = member.strip_prefix("http://").unwrap_or(member);
                Entrance::Join(address("--join", member)?)
            }
            (true, None) => Entrance::None,
        };
        let heartbeat_ms = self.heartbeat_ms.unwrap_or(100);
        let election_min_ms = self.election_min_ms.unwrap_or(500);
        let election_max_ms = self.election_max_ms.unwrap_or(1000);
        ensure!(heartbeat_ms > 0, "heartbeat_ms must be 1 or more");
        ensure!(heartbeat_ms < election_min_ms, "heartbeat_ms must be less than election_min_ms");
        ensure!(
            election_min_ms < election_max_ms,
            "election_min_ms must be less than election_max_ms"
        );
        let snapshot_entries = self.snapshot_entries.unwrap_or(50_000);
        ensure!(snapshot_entries > 0, "snapshot_entries must be 1 or more");
        let request_timeout_ms = self.request_timeout_ms.unwrap_or(3000);
        ensure!(request_timeout_ms > 0, "request_timeout_ms must be 1 or more");
        let worker_threads = self.worker_threads.unwrap_or(0);
        ensure!(worker_threads <= 1024, "worker_threads must be 1024 or less");
        let purge_interval_ms = self.purge_interval_ms.unwrap_or(1000);
        Ok(Config {
            node,
            data_dir,
            entrance,
            cluster_id: self.cluster_id,
            heartbeat: Duration::from_millis(heartbeat_ms),
            election_min: Duration::from_millis(election_min_ms),
            election_max: Duration::from_millis(election_max_ms),
            snapshot_entries,
            purge_interval: Duration::from_millis(purge_interval_ms),
            request_timeout: Duration::from_millis(request_timeout_ms),
            max_waiters: self.max_waiters.unwrap_or(100_000),
            worker_threads,
            hosts,
            min_free_disk_bytes: self.min_free_disk_mb.unwrap_or(256).saturating_mul(1024 * 1024),
            insecure: self.insecure,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
            log_format: self.log_format.unwrap_or_default(),
            exit_with_parent,
        })
    }
}

/// The bootstrap list, in the order of ids. It must have this node as it is.
fn first_nodes(texts: &[String], this: &Node) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    let mut ids = BTreeSet::new();
    for text in texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()) {
        let node = first_node(text).with_context(|| format!("--bootstrap {text}"))?;
        ensure!(ids.insert(node.id), "--bootstrap names node {} twice", node.id);
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.id);
    let listed = nodes.iter().find(|node| node.id == this.id);
    match listed {
        Some(listed) if listed == this => Ok(nodes),
        Some(_) => bail!("--bootstrap has node {} at other addresses", this.id),
        None => bail!("--bootstrap does not have node {} itself", this.id),
    }
}

fn first_node(text: &str) -> anyhow::Result<Node> {
    let parts = text.split_once('=').and_then(|(id, rest)| Some((id, rest.split_once(',')?)));
    let (id, (http, rpc)) = parts.context("must be ID=HTTP,RPC")?;
    let id: u64 = id.parse().context("the id must be a whole number")?;
    ensure!(id > 0, "the id must be 1 or more");
    Ok(Node { id, http: address("HTTP", http)?, rpc: address("RPC", rpc)? })
}

fn address(what: &str, text: &str) -> anyhow::Result<String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    let port: Option<u16> = port.and_then(|port| port.parse().ok());
    ensure!(port.is_some(), "{what} must be host:port, not {text:?}");
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64) -> Node {
        let (http, rpc) = (format!("127.0.0.1:760{id}"), format!("127.0.0.1:770{id}"));
        Node { id, http, rpc }
    }

    fn settings(toml: &str) -> Settings {
        toml::from_str(toml).unwrap()
    }

    const LEAST: &str = "id = 1\nhttp = '127.0.0.1:7601'\nrpc = '127.0.0.1:7701'\ndata_dir = 'd'\n";

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let file = settings(&format!("{LEAST}heartbeat_ms = 7\nelection-min-ms = 600\n"));
        let flags = Settings { heartbeat_ms: Some(50), ..Settings::default() };
        let config = flags.over(file).check(false).unwrap();
        assert_eq!(config.heartbeat, Duration::from_millis(50));
        assert_eq!(config.election_min, Duration::from_millis(600));
        assert_eq!(config.election_max, Duration::from_millis(1000));
        assert_eq!(config.purge_interval, Duration::from_millis(1000));
        assert_eq!(config.hosts, ["127.0.0.1"]);
        assert_eq!(config.min_free_disk_bytes, 256 * 1024 * 1024);
        assert_eq!(config.node, node(1));
        assert_eq!(config.entrance, Entrance::None);
    }

    #[test]
    fn an_entrance_by_flag_replaces_the_one_in_the_file() {
        let file = settings(&format!("{LEAST}join = 'http://127.0.0.1:7602/'\n"));
        let config = Settings::default().over(file).check(false).unwrap();
        assert_eq!(config.entrance, Entrance::Join("127.0.0.1:7602".to_owned()));

        let file = settings(&format!("{LEAST}join = 'http://127.0.0.1:7602'\n"));
        let bootstrap = vec!["1=127.0.0.1:7601,127.0.0.1:7701".to_owned()];
        let flags = Settings { bootstrap, ..Settings::default() };
        let config = flags.over(file).check(false).unwrap();
        assert_eq!(config.entrance, Entrance::Bootstrap(vec![node(1)]));
    }

    #[test]
    fn the_bootstrap_list_is_sorted_and_has_this_node() {
        let list = |ids: &[u64]| -> Vec<String> {
            let text = |node: Node| format!("{}={},{}", node.id, node.http, node.rpc);
            ids.iter().map(|id| text(node(*id))).collect()
        };
        let nodes = first_nodes(&list(&[3, 1, 2]), &node(1)).unwrap();
        assert_eq!(nodes, [node(1), node(2), node(3)]);
        for wrong in [list(&[2, 3]), list(&[1, 1]), vec!["1=a:1,b:2".to_owned()]] {
            assert!(first_nodes(&wrong, &node(1)).is_err(), "{wrong:?}");
        }
        for wrong in ["", "1", "1=a:1", "x=a:1,b:2", "0=a:1,b:2", "1=a,b:2", "1=a:1,b:99999"] {
            assert!(first_node(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            "heartbeat_ms = 0",
            "heartbeat_ms = 500",
            "election_min_ms = 1000",
            "snapshot_entries = 0",
            "request_timeout_ms = 0",
            "worker_threads = 2000",
            "bootstrap = ['1=127.0.0.1:7601,127.0.0.1:7701']\njoin = 'http://a:1'",
        ] {
            let settings = settings(&format!("{LEAST}{wrong}\n"));
            assert!(settings.check(false).is_err(), "{wrong}");
        }
        for wrong in ["hartbeat_ms = 5", "id = -1", "id = 'one'", "log_format = 'xml'"] {
            assert!(toml::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
        assert!(Settings::default().check(false).is_err());
    }
}
