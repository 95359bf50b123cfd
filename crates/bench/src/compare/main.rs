//! `tenure-compare`: the same closed loop against Tenure and against other stores, in turn.
//!
//! Each round visits each system once, on an empty directory and with fsync on, so that whatever
//! else the machine does in a while falls on all of them. What is shown is the median over rounds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;
use tenure_bench::{CLIENTS_MAX, Device, Load, Meters, Running, Workload, random_bytes};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use cell::{Cell, Measured};
use systems::{Peer, Programs};

mod cell;
mod plot;
mod processes;
mod systems;
mod table;

/// Before each window, for connections, caches and compilers to warm up.
const WARM_UP: Duration = Duration::from_millis(700);

/// Compares Tenure with other stores that can do its job.
#[derive(Debug, clap::Parser)]
#[command(name = "tenure-compare")]
struct Args {
    /// Which systems; those that are not installed are left out
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = SystemName::ALL)]
    systems: Vec<SystemName>,
    /// What the clients do
    #[arg(long, value_delimiter = ',', value_parser = workload, default_value = "cycle,duplicates,heartbeat")]
    workloads: Vec<Workload>,
    /// How many clients
    #[arg(long, value_delimiter = ',', default_value = "1,64,256",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    clients: Vec<u32>,
    /// How often each system is visited [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// How long each measurement takes, in seconds [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// One round of 2 s each, unless said otherwise
    #[arg(long)]
    quick: bool,
    /// Bytes of each result
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1024 * 1024))]
    payload: u32,
    /// The program `tenure`
    #[arg(long, value_name = "FILE")]
    tenure: PathBuf,
    /// Where `etcd` and `nats-server` are, if not in the path
    #[arg(long, value_name = "DIR")]
    peers: PathBuf,
    /// On the disk that is to be measured; all data is removed at the end
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data_dir: PathBuf,
    /// Where the results go
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum SystemName {
    Tenure,
    Etcd,
    Zookeeper,
    Nats,
    RedisAlways,
    Postgres,
}

impl SystemName {
    const ALL: [Self; 6] =
        [Self::Tenure, Self::Etcd, Self::Zookeeper, Self::Nats, Self::RedisAlways, Self::Postgres];
}

impl std::fmt::Display for SystemName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tenure => "tenure",
            Self::Etcd => "etcd",
            Self::Zookeeper => "zookeeper",
            Self::Nats => "nats",
            Self::RedisAlways => "redis-always",
            Self::Postgres => "postgres",
        })
    }
}

fn workload(name: &str) -> Result<Workload, String> {
    let found = Workload::ALL.into_iter().find(|workload| workload.name() == name);
    found.ok_or_else(|| "must be cycle, duplicates or heartbeat".to_owned())
}

