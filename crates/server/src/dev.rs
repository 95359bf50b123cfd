//! `tenure dev`: a cluster on this machine, until Ctrl-C.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::cli::output::{self, Format, say};
use crate::local::{LocalCluster, LocalNode, Place, ending};

/// The base port of `dev`: HTTP is base + id, RPC is base + 100 + id.
const BASE_PORT: u16 = 7600;
/// How often the nodes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tenure dev
  tenure dev --nodes 5 --data-dir ./cluster
  tenure dev -o json       # one line once there is a leader, for scripts")]
pub(crate) struct Args {
    /// How many nodes [default: 3, or what the data directory holds]
    #[arg(long)]
    nodes: Option<u64>,
    /// Keep the data here, and start again as it was [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// HTTP ports are base + id, RPC ports base + 100 + id [default: 7600]
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,
}

/// The line that says that there is a leader.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    ready: bool,
    leader: u64,
    nodes: &'a [LocalNode],
}

/// What asks this process to stop.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next Ctrl-C or SIGTERM.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs until it is asked to stop.
pub(crate) async fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::new()?;
    let Args { nodes, data_dir, base_port } = args;
    let place = Place { nodes, data_dir, base_port, default_port: BASE_PORT };
    let mut cluster = LocalCluster::start(&place)?;
    let ready = tokio::select! {
        leader = cluster.ready(report) => Some(leader?),
        () = stop.asked() => None,
    };
    if let Some(leader) = ready {
        announce(format, &cluster, leader)?;
        tokio::select! {
            watched = watch(&mut cluster) => watched?,
            () = stop.asked() => {}
        }
    }
    say("stopping the nodes; once more to kill them");
    cluster.stop(stop.asked()).await;
    Ok(ExitCode::SUCCESS)
}

/// Reports nodes that end, for ever.
async fn watch(cluster: &mut LocalCluster) -> anyhow::Result<()> {
    loop {
        for (id, status) in cluster.ended() {
            report(cluster.node(id)?, status);
        }
        sleep(LOOK_EVERY).await;
    }
}

fn report(node: &LocalNode, status: ExitStatus) {
    say(format_args!(
        "node {} {}; its log is {}; to start it again:\n  {}",
        node.id,
        ending(status),
        node.log().display(),
        node.shell_command()
    ));
}

fn announce(format: Format, cluster: &LocalCluster, leader: u64) -> anyhow::Result<()> {
    let nodes = cluster.nodes();
    if format == Format::Json {
        let ready = Ready { ready: true, leader, nodes };
        return output::line(serde_json::to_string(&ready).context("cannot write the nodes")?);
    }
    let mut table = output::table();
    table.set_header(["node", "", "http", "rpc", "pid", "log"]);
    for node in nodes {
        let role = if node.id == leader { "leads" } else { "" };
        let (id, pid) = (node.id.to_string(), node.pid.to_string());
        let log = node.log().display().to_string();
        table.add_row([&id, role, &node.http, &node.rpc, &pid, &log]);
    }
    output::line(table)?;
    let list = |of: fn(&LocalNode) -> &str| nodes.iter().map(of).collect::<Vec<_>>().join(",");
    say(format_args!(
        "ready; Ctrl-C stops it. In another terminal:\n  \
         export TENURE_ENDPOINTS={} TENURE_HTTP_ENDPOINTS={}\n  tenure acquire mail order-1",
        list(|node| &node.rpc),
        list(|node| &node.http),
    ));
    Ok(())
}
