//! `tenure bench`: what can be typed, a cluster of its own if asked for, and the order of things.
//! How it is measured is in the crate tenure-bench.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tenure_bench::{
    Bench, CLIENTS_MAX, Device, Disturbed, Filled, Load, Meters, Payloads, Results, Settings, Via,
    Window, disturb, fill,
};
use tenure_client::{Client, Config};
use tokio::time::{Instant, sleep_until};

use crate::cli::Connect;
use crate::cli::http;
use crate::cli::output::{self, Format, say};
use crate::dev::Stop;
use crate::local::{LocalCluster, LocalNode, Place};

/// The base port of a cluster of its own, beside those of `tenure dev` and `demo`.
const BASE_PORT: u16 = 7800;
/// Most waiters: what a node takes by default.
const WAITERS_MAX: u32 = 100_000;
/// Records that are stored to see how fast that goes, before a backlog is.
const PROBE: u64 = 4096;
/// How much longer than that tells a backlog may take.
const FILL_SLACK: u32 = 2;
/// How long a backlog may take that is purged under load, at most.
const PURGE_WITHIN: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Workload {
    /// Acquire and complete fresh keys; each is an operation
    Cycle,
    /// Nine of ten are acquires of completed keys, the tenth a cycle
    Duplicates,
    /// Each client holds one record and extends its lease
    Heartbeat,
}

