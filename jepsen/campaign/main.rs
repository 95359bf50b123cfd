//! `jepsen/run`: a cluster of real processes under faults, a load, and a verdict.
//!
//! What each fault does, what a verdict means and what is not tested is in `jepsen/README.md`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a harness that fails says so by a panic, and what it did by lines"
)]

mod aimed;
mod bad_disks;
mod disks;
mod fleet;
mod groups;
mod isolation;
mod links;
mod members;
mod nemesis;
mod pictures;
mod schedule;
mod soak;
mod switch;
mod verdict;
mod workload;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tenure_jepsen::hang_ups;
use tenure_jepsen::history::{self, History};
use tenure_jepsen::verify::{self, floors};

use fleet::{Fleet, Needs, READY_WITHIN, until};
use isolation::Rung;
use nemesis::Nemesis;
use verdict::{Report, Verdict};
use workload::{Load, Workload};

/// Answers that the load must get once all faults have healed.
const GOES_ON: u64 = 50;

/// A cluster of real processes under faults, a load, and a verdict.
#[derive(Debug, Clone, Parser)]
#[command(name = "tenure-jepsen")]
struct Arguments {
    /// What is sent
    #[arg(long, value_enum, default_value = "lease")]
    workload: Workload,
    /// Kinds of faults, comma separated; `--nemesis=` for none
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["partition", "kill", "pause"])]
    nemesis: Vec<Nemesis>,
    /// How long faults come and go
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// What is drawn; printed, so that a run can be asked for again
    #[arg(long)]
    seed: Option<u64>,
    /// First nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=5))]
    nodes: u8,
    /// Who sends, at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100))]
    workers: u64,
    /// Where the run leaves what it saw
    #[arg(long, default_value = "jepsen/store/last")]
    store: PathBuf,
    /// Judge a history that was kept, and run nothing
    #[arg(long, value_name = "HISTORY")]
    check: Option<PathBuf>,
    /// Run after run for so many minutes: workloads and faults in turn, `--seconds` each
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["workload", "nemesis", "check"])]
    soak: Option<u64>,
    /// The four runs that every change must pass
    #[arg(long, conflicts_with_all = ["workload", "nemesis", "check", "soak"])]
    ci: bool,
    /// The rung to use; the best one that is there if not said
    #[arg(long, value_enum)]
    rung: Option<Rung>,
    /// The rung that this process is on already
    #[arg(long, value_enum, hide = true)]
    on: Option<Rung>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match (&arguments.check, arguments.on) {
        (Some(file), _) => check(file),
        _ if arguments.ci => soak::ci(&arguments, seed(&arguments)),
        _ if let Some(minutes) = arguments.soak => {
            soak::soak(&arguments, minutes, seed(&arguments))
        }
        (None, Some(rung)) => run(&arguments, rung),
        (None, None) => enter(&arguments),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("the harness failed, nothing is known: {error}");
            ExitCode::from(Verdict::Unknown.exit_code())
        }
    }
}

fn seed(arguments: &Arguments) -> u64 {
    arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()))
}

/// Climbs to a rung, and runs there.
fn enter(arguments: &Arguments) -> io::Result<ExitCode> {
    let rung = arguments.rung.unwrap_or_else(Rung::best);
    eprintln!("isolation: {}", rung.name());
    let Some(status) = rung.enter()? else { return run(arguments, rung) };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(Verdict::Unknown.exit_code())))
}

/// Judges a history again.
fn check(file: &PathBuf) -> io::Result<ExitCode> {
    let events = history::read(BufReader::new(File::open(file)?))?;
    let judgement = verify::judge(&events);
    let mut report = Report::new(serde_json::json!({ "history": file }));
    report.seen = floors::seen(&events);
    report.judge(judgement);
    println!("{}", report.json());
    Ok(ExitCode::from(report.verdict().exit_code()))
}