/// What is measured at each system.
#[derive(Debug, Clone)]
struct Plan {
    loads: Vec<Load>,
    window: Duration,
    device: Option<Device>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ran = runtime.context("cannot start a runtime").and_then(|runtime| {
        runtime.block_on(async {
            let mut stop = signal(SignalKind::terminate()).context("cannot listen for signals")?;
            // Dropping what runs ends the servers.
            tokio::select! {
                ran = run(args) => ran,
                _ = stop.recv() => bail!("stopped"),
                _ = tokio::signal::ctrl_c() => bail!("stopped"),
            }
        })
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("tenure-compare: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let (rounds, seconds) = if args.quick { (1, 2) } else { (3, 3) };
    let (rounds, seconds) = (args.rounds.unwrap_or(rounds), args.seconds.unwrap_or(seconds));
    let payload = usize::try_from(args.payload)?;
    let place = place(&args.data_dir)?;
    let mut loads = Vec::new();
    for workload in &args.workloads {
        let with = |clients: &u32| Load { workload: *workload, clients: *clients, payload };
        loads.extend(args.clients.iter().map(with));
    }
    let device = Device::of(place.path());
    let plan = Plan { loads, window: Duration::from_secs(seconds), device };
    let programs = Programs { tenure: args.tenure.clone(), peers: args.peers.clone() };

    let bar = bar(u64::from(rounds) * (args.systems.len() * plan.loads.len()) as u64);
    let mut cells = Vec::new();
    let mut left_out = Vec::new();
    for round in 0..rounds {
        for system in &args.systems {
            let directory = place.path().join(format!("{round}-{system}"));
            let visit = Visit { system: *system, round, plan: &plan, bar: &bar };
            if left_out.contains(system) {
                continue;
            }
            if let Err(error) = visit.any(&programs, &directory, &mut cells).await {
                bar.suspend(|| say(&format!("{system} is left out: {error:#}")));
                left_out.push(*system);
            }
            // The next one shall find the disk as empty as this one did.
            let _ = fs::remove_dir_all(&directory);
        }
    }
    bar.finish_and_clear();
    ensure!(!cells.is_empty(), "nothing was measured");
    report(&args, rounds, seconds, &cells)
}

/// A directory that other users may enter: PostgreSQL runs as one.
fn place(base: &Path) -> anyhow::Result<TempDir> {
    let place = tempfile::Builder::new().prefix("tenure-compare-").tempdir_in(base);
    let place = place.with_context(|| format!("cannot make a directory in {}", base.display()))?;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711))
        .context("cannot open the directory to other users")?;
    Ok(place)
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// One system in one round.
struct Visit<'a> {
    system: SystemName,
    round: u32,
    plan: &'a Plan,
    bar: &'a ProgressBar,
}

impl Visit<'_> {
    async fn any(
        &self,
        programs: &Programs,
        directory: &Path,
        cells: &mut Vec<Cell>,
    ) -> anyhow::Result<()> {
        match self.system {
            SystemName::Tenure => {
                self.one::<systems::tenure::Tenure>(programs, directory, cells).await
            }
            SystemName::Etcd => self.one::<systems::etcd::Etcd>(programs, directory, cells).await,
            SystemName::Zookeeper => {
                self.one::<systems::zookeeper::ZooKeeper>(programs, directory, cells).await
            }
            SystemName::Nats => self.one::<systems::nats::Nats>(programs, directory, cells).await,
            SystemName::RedisAlways => {
                self.one::<systems::redis::Redis>(programs, directory, cells).await
            }
            SystemName::Postgres => {
                self.one::<systems::postgres::Postgres>(programs, directory, cells).await
            }
        }
    }

    async fn one<P: Peer>(
        &self,
        programs: &Programs,
        directory: &Path,
        cells: &mut Vec<Cell>,
    ) -> anyhow::Result<()> {
        self.bar.set_message(format!("{} starts", self.system));
        let peer = P::start(programs, directory).await.context("it does not start")?;
        for load in &self.plan.loads {
            let (name, clients) = (load.workload.name(), load.clients);
            self.bar.set_message(format!("{} {name} {clients}", self.system));
            match self.measure(&peer, *load).await {
                Ok(measured) => Cell::add(cells, self.system, *load, measured),
                Err(error) => self.bar.suspend(|| {
                    say(&format!("{} {name} {clients}: not measured: {error:#}", self.system));
                }),
            }
            self.bar.inc(1);
        }
        Ok(())
    }

    async fn measure<P: Peer>(&self, peer: &P, load: Load) -> anyhow::Result<Measured> {
        let connections = usize::try_from(load.clients)?.min(P::CONNECTIONS);
        let reads_first = load.workload == Workload::Duplicates;
        let payload = random_bytes(load.payload);
        let connections = peer.connect(connections, reads_first, &payload).await?;
        let meters =
            Meters { pids: peer.pids(), device: self.plan.device.clone(), nodes: Vec::new() };
        let running = Running::start(connections, load).await?;
        sleep(WARM_UP).await;
        let before = meters.read().await?;
        running.open(1);
        sleep(self.plan.window).await;
        // Reading takes a moment, to which the operations in it belong.
        let after = meters.read().await?;
        running.open(0);
        let tally = running.stop().await?.into_iter().next().context("no call began")?;
        if let Some(error) = &tally.first_error {
            self.bar.suspend(|| say(&format!("{}: the first error: {error}", self.system)));
        }
        Ok(Measured::new(self.round, &tally, &before, &after))
    }
}

fn report(args: &Args, rounds: u32, seconds: u64, cells: &[Cell]) -> anyhow::Result<()> {
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let json = serde_json::json!({
        "rounds": rounds,
        "seconds": seconds,
        "payload": args.payload,
        "processors": std::thread::available_parallelism().map(usize::from).ok(),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|s| s.trim().to_owned()),
        "cells": cells,
    });
    let json = serde_json::to_string_pretty(&json).context("cannot write the results")?;
    let path = args.out.join("results.json");
    fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
    plot::write(&args.out.join("results.svg"), cells)?;
    let table = table::of(cells);
    fs::write(args.out.join("results.txt"), format!("{table}\n")).context("cannot write")?;
    print(&format!("{table}\n"))?;
    say(&format!("results: {}", args.out.display()));
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot print the results")
}

fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{text}");
}