impl Workload {
    fn measured(self) -> tenure_bench::Workload {
        match self {
            Self::Cycle => tenure_bench::Workload::Cycle,
            Self::Duplicates => tenure_bench::Workload::Duplicates,
            Self::Heartbeat => tenure_bench::Workload::Heartbeat,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Protocol {
    /// Frames, many requests on a connection
    Native,
    /// One JSON command a request, one keep-alive connection a client
    Http,
    /// JSON batches of 64 commands, one keep-alive connection a client
    Batch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Caller {
    /// The commands one by one
    Raw,
    /// once(), which acquires, runs nothing and completes; heartbeats are guards that wait
    Once,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum During {
    /// The nodes take snapshots, in turn and back to back
    Snapshot,
    /// The nodes purge the records of `--fill`, which all come due at once
    Purge,
    /// One follower after the other is killed and started again
    Restart,
    /// Empty nodes join, one after the other: each is sent all that is stored, and removed again
    Join,
}

impl During {
    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Purge => "purge",
            Self::Restart => "restart",
            Self::Join => "join",
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tenure bench --workload cycle --concurrency 256 --seconds 10 -o json
  tenure bench --dev --fill 1000000 --seconds 0
  tenure bench --dev --fill 200000 --during purge
  tenure bench --dev --fill 2000000 --seconds 60 --during join
  tenure bench --client once --workload heartbeat --concurrency 10000 --seconds 30
  tenure bench --via batch --http http://127.0.0.1:7601")]
pub(crate) struct Args {
    /// What the clients do
    #[arg(long, value_enum, default_value = "cycle")]
    workload: Workload,
    /// How many clients
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    concurrency: u32,
    /// How long, in seconds; 0 only fills, and a purge is measured until it is done
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Bytes of each result
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// How the clients reach the cluster; http and batch need --http or --dev
    #[arg(long, value_enum, default_value = "native")]
    via: Protocol,
    /// What the clients call
    #[arg(long, value_enum, default_value = "raw")]
    client: Caller,
    /// Store so many COMPLETE records first
    #[arg(long, value_name = "N", default_value_t = 0)]
    fill: u64,
    /// Let so many acquires wait for one other record meanwhile
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=i64::from(WAITERS_MAX)))]
    waiters: u32,
    /// Measure once more while this goes on, and compare; snapshot needs --http or --dev, purge
    /// needs --fill, restart and join need --dev
    #[arg(long, value_enum)]
    during: Option<During>,
    /// Start three nodes on this machine for the run
    #[arg(long)]
    dev: bool,
    /// Where the nodes keep their data, to count what its disk writes; with --dev they are told to
    /// [default with --dev: a temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Process ids of the nodes, if they run here: their processor time is counted
    #[arg(long, value_name = "PID,..", value_delimiter = ',', conflicts_with = "dev")]
    server_pids: Vec<u32>,
    /// HTTP addresses of the nodes: how often they sync their logs is counted
    #[arg(long, value_name = "URL,..", value_delimiter = ',', value_parser = http::address, conflicts_with = "dev")]
    http: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// The cluster that is measured.
#[derive(Debug)]
struct Target {
    config: Config,
    /// HTTP addresses, as far as they are known.
    nodes: Vec<String>,
    meters: Meters,
    /// If it is this process's own, with its leader.
    own: Option<(LocalCluster, u64)>,
}

/// Measures, and prints the results.
pub(crate) async fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::new()?;
    // Dropping the run ends a cluster of its own.
    let results = tokio::select! {
        results = measured(&args) => results?,
        () = stop.asked() => bail!("stopped"),
    };
    output::object(format, &serde_json::to_string(&results).context("cannot write the results")?)?;
    Ok(if results.any() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measured(args: &Args) -> anyhow::Result<Results> {
    check(args)?;
    let payloads = Payloads::new(args.payload)?;
    let (workload, clients) = (args.workload.measured(), args.concurrency);
    let load = Load { workload, clients, payload: args.payload };
    let mut target = target(args).await?;
    let (filled, due) = filled(args, &target, &payloads).await?;

    let mut windows = Vec::new();
    let done = AtomicU64::new(0);
    if args.seconds > 0 {
        let settings = Settings {
            config: target.config.clone(),
            via: via(args, &target),
            load,
            payloads,
            waiters: args.waiters,
            meters: target.meters.clone(),
        };
        let mut bench = Bench::start(settings).await?;
        let length = Duration::from_secs(args.seconds);
        let quiet = if args.during.is_some() { "quiet: " } else { "" };
        bench.window(quiet, length, std::future::pending()).await?;
        if let Some(during) = args.during {
            if let Some(due) = due {
                ensure!(Instant::now() < due, "the backlog came due too early: fill with less");
                sleep_until(due).await;
            }
            let length = if during == During::Purge { PURGE_WITHIN } else { length };
            let meanwhile = disturbance(during, &mut target, &done);
            bench.window(&format!("{}: ", during.name()), length, meanwhile).await?;
        }
        windows = bench.stop().await?;
    }
    if let Some((cluster, leader)) = &mut target.own {
        cluster.leave(*leader).await?;
    }
    if let Some((cluster, _)) = target.own.take() {
        cluster.stop(std::future::pending()).await;
    }
    for error in windows.iter().filter_map(|window| window.tally.first_error.as_deref()) {
        say(format_args!("the first error: {error}"));
    }
    let disturbed = match (args.during, windows.as_slice()) {
        (Some(during), [quiet, disturbed]) => {
            let disturbances =
                if during == During::Purge { args.fill } else { done.load(Ordering::Relaxed) };
            Some(Disturbed::new(during.name(), disturbances, quiet, disturbed))
        }
        _ => None,
    };
    let window: Option<&Window> = windows.last();
    Ok(Results::new(load, window, filled, disturbed))
}

/// Refuses what does not go together.
fn check(args: &Args) -> anyhow::Result<()> {
    ensure!(args.seconds > 0 || args.fill > 0, "0 seconds without --fill is nothing to do");
    let http = args.dev || !args.http.is_empty();
    ensure!(http || args.via == Protocol::Native, "--via http and batch need --http or --dev");
    ensure!(args.client == Caller::Raw || args.via == Protocol::Native, "--client once is native");
    let Some(during) = args.during else { return Ok(()) };
    ensure!(args.seconds > 0, "--during needs --seconds");
    match during {
        During::Snapshot => ensure!(http, "--during snapshot needs --http or --dev"),
        During::Purge => ensure!(args.fill > 0, "--during purge needs --fill"),
        During::Restart | During::Join => {
            ensure!(args.dev, "--during {} needs --dev", during.name());
        }
    }
    Ok(())
}

/// The cluster that was named, or one that is started now.
async fn target(args: &Args) -> anyhow::Result<Target> {
    if !args.dev {
        let device = args.data_dir.as_deref().and_then(Device::of);
        let nodes = args.http.clone();
        let meters = Meters { pids: args.server_pids.clone(), device, nodes: nodes.clone() };
        return Ok(Target { config: args.connect.config(), nodes, meters, own: None });
    }
    let data_dir = args.data_dir.clone();
    let place = Place { nodes: None, data_dir, base_port: None, default_port: BASE_PORT };
    let mut cluster = LocalCluster::start(&place)?;
    let leader = cluster.ready(|node, _| say(format_args!("node {} ended", node.id))).await?;
    let list = |of: fn(&LocalNode) -> String| cluster.nodes().iter().map(of).collect::<Vec<_>>();
    let nodes = list(|node| node.http.clone());
    let config = Config { endpoints: list(|node| node.rpc.clone()), ..args.connect.config() };
    let mut meters = Meters { device: Device::of(cluster.directory()), ..Meters::default() };
    // Nodes that are killed have neither a time nor counters afterwards, nor have those that come.
    if !matches!(args.during, Some(During::Restart | During::Join)) {
        meters.pids = cluster.nodes().iter().map(|node| node.pid).collect();
        meters.nodes.clone_from(&nodes);
    }
    Ok(Target { config, nodes, meters, own: Some((cluster, leader)) })
}

fn via(args: &Args, target: &Target) -> Via {
    match args.via {
        Protocol::Native if args.client == Caller::Once => Via::Once,
        Protocol::Native => Via::Native,
        Protocol::Http => Via::Http(target.nodes.clone()),
        Protocol::Batch => Via::Batch(target.nodes.clone()),
    }
}

/// Stores what was asked for. Gives what that came to, and when a backlog is due.
async fn filled(
    args: &Args,
    target: &Target,
    payloads: &Payloads,
) -> anyhow::Result<(Option<Filled>, Option<Instant>)> {
    if args.fill == 0 {
        return Ok((None, None));
    }
    let client = Client::new(target.config.clone());
    let mut due = None;
    if args.during == Some(During::Purge) {
        let probe = fill(&client, PROBE, payloads, None).await?;
        let batches = u32::try_from(args.fill.div_ceil(PROBE)).unwrap_or(u32::MAX);
        let filling = probe.saturating_mul(batches).saturating_mul(FILL_SLACK);
        // The quiet window and what is around it come before it.
        let quiet = Duration::from_secs(args.seconds.saturating_add(3));
        let now = Instant::now();
        due = now.checked_add(filling.saturating_add(quiet));
        ensure!(due.is_some(), "a backlog of {} takes too long to store", args.fill);
    }
    let before = target.meters.read().await?;
    let took = fill(&client, args.fill, payloads, due).await?;
    let after = target.meters.read().await?;
    let filled = Filled::new(args.fill, took, &before, &after);
    say(format_args!("filled {} records in {took:.1?}", args.fill));
    Ok((Some(filled), due))
}

/// Disturbs until it is dropped, or until nothing is left to do.
async fn disturbance(during: During, target: &mut Target, done: &AtomicU64) -> anyhow::Result<()> {
    match during {
        During::Snapshot => disturb::snapshots(&target.nodes, done).await,
        During::Purge => disturb::purges(&Client::new(target.config.clone())).await,
        During::Restart => {
            let (cluster, leader) = target.own.as_mut().context("the cluster is not our own")?;
            restarts(cluster, *leader, done).await
        }
        During::Join => {
            let (cluster, leader) = target.own.as_mut().context("the cluster is not our own")?;
            joins(cluster, *leader, done).await
        }
    }
}

/// Kills one follower after the other, each when the one before is ready again.
async fn restarts(
    cluster: &mut LocalCluster,
    mut leader: u64,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    loop {
        let followers: Vec<u64> =
            cluster.nodes().iter().map(|node| node.id).filter(|id| *id != leader).collect();
        for follower in followers {
            cluster.kill(follower)?;
            cluster.spawn(follower)?;
            leader = cluster.ready(|node, _| say(format_args!("node {} ended", node.id))).await?;
            done.fetch_add(1, Ordering::Relaxed);
            if follower == leader {
                break;
            }
        }
    }
}

/// Lets one node after the other join, and removes it when it has everything.
async fn joins(cluster: &mut LocalCluster, leader: u64, done: &AtomicU64) -> anyhow::Result<()> {
    loop {
        let joined = cluster.join(leader)?;
        cluster.caught_up(joined, leader).await?;
        done.fetch_add(1, Ordering::Relaxed);
        cluster.leave(leader).await?;
    }
}
