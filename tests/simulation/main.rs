//! A whole cluster in simulated time: Raft, proposer, reads, waiters, purger, trimmer and
//! forwarding as they are, on simulated disks, clocks and links. One process runs one seed, in one
//! thread; the same seed is the same run, to the last event.
//!
//!     tests/simulate --seeds 1000           # or --minutes 3
//!     tests/simulate --seed 42 --trace      # one run again, with all that happens
//!
//! # How it is done
//!
//! - *Hosts, links and time* are turmoil's: each node has a runtime of its own, whose clock moves
//!   when the simulator says so; a crash takes the runtime away with all that was in it.
//! - *Disks* are storage's simulated ones, in time: what waits for a disk are tasks that take a
//!   drawn while. A power cut leaves what was synced and, if it likes, a part of the rest.
//! - *Clocks* of nodes run up to a twentieth too fast or too slow, each at its own rate.
//! - *Randomness* is one stream: see `entropy`.
//! - *Clients* send single commands over frames, to any node, and keep a history; see `clients`.
//! - *Faults* come and go on a schedule that the seed draws: see `nemesis`.
//!
//! # What is judged
//!
//! After each step all nodes are held against each other and against the pure state machine, by the
//! invariants at the head of `witness`. At the end everything is healed: all nodes must come to be
//! as one, and every key must be readable, within a time; then both checkers of `tenure-jepsen`
//! judge the history of the clients. A node that ends by itself, and a panic in any task, are
//! wrong.
//! A campaign of too few faults, steals, replays, fail-overs has tested too little, and says so.
//!
//! `TENURE_SEEDED_BUG` is passed on to every run, as all of the environment.
//!
//! # Caveats
//!
//! - RocksDB, HTTP and the client library's retries, heartbeats and routes are not in it.
//! - Links lose nothing but whole connections: what is cut off waits, as TCP would send it again.
//! - A node cannot be paused while time goes on for the others; clients can, by late commands.

mod campaign;
mod clients;
mod clock;
mod entropy;
mod links;
mod nemesis;
mod run;
mod seat;
mod trace;
mod witness;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::campaign::Extent;

/// A run that takes longer than this in real time hangs.
const HANGS: Duration = Duration::from_secs(120);

/// Runs a whole cluster in simulated time, under faults, one process a seed.
#[derive(Debug, Parser)]
struct Args {
    /// One run of this seed, in this process.
    #[arg(long, conflicts_with_all = ["seeds", "minutes", "from", "jobs"])]
    seed: Option<u64>,
    /// Shows all that happens, on stderr.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Shows what the nodes themselves say, by a filter such as `debug` or `openraft=info`, on
    /// stderr.
    #[arg(long, requires = "seed", value_name = "FILTER")]
    log: Option<String>,
    /// Where the clients' history goes, as JSON lines.
    #[arg(long, requires = "seed", value_name = "FILE")]
    history: Option<PathBuf>,
    /// Puts a defect into the simulated machines that must be found.
    #[arg(long)]
    defect: Option<Defect>,
    /// So many seeds.
    #[arg(long, default_value_t = 100, conflicts_with = "minutes")]
    seeds: u64,
    /// As many seeds as there is time for.
    #[arg(long)]
    minutes: Option<f64>,
    /// The first seed; drawn if it is not given.
    #[arg(long)]
    from: Option<u64>,
    /// Processes at a time; one a processor if it is not given.
    #[arg(long)]
    jobs: Option<usize>,
}

/// What is wrong with the machines of a run, to see that it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Defect {
    /// Disks say that they have synced what they have not.
    LyingDisks,
    /// A clock runs half as fast again as any clock may.
    WildClock,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Some(seed) = args.seed else {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let extent = match args.minutes {
            Some(minutes) => Extent::Time(Duration::from_secs_f64(60.0 * minutes)),
            None => Extent::Seeds(args.seeds),
        };
        let first = args.from.unwrap_or_else(entropy::unknown);
        let jobs = args.jobs.unwrap_or(processors).max(1);
        return campaign::run(first, extent, jobs, args.defect).into();
    };
    std::thread::spawn(|| {
        std::thread::sleep(HANGS);
        eprintln!("it hangs");
        std::process::exit(3);
    });
    if let Some(filter) = args.log {
        let log = tracing_subscriber::fmt().with_env_filter(filter).without_time();
        log.with_writer(std::io::stderr).init();
    }
    entropy::begin(seed);
    // A thread of its own: what this one has drawn it drew before.
    let run = std::thread::spawn(move || run::run(seed, args.defect, args.trace)).join();
    let report = run.expect("the simulation itself does not panic");
    if let Some(path) = args.history {
        let file = std::fs::File::create(path).expect("the history can be written");
        tenure_jepsen::history::write(&report.events, std::io::BufWriter::new(file))
            .expect("the history can be written");
    }
    println!("{}", report.json());
    ExitCode::from(u8::from(!report.wrong.is_empty()))
}
