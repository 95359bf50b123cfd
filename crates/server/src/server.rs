//! `tenure server`: one node, from its settings to its end.
//!
//! It ends with 0 after a signal, and with 1 and one line when it cannot start or cannot trust
//! itself any more: a failed disk, a stopped Raft, a panic anywhere.

use std::io::Read as _;
use std::net::ToSocketAddrs as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hyper::Method;
use tenure_api::{ClusterStatus, Node as Address};
use tenure_network::clock::RealClock;
use tenure_network::{Admission, Node, PeerTcp, Setup};
use tenure_state_machine::seeded;
use tenure_storage::{Disk, Member, Storage};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing_subscriber::EnvFilter;

use crate::cli::http;
use crate::config::{Args, Config, Entrance, LogFormat};

/// What Raft says is for those who ask for it, but for errors: not that of an operator's order that
/// comes too early, which the operator is told.
const OPENRAFT: &str = "openraft=error,openraft::raft::api::management=off";
/// For what still runs when a node has ended.
const END_WITHIN: Duration = Duration::from_secs(3);
/// For a member to answer one question of a node that joins.
const JOIN_ANSWER: Duration = Duration::from_secs(5);
/// Between two tries to be added.
const JOIN_RETRY: Duration = Duration::from_millis(500);

/// Runs a node until it is told to stop.
///
/// # Errors
/// Whatever keeps it from starting, or from going on.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.resolve()?;
    trace(&config)?;
    warn_of_seeded_bug()?;
    end_on_panic();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if config.worker_threads > 0 {
        runtime.worker_threads(config.worker_threads);
    }
    let runtime = runtime.enable_all().build().context("cannot start a runtime")?;
    let ended = runtime.block_on(serve(config));
    // Everything that counts is on disk. But whoever still uses RocksDB must be done before the end
    // of the process takes its statics away, or it aborts: it was seen after a failed sync.
    runtime.shutdown_timeout(END_WITHIN);
    ended.map(|()| ExitCode::SUCCESS)
}

fn trace(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{OPENRAFT},{}", config.log_level))
        .with_context(|| format!("log_level {:?} is no filter", config.log_level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => lines.with_ansi(false).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

/// A node that is wrong on purpose says so, first of all.
fn warn_of_seeded_bug() -> anyhow::Result<()> {
    if let Some(bug) = seeded::planted()? {
        tracing::warn!(bug, "THIS NODE HAS A SEEDED BUG: it is wrong on purpose, for tests alone");
    }
    Ok(())
}

/// A panic is a broken invariant: the node stops before it does anything else.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("this node has a defect and stops: {panic}");
        std::process::exit(1);
    }));
}

async fn serve(config: Config) -> anyhow::Result<()> {
    check_loopback(&config)?;
    let mut ends = ends(config.exit_with_parent)?;
    let started = tokio::select! {
        started = start(&config) => started?,
        _ = ends.recv() => return Ok(()),
    };
    let (node, joins) = started;
    let id = config.node.id;
    tracing::info!(id, http = config.node.http, rpc = config.node.rpc, "serving");
    let join = async {
        match joins {
            Some(member) => join(&config.node, &member).await,
            None => std::future::pending().await,
        }
    };
    if let Some(reason) = run_until_end(&node, join, &mut ends).await {
        bail!("node {id} stops: {reason}");
    }
    tracing::info!("stopping; a second signal ends it at once");
    tokio::select! {
        () = node.shutdown() => {}
        _ = ends.recv() => tracing::warn!("stopped without draining"),
    }
    Ok(())
}

/// Returns when the node is to stop, with a reason if it cannot go on.
async fn run_until_end(
    node: &Node,
    join: impl Future<Output = anyhow::Result<()>>,
    ends: &mut mpsc::Receiver<()>,
) -> Option<String> {
    let failed = node.failed();
    tokio::pin!(failed, join);
    let mut joined = false;
    loop {
        tokio::select! {
            reason = &mut failed => return Some(reason),
            done = &mut join, if !joined => match done {
                Ok(()) => joined = true,
                Err(error) => return Some(format!("{error:#}")),
            },
            _ = ends.recv() => return None,
        }
    }
}

/// Frames and bodies are neither encrypted nor authenticated.
fn check_loopback(config: &Config) -> anyhow::Result<()> {
    for (flag, address) in [("--http", &config.node.http), ("--rpc", &config.node.rpc)] {
        let mut resolved =
            address.to_socket_addrs().with_context(|| format!("{flag} {address}"))?;
        let loopback = resolved.all(|address| address.ip().is_loopback());
        ensure!(
            loopback || config.insecure,
            "{flag} {address} is not a loopback address: whoever reaches it can read and change \
             every record, for nothing is encrypted or authenticated yet; give --insecure if \
             only trusted hosts can"
        );
    }
    Ok(())
}

/// Everything that asks the node to stop, one message each.
fn ends(exit_with_parent: bool) -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, ends) = mpsc::channel(4);
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).context("cannot watch signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if sender.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    if exit_with_parent {
        std::thread::spawn(move || {
            let mut sink = [0; 256];
            let mut input = std::io::stdin();
            while matches!(input.read(&mut sink), Ok(read) if read > 0) {}
            // Nobody is there to be waited for.
            let _gone = sender.blocking_send(());
        });
    }
    Ok(ends)
}