fn run(arguments: &Arguments, rung: Rung) -> io::Result<ExitCode> {
    let seed = seed(arguments);
    let has = |nemesis| arguments.nemesis.contains(&nemesis);
    let churns = has(Nemesis::Membership) || arguments.workload == Workload::Membership;
    let fails = has(Nemesis::SyncError) || has(Nemesis::WriteError) || has(Nemesis::Damage);
    let needs = Needs {
        disks: arguments.nemesis.iter().any(|nemesis| nemesis.hurts_disks()),
        preloaded: arguments.nemesis.iter().any(|nemesis| nemesis.is_preloaded()),
        // A state is synced when a snapshot is taken, seldom else.
        snapshots: has(Nemesis::Snapshot) || churns || fails,
        switch: arguments.nemesis.iter().any(|nemesis| nemesis.disturbance().is_some()),
        seed,
        spare: if churns { 1 } else { 0 },
    };
    std::fs::create_dir_all(&arguments.store)?;
    let store = arguments.store.canonicalize()?;
    let names: Vec<String> = arguments.nemesis.iter().map(|nemesis| nemesis.name()).collect();
    eprintln!(
        "workload {}, nemesis {}, {} nodes, {} s, seed {seed}",
        arguments.workload.name(),
        names.join(","),
        arguments.nodes,
        arguments.seconds
    );
    let mut fleet = Fleet::start(rung, &store, usize::from(arguments.nodes), needs)?;
    if !fleet.is_ready() {
        return Err(io::Error::other(format!("no cluster in time, see {}", store.display())));
    }

    let history = Arc::new(History::default());
    let (workload, endpoints) = (arguments.workload, Arc::clone(&fleet.endpoints));
    let load = Load::start(workload, Arc::clone(&history), endpoints, arguments.workers, seed);
    let length = Duration::from_secs(arguments.seconds);
    let mut faults = schedule::run(&mut fleet, &history, &arguments.nemesis, seed, length);

    // The load goes on while the last fault heals.
    let mut report = Report::new(serde_json::json!({
        "workload": workload.name(), "nemesis": names, "seed": seed, "seconds": arguments.seconds,
        "nodes": arguments.nodes, "workers": arguments.workers, "rung": rung.name(),
    }));
    let from = load.acknowledged();
    let goes_on = until(READY_WITHIN, || (load.acknowledged() >= from + GOES_ON).then_some(()));
    let goes_on = goes_on.is_some() && fleet.is_ready();
    if !goes_on {
        report.found("the cluster does not go on after its faults have healed");
    }
    // What is dead is not asked a last time.
    let left = load.finish(goes_on);
    left.violations.iter().for_each(|text| report.found(text));
    if left.lost_workers > 0 {
        report.troubles.push(format!("{} workers panicked", left.lost_workers));
    }
    match fleet.states_differ() {
        Some(differ) if differ.is_empty() => {}
        Some(differ) => report.found(&format!("states differ at one index: {differ:?}")),
        None if !goes_on => {}
        None => report.troubles.push("the nodes are never at one index".to_owned()),
    }
    fleet.defects(needs.disks).iter().for_each(|text| report.found(text));
    faults.ended.extend(fleet.ended()?);
    faults.ended.iter().for_each(|text| report.found(text));
    fleet.wrong.iter().for_each(|text| report.found(text));
    report.troubles.append(&mut faults.troubles);

    let events = history.events();
    if workload == Workload::HangUps && !arguments.nemesis.iter().any(|one| one.hides_hang_ups()) {
        hang_ups::never_granted(&events).iter().for_each(|text| report.found(text));
    }
    let mut seen = floors::seen(&events);
    seen.count("effects", left.effects);
    seen.count("effects fenced", left.effects_fenced);
    // A disturbance that no packet has met was none.
    for nemesis in &arguments.nemesis {
        let met = nemesis.disturbance().and_then(|what| fleet.links.met(what));
        let name = nemesis.name();
        let is_there = |entry: &schedule::Entry| entry.fault == name && entry.is_installed();
        let Some(met) = met.filter(|_| faults.entries.iter().any(is_there)) else { continue };
        seen.count("packets disturbed", met);
        if met == 0 {
            report.troubles.push(format!("{name}: no packet has met it"));
        }
    }
    report.seen = seen;
    report.floors(workload.floors(), &arguments.nemesis, &faults.entries);
    report.judge(verify::judge(&events));
    drop(fleet);
    verdict::leave(&store, &report, &events, &faults.entries)?;
    println!("{}", report.summary());
    println!("{}", store.display());
    Ok(ExitCode::from(report.verdict().exit_code()))
}
