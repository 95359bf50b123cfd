//! `jepsen/matrix`: every seeded bug in every ring that should find it, seed by seed, and the same
//! rings without any bug, which must find nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a harness that fails says so by a panic, and what it did by lines"
)]

mod rings;
mod table;
mod trial;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use tokio::time::Instant;

use rings::{BUGS, Bug, Ring};
use table::Row;
use trial::{End, Programs};

/// Every seeded bug in every ring that should find it.
#[derive(Debug, Parser)]
#[command(name = "jepsen/matrix")]
struct Arguments {
    /// Numbers of bugs, comma separated; all if not said; `--bugs=` for none
    #[arg(long, value_delimiter = ',')]
    bugs: Option<Vec<String>>,
    /// Seeds to try each with
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Runs without a bug
    #[arg(long, default_value_t = 0)]
    clean: u64,
    /// Only these rings
    #[arg(long, value_enum)]
    rings: Option<Which>,
    /// Tries at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// The binary with the feature
    #[arg(long)]
    seeded: PathBuf,
    /// The binary without it
    #[arg(long)]
    unseeded: PathBuf,
    /// What cargo said of the tests with the feature
    #[arg(long)]
    tests: PathBuf,
    /// Where runs leave what they saw
    #[arg(long)]
    store: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Tests in one process.
    Tests,
    /// Real processes.
    Runs,
}

/// What is tried: the row of the table that it counts for, and the seed.
struct Try {
    row: usize,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the matrix could not be made: {error}");
            ExitCode::from(3)
        }
    }
}

/// Says whether every bug was caught often enough, and nothing without one.
fn run(arguments: &Arguments) -> io::Result<bool> {
    let store = std::path::absolute(&arguments.store)?;
    let harness = std::env::current_exe()?.with_file_name("tenure-jepsen");
    let programs = |tenure: &PathBuf| -> io::Result<Programs> {
        let tests = trial::tests(&arguments.tests)?;
        let tenure = tenure.canonicalize()?;
        Ok(Programs { tenure, harness: harness.clone(), tests, store: store.clone() })
    };
    let (seeded, unseeded) = (programs(&arguments.seeded)?, programs(&arguments.unseeded)?);
    let mut rows = rows(arguments)?;
    let mut tries = Vec::new();
    for (row, one) in rows.iter().enumerate() {
        tries.extend(one.seeds(arguments).map(|seed| Try { row, seed }));
    }
    let bugs = rows.len();
    add_clean(arguments, &mut rows, &mut tries);
    let started = Instant::now();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(rows));
    let broken = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                while let Some(one) = tries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (bug, ring) = rows.lock().unwrap()[one.row].what();
                    let programs = if one.row < bugs { &seeded } else { &unseeded };
                    match programs.try_once(one.row, bug, ring, one.seed) {
                        Ok(trial) => {
                            let mut rows = rows.lock().unwrap();
                            rows[one.row].add(&trial);
                            let line = rows[one.row].progress(one.seed, &trial);
                            eprintln!("{:6.0} s  {line}", started.elapsed().as_secs_f64());
                        }
                        Err(error) => *broken.lock().unwrap() = Some(error),
                    }
                }
            });
        }
    });
    if let Some(error) = broken.into_inner().unwrap() {
        return Err(error);
    }
    let rows = rows.into_inner().unwrap();
    let table = table::markdown(&rows, started.elapsed());
    println!("{table}");
    let file = store.join("matrix.md");
    std::fs::write(&file, &table)?;
    println!("{}", file.display());
    Ok(rows.iter().all(Row::is_good))
}

/// One for each bug and ring.
fn rows(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let wanted = |bug: &Bug| match &arguments.bugs {
        None => true,
        Some(bugs) => bugs.iter().any(|one| *one == bug.number.to_string() || *one == bug.name),
    };
    let fits = |ring: &Ring| match arguments.rings {
        None => true,
        Some(Which::Runs) => matches!(ring, Ring::Run(_)),
        Some(Which::Tests) => !matches!(ring, Ring::Run(_)),
    };
    let rings = BUGS.iter().filter(|bug| wanted(bug)).flat_map(|bug| {
        let rings = bug.rings.iter().filter(|ring| fits(ring));
        rings.map(move |ring| Row::new(Some(*bug), *ring))
    });
    let rows: Vec<Row> = rings.collect();
    let none = arguments.bugs.as_ref().is_some_and(|bugs| bugs.iter().all(String::is_empty));
    if rows.is_empty() && !none {
        return Err(io::Error::other("no such bug, or it has no such ring"));
    }
    Ok(rows)
}

/// So many tries without a bug, over all rings in turn.
fn add_clean(arguments: &Arguments, rows: &mut Vec<Row>, tries: &mut Vec<Try>) {
    if arguments.clean == 0 {
        return;
    }
    let first = rows.len();
    for ring in BUGS.iter().flat_map(|bug| bug.rings) {
        let is_run = matches!(ring, Ring::Run(_));
        let fits = arguments.rings.is_none_or(|which| (which == Which::Runs) == is_run);
        if fits && rows[first..].iter().all(|row| row.what().1 != *ring) {
            rows.push(Row::new(None, *ring));
        }
    }
    let count = rows.len() - first;
    for number in 0..usize::try_from(arguments.clean).unwrap_or(0) {
        let seed = arguments.first_seed + (number / count) as u64;
        tries.push(Try { row: first + number % count, seed });
    }
}

impl Row {
    /// What it is tried with.
    fn seeds(&self, arguments: &Arguments) -> std::ops::Range<u64> {
        let count = if matches!(self.what().1, Ring::Fixed(..)) { 1 } else { arguments.seeds };
        arguments.first_seed..arguments.first_seed + count
    }

    fn add(&mut self, trial: &trial::Trial) {
        self.tries += 1;
        self.took += trial.took;
        let good = if self.is_clean() { End::Passed } else { End::Caught };
        if trial.end == good {
            self.good += 1;
        }
        if trial.end == End::Caught && self.why.is_empty() {
            self.why.clone_from(&trial.why);
        }
        // A run that says it has tested too little raises no false alarm.
        self.not_tested += u32::from(trial.end == End::NotTested);
        self.longest = self.longest.max(trial.took);
    }

    fn progress(&self, seed: u64, trial: &trial::Trial) -> String {
        let (bug, ring) = self.what();
        let end = match trial.end {
            End::Caught => format!("CAUGHT: {}", trial.why),
            End::Passed => "nothing was found".to_owned(),
            End::NotTested => "not tested".to_owned(),
            End::Broken => "BROKEN".to_owned(),
        };
        let took = Duration::from_secs(trial.took.as_secs());
        format!("{}, seed {seed}, {}: {end} ({took:?})", bug.unwrap_or("no bug"), ring.text())
    }
}
