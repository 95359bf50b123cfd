//! When which fault: drawn from the seed, one kind after the other so that each has its turn,
//! sometimes two at a time, and always some quiet between.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tenure_jepsen::history::History;
use tokio::time::Instant;

use crate::fleet::Fleet;
use crate::nemesis::{Attempt, Heal, Nemesis, may_overlap};

/// How long a fault lasts, in milliseconds: some shorter than an election, most longer.
const HOLD_MS: std::ops::Range<u64> = 700..5500;
/// Quiet between faults, in milliseconds.
const QUIET_MS: std::ops::Range<u64> = 300..2500;

/// A line of the log of faults.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its kind.
    pub(crate) fault: String,
    /// `installed`, `skipped`, `incomplete`, or `indeterminate`: nobody knows whether it is there.
    pub(crate) outcome: &'static str,
    /// What exactly, or why not.
    pub(crate) what: String,
    /// Nanoseconds of the run.
    pub(crate) from: u64,
    pub(crate) until: Option<u64>,
}

impl Entry {
    pub(crate) fn is_installed(&self) -> bool {
        self.outcome == "installed"
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "fault": self.fault, "outcome": self.outcome, "what": self.what,
            "from": self.from, "until": self.until })
    }
}

/// What the faults of a run came to.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Entry>,
    /// Nodes that ended by themselves.
    pub(crate) ended: Vec<String>,
    /// What the harness could not do or undo: such a run is not valid.
    pub(crate) troubles: Vec<String>,
}

/// A fault that lasts.
struct Lasting {
    entry: usize,
    heal: Heal,
}

/// Does faults for so long.
pub(crate) fn run(
    fleet: &mut Fleet,
    history: &History,
    nemeses: &[Nemesis],
    seed: u64,
    length: Duration,
) -> Log {
    let mut log = Log::default();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut deck: Vec<Nemesis> = Vec::new();
    let started = Instant::now();
    while started.elapsed() < length {
        pause(&mut rng, QUIET_MS, length.saturating_sub(started.elapsed()));
        look(fleet, &mut log);
        if nemeses.is_empty() || started.elapsed() >= length {
            continue;
        }
        if deck.is_empty() {
            deck = nemeses.to_vec();
            deck.shuffle(&mut rng);
        }
        let Some(first) = deck.pop() else { continue };
        let second = deck
            .last()
            .copied()
            .filter(|second| may_overlap(first, *second) && rng.random_range(0..10) < 3);
        if second.is_some() {
            deck.pop();
        }
        let mut lasting = Vec::new();
        for nemesis in [Some(first), second].into_iter().flatten() {
            lasting.extend(install(nemesis, fleet, history, &mut rng, &mut log));
        }
        if !lasting.is_empty() {
            pause(&mut rng, HOLD_MS, length);
        }
        look(fleet, &mut log);
        while let Some(Lasting { entry, heal }) = lasting.pop() {
            if let Err(error) = heal.heal(fleet) {
                log.troubles.push(format!("not healed: {}: {error}", log.entries[entry].fault));
            }
            log.entries[entry].until = Some(history.now());
        }
    }
    log
}

fn pause(rng: &mut StdRng, range: std::ops::Range<u64>, most: Duration) {
    std::thread::sleep(Duration::from_millis(rng.random_range(range)).min(most));
}

fn look(fleet: &mut Fleet, log: &mut Log) {
    match fleet.ended() {
        Ok(ended) => log.ended.extend(ended),
        Err(error) => log.troubles.push(format!("a node cannot be started again: {error}")),
    }
}

fn install(
    nemesis: Nemesis,
    fleet: &mut Fleet,
    history: &History,
    rng: &mut StdRng,
    log: &mut Log,
) -> Option<Lasting> {
    let fault = nemesis.name();
    let from = history.now();
    let (outcome, what, heal) = match nemesis.install(fleet, rng) {
        Ok(Attempt::Installed(what, heal)) => ("installed", what, Some(heal)),
        Ok(Attempt::Skipped(why)) => ("skipped", why, None),
        Ok(Attempt::Incomplete(why)) => ("incomplete", why, None),
        Err(error) => {
            log.troubles.push(format!("{fault}: {error}"));
            ("indeterminate", error.to_string(), None)
        }
    };
    eprintln!("{:8.3} s  {fault} {outcome}: {what}", from as f64 / 1e9);
    let until = heal.is_none().then(|| history.now());
    log.entries.push(Entry { fault, outcome, what, from, until });
    heal.map(|heal| Lasting { entry: log.entries.len() - 1, heal })
}
