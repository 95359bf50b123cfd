//! Many seeds, one process each, some at a time.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use clap::ValueEnum as _;
use serde_json::Value;
use tokio::time::Instant;

use crate::Defect;

/// Between two lines that say how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// What a hundred seeds must have seen between them: less, and they have tested too little.
const FLOORS: [(&str, u64); 27] = [
    ("broken connections", 20),
    ("completions", 500),
    ("expiries", 1000),
    ("extensions", 1000),
    ("fail-overs", 150),
    ("failing disk", 50),
    ("full disk", 10),
    ("grants", 3000),
    ("join", 50),
    ("kill", 40),
    ("late completions refused", 300),
    ("one-way partition", 50),
    ("partition", 50),
    ("power cut", 100),
    ("promotion", 20),
    ("removal", 5),
    ("replays", 2000),
    ("reads", 8000),
    ("releases", 1000),
    ("slow disk", 40),
    ("slow link", 40),
    ("snapshots installed", 20),
    ("steals", 500),
    ("stop", 15),
    ("transfer", 20),
    ("wiped and refused", 1),
    ("wiped disk", 3),
];

/// Which seeds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent {
    /// So many.
    Seeds(u64),
    /// As many as there is time for.
    Time(Duration),
}

/// What is known so far.
#[derive(Default)]
struct Sum {
    next: u64,
    done: u64,
    failed: Vec<u64>,
    seen: BTreeMap<String, u64>,
    said: Option<Instant>,
}

/// Runs seeds from `first` on, `jobs` at a time, and gives the exit code: 0 when all were right, 1
/// when one was not, 2 when they have tested too little.
pub(crate) fn run(first: u64, extent: Extent, jobs: usize, defect: Option<Defect>) -> u8 {
    let started = Instant::now();
    let sum = Mutex::new(Sum::default());
    let goes_on = |next: u64| match extent {
        Extent::Seeds(seeds) => next < seeds,
        Extent::Time(time) => started.elapsed() < time,
    };
    let work = || {
        loop {
            let seed = {
                let mut sum = sum.lock().unwrap();
                if !goes_on(sum.next) {
                    return;
                }
                sum.next += 1;
                first.wrapping_add(sum.next - 1)
            };
            let result = one(seed, defect);
            sum.lock().unwrap().add(seed, result, started);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    sum.into_inner().unwrap().verdict(started)
}

/// Runs one seed in a process of its own: what it reports, or how it ended without a report.
fn one(seed: u64, defect: Option<Defect>) -> Result<Value, String> {
    let me = std::env::current_exe().expect("this process has a file");
    let mut run = Command::new(me);
    run.arg("--seed").arg(seed.to_string());
    if let Some(defect) = defect.and_then(|defect| defect.to_possible_value()) {
        run.arg("--defect").arg(defect.get_name());
    }
    let output = run.output().map_err(|error| format!("cannot run: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("no report: {}: {}", output.status, said.trim())
    })
}

impl Sum {
    fn add(&mut self, seed: u64, result: Result<Value, String>, started: Instant) {
        self.done += 1;
        let wrong: Vec<String> = match &result {
            Ok(report) => {
                for part in ["seen", "faults"] {
                    for (what, times) in report[part].as_object().into_iter().flatten() {
                        let sum = self.seen.entry(what.clone()).or_default();
                        *sum += times.as_u64().unwrap_or(0);
                    }
                }
                let wrong = report["wrong"].as_array().into_iter().flatten();
                wrong.map(|wrong| wrong.as_str().unwrap_or_default().to_owned()).collect()
            }
            Err(error) => vec![error.clone()],
        };
        if !wrong.is_empty() {
            self.failed.push(seed);
            eprintln!("\nseed {seed} is wrong:");
            for wrong in wrong.iter().take(3) {
                eprintln!("  {}", wrong.chars().take(600).collect::<String>());
            }
            eprintln!("  again: tests/simulate --seed {seed} --trace");
        }
        if self.said.is_none_or(|said| said.elapsed() >= PROGRESS) {
            self.said = Some(Instant::now());
            self.say(started);
        }
    }

    fn say(&self, started: Instant) {
        let per_minute = self.done as f64 * 60.0 / started.elapsed().as_secs_f64();
        eprintln!("{} seeds, {per_minute:.0} a minute, {} wrong", self.done, self.failed.len());
    }

    fn verdict(self, started: Instant) -> u8 {
        self.say(started);
        println!("{}", serde_json::to_string(&self.seen).expect("counts are JSON"));
        for seed in &self.failed {
            println!("wrong: tests/simulate --seed {seed} --trace");
        }
        let short: Vec<String> = FLOORS
            .iter()
            .map(|(what, floor)| (what, floor * self.done / 100))
            .filter(|(what, floor)| self.seen.get(**what).is_none_or(|seen| seen < floor))
            .map(|(what, floor)| format!("{what}: {:?} of {floor}", self.seen.get(*what)))
            .collect();
        for short in &short {
            println!("not tested: {short}");
        }
        match (self.failed.is_empty(), short.is_empty()) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 0,
        }
    }
}