/// A started node, and the member to ask if it is to be added to that one's cluster.
async fn start(config: &Config) -> anyhow::Result<(Node, Option<String>)> {
    let listen = |address: String| async move {
        TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address}"))
    };
    let rpc = listen(config.node.rpc.clone()).await?;
    let http = listen(config.node.http.clone()).await?;
    let (cluster_id, admission, joins) = entrance(config).await?;
    let disk = Disk::real();
    let storage = open(&disk, config, cluster_id).await?;
    let setup = Setup {
        storage,
        disk: (disk, config.data_dir.clone()),
        config: network(config),
        clock: Arc::new(RealClock::default()),
        net: Arc::new(PeerTcp),
        rpc: Box::new(rpc),
        http: Some(Box::new(http)),
        admission,
    };
    Ok((Node::start(setup).await?, joins))
}

async fn open(disk: &Disk, config: &Config, cluster_id: Option<String>) -> anyhow::Result<Storage> {
    let (disk, dir, id) = (disk.clone(), config.data_dir.clone(), config.node.id);
    let opened = tokio::task::spawn_blocking(move || {
        tenure_storage::open(&disk, &dir, id, cluster_id.as_deref())
    });
    Ok(opened.await.context("the data directory could not be opened")??)
}

/// Which cluster the node belongs to, whom it asks before it takes part in Raft, and by whom it
/// is to be added. All of it counts only for a node without a log.
async fn entrance(config: &Config) -> anyhow::Result<(Option<String>, Admission, Option<String>)> {
    match &config.entrance {
        Entrance::None => Ok((config.cluster_id.clone(), Admission::None, None)),
        Entrance::Bootstrap(nodes) => {
            let cluster_id = config.cluster_id.clone().unwrap_or_else(|| name(nodes));
            let first = nodes.iter().map(|node| (node.id, member(node))).collect();
            Ok((Some(cluster_id), Admission::Bootstrap(first), None))
        }
        Entrance::Join(address) => {
            let status = match status(address).await {
                Ok(status) => status,
                // A node that was added before does not need its sponsor any more.
                Err(error) if config.data_dir.join("log").exists() => {
                    tracing::warn!("{error:#}");
                    return Ok((config.cluster_id.clone(), Admission::None, None));
                }
                Err(error) => return Err(error),
            };
            if let Some(wanted) = &config.cluster_id {
                ensure!(
                    *wanted == status.cluster_id,
                    "{address} belongs to cluster {}, not {wanted}",
                    status.cluster_id
                );
            }
            let known = status.members.iter().find(|member| member.id == config.node.id);
            let elsewhere = known
                .filter(|member| member.http != config.node.http || member.rpc != config.node.rpc);
            if let Some(member) = elsewhere {
                bail!(
                    "node {} is a member of that cluster already, at {} and {}: choose an id that \
                     was never used",
                    member.id,
                    member.http,
                    member.rpc
                );
            }
            let is_member = known.is_some();
            let others = status.members.iter().filter(|member| member.id != config.node.id);
            let ask = others.filter(|_| is_member).map(|member| member.rpc.clone()).collect();
            Ok((Some(status.cluster_id), Admission::Join(ask), Some(address.clone())))
        }
    }
}

fn member(node: &Address) -> Member {
    Member { http: node.http.clone(), rpc: node.rpc.clone() }
}

/// The id of a cluster that nobody named: SHA-256 of its sorted first nodes.
fn name(nodes: &[Address]) -> String {
    let text = |node: &Address| format!("{}={},{}\n", node.id, node.http, node.rpc);
    let list: String = nodes.iter().map(text).collect();
    tenure_state_machine::snapshot::sha256_hex(list.as_bytes())
}

async fn status(address: &str) -> anyhow::Result<ClusterStatus> {
    let answer = http::request(address, Method::GET, "/v1/cluster", None, JOIN_ANSWER).await?;
    ensure!(answer.status == 200, "{address} answered with status {}", answer.status);
    serde_json::from_slice(&answer.body).with_context(|| format!("{address} is no node of ours"))
}

/// Asks to be added, until that is done. A refusal is final.
async fn join(node: &Address, member: &str) -> anyhow::Result<()> {
    let body = serde_json::to_string(node).context("cannot write the node")?;
    loop {
        let asked = http::request(
            member,
            Method::POST,
            "/v1/cluster/members",
            Some(body.clone()),
            JOIN_ANSWER,
        )
        .await;
        match asked {
            Ok(answer) if answer.status == 200 => {
                tracing::info!(member, "added to the cluster; promote it to make it a voter");
                return Ok(());
            }
            Ok(answer) if answer.status == 400 => {
                bail!("{member} refuses: {}", String::from_utf8_lossy(&answer.body));
            }
            Ok(answer) => tracing::info!(member, status = answer.status, "not added yet"),
            Err(error) => tracing::info!(%error, "not added yet"),
        }
        sleep(JOIN_RETRY).await;
    }
}

fn network(config: &Config) -> tenure_network::Config {
    tenure_network::Config {
        address: member(&config.node),
        heartbeat: config.heartbeat,
        election_min: config.election_min,
        election_max: config.election_max,
        snapshot_entries: config.snapshot_entries,
        purge_interval: config.purge_interval,
        request_timeout: config.request_timeout,
        max_waiters: config.max_waiters,
        min_free_disk: config.min_free_disk_bytes,
        hosts: config.hosts.clone(),
    }
}
