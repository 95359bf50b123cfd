//! Several runs, one after the other, each a process of its own with a verdict of its own: a soak,
//! or the four that every change must pass.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::nemesis::Nemesis;
use crate::verdict::Verdict;
use crate::workload::Workload;
use crate::{Arguments, isolation::Rung};

/// Faults that go together in one run of a soak. With the workloads, whose number has no divisor
/// in common with theirs, all pairs come about.
const FAULTS: [&[Nemesis]; 13] = [
    &[Nemesis::Partition, Nemesis::Kill],
    &[Nemesis::Pause, Nemesis::Clock],
    &[Nemesis::PowerCut, Nemesis::Kill, Nemesis::Partition],
    &[Nemesis::Lossy, Nemesis::Slow],
    &[Nemesis::Delay, Nemesis::Reorder, Nemesis::Duplicate, Nemesis::Corrupt],
    &[Nemesis::SyncError, Nemesis::WriteError, Nemesis::TornWrite],
    &[Nemesis::Membership, Nemesis::Snapshot, Nemesis::Partition],
    &[Nemesis::SlowDisk, Nemesis::ShortWrite, Nemesis::Pause],
    &[Nemesis::Damage],
    &[Nemesis::DiskFull, Nemesis::PowerCut],
    &[Nemesis::Starve, Nemesis::Memory],
    &[Nemesis::Delay, Nemesis::Partition, Nemesis::Kill, Nemesis::Clock],
    &[Nemesis::Deaf, Nemesis::Mute, Nemesis::Skew],
];

const WORKLOADS: [Workload; 7] = [
    Workload::Lease,
    Workload::Dedup,
    Workload::Tokens,
    Workload::Expiry,
    Workload::Durability,
    Workload::Membership,
    Workload::Paused,
];

/// What every change must pass.
const CI: [(Workload, &[Nemesis]); 4] = [
    (Workload::Lease, &[Nemesis::Partition]),
    (Workload::Durability, &[Nemesis::Kill, Nemesis::PowerCut]),
    (Workload::Expiry, &[Nemesis::Clock]),
    (Workload::Paused, &[Nemesis::Pause]),
];

/// How one run ended.
#[derive(Debug)]
struct Ended {
    name: String,
    /// A verdict's name; or `skipped`, when all that is missing cannot be had on this machine.
    verdict: String,
    why: String,
    seed: u64,
}

/// The four runs of every change.
pub(crate) fn ci(arguments: &Arguments, seed: u64) -> io::Result<ExitCode> {
    let mut ended = Vec::new();
    for (number, (workload, nemeses)) in (0..).zip(CI) {
        ended.push(one(arguments, number, workload, nemeses, seed + number)?);
    }
    conclude(&arguments.store, &ended)
}

/// Runs until the time is up; the last one ends a little later.
pub(crate) fn soak(arguments: &Arguments, minutes: u64, seed: u64) -> io::Result<ExitCode> {
    let started = Instant::now();
    let mut ended = Vec::new();
    let turns = WORKLOADS.into_iter().cycle().zip(FAULTS.into_iter().cycle());
    for (number, (workload, nemeses)) in (0..).zip(turns) {
        if started.elapsed() >= Duration::from_secs(60 * minutes) {
            break;
        }
        ended.push(one(arguments, number, workload, nemeses, seed + number)?);
    }
    conclude(&arguments.store, &ended)
}

fn one(
    arguments: &Arguments,
    number: u64,
    workload: Workload,
    nemeses: &[Nemesis],
    seed: u64,
) -> io::Result<Ended> {
    let faults: Vec<String> = nemeses.iter().map(|nemesis| nemesis.name()).collect();
    let name = format!("{number:03}-{}-{}", workload.name(), faults.join("+"));
    let store = arguments.store.join(&name);
    std::fs::create_dir_all(&store)?;
    let log = std::fs::File::create(store.join("run.log"))?;
    let mut run = Command::new(std::env::current_exe()?);
    run.args(["--workload", &workload.name(), "--nemesis", &faults.join(",")]);
    run.args(["--seconds", &arguments.seconds.to_string(), "--seed", &seed.to_string()]);
    run.args(["--nodes", &arguments.nodes.to_string()]);
    run.args(["--workers", &arguments.workers.to_string()]);
    if let Some(rung) = arguments.rung.map(Rung::word) {
        run.args(["--rung", rung]);
    }
    run.arg("--store").arg(&store).stdout(log.try_clone()?).stderr(log);
    let status = run.status()?;
    let verdict = std::fs::read(store.join("verdict.json")).unwrap_or_default();
    let verdict: Value = serde_json::from_slice(&verdict).unwrap_or_default();
    let (verdict, why) = match verdict["verdict"].as_str() {
        None => (Verdict::Unknown.name().to_owned(), format!("no verdict: {status}")),
        Some(_) if is_skipped(&verdict) => {
            ("skipped".to_owned(), verdict["not_tested"].to_string())
        }
        Some(named) => (named.to_owned(), reasons(&verdict)),
    };
    println!("{verdict:<11} {name} seed {seed} {why}");
    Ok(Ended { name, verdict, why, seed })
}

/// Whether nothing is missing but faults that this machine cannot have.
fn is_skipped(verdict: &Value) -> bool {
    let missing = verdict["not_tested"].as_array().map_or(&[][..], |all| all);
    let is_skip = |text: &Value| {
        let (fault, _) = text.as_str()?.split_once(" was not installed: ")?;
        verdict["faults"][fault]["skipped"].as_u64().filter(|times| *times > 0)
    };
    verdict["verdict"] == Verdict::NotTested.name()
        && !missing.is_empty()
        && missing.iter().all(|text| is_skip(text).is_some())
}

fn reasons(verdict: &Value) -> String {
    let named = ["found", "undecided", "troubles", "not_tested"].map(|name| &verdict[name]);
    let some =
        named.into_iter().filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
    let mut reasons: Vec<String> = some.map(Value::to_string).collect();
    if let Some(violations) =
        verdict["violations_all"].as_u64().filter(|violations| *violations > 0)
    {
        reasons.insert(0, format!("{violations} violations"));
    }
    reasons.join(" ")
}

/// Leaves a summary. The worst run decides; a skipped one decides nothing, and is no pass.
fn conclude(store: &Path, ended: &[Ended]) -> io::Result<ExitCode> {
    let json = |one: &Ended| json!({ "run": one.name, "verdict": one.verdict, "why": one.why, "seed": one.seed });
    let summary: Vec<Value> = ended.iter().map(json).collect();
    std::fs::write(store.join("summary.json"), serde_json::to_string_pretty(&summary)? + "\n")?;
    let count = |name: &str| ended.iter().filter(|one| one.verdict == name).count();
    let (valid, skipped) = (count(Verdict::Valid.name()), count("skipped"));
    let worst = [Verdict::Invalid, Verdict::Unknown, Verdict::NotTested]
        .into_iter()
        .find(|verdict| count(verdict.name()) > 0);
    println!("{} runs, {valid} valid, {skipped} skipped: {}", ended.len(), store.display());
    let none = if valid > 0 { Verdict::Valid } else { Verdict::NotTested };
    Ok(ExitCode::from(worst.unwrap_or(none).exit_code()))
}
