//! Load: workers that deliver the same few keys again and again, as duplicates do, and of whom
//! some die, sleep, give up or send heartbeats.
//!
//! A key is delivered `DELIVERIES` times and then retired, so that nothing grows with a run but
//! its history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;

use crate::check::{self, Seen};
use crate::cluster::{Cluster, READY_WITHIN};
use crate::door::{Door, Send};
use crate::history::{Event, History, Op, Outcome, keep};
use crate::sink::Sink;
use crate::{eventually, http};

/// The scope of all records.
pub const SCOPE: &str = "load";
/// How often a key is delivered.
const DELIVERIES: u64 = 6;
/// Keys that are delivered in turn before the next ones are.
const KEYS: u64 = 4;
/// A lease that outlasts every fault: its holder keeps at it until it is done.
const LONG_MS: u64 = 60_000;
/// The lease of a holder that dies or falls asleep.
const SHORT_MS: u64 = 400;
/// Numbers of processes that succeed each other lie so far apart.
const WORKERS_MAX: u64 = 1000;
/// How long records are kept: longer than any run.
const TTL_MS: u64 = 24 * 60 * 60 * 1000;
/// How long an acquire waits for its record.
const WAIT_MS: u64 = 600;
/// Sends of one acquire before a delivery is given up.
const SENDS: usize = 40;
/// Longest pause between two sends: the machine has few cores, and others use them.
const PAUSE_MS: u64 = 8;

/// Workers that run until they are stopped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    history: History,
    sink: Sink,
    stop: AtomicBool,
    deliveries: AtomicU64,
    completions: AtomicU64,
    /// Late writes that the sink accepted though somebody else was done.
    accepted_late: AtomicU64,
    /// Late writes that it refused.
    fenced: AtomicU64,
}

/// What a holder does with its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Its work, and completes.
    Prompt,
    /// Dies before it does anything.
    Dies,
    /// Falls asleep, and wakes up when somebody else is done.
    Sleeps,
    /// Gives the record up.
    GivesUp,
    /// Sends a heartbeat first.
    Extends,
}

impl Way {
    fn draw(rng: &mut StdRng) -> Self {
        match rng.random_range(0..100) {
            0..10 => Self::Dies,
            10..16 => Self::Sleeps,
            16..26 => Self::GivesUp,
            26..36 => Self::Extends,
            _ => Self::Prompt,
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    door: Door,
    rng: StdRng,
    number: u64,
    name: String,
    sends: u64,
}

impl Load {
    /// Starts so many workers; every other one uses the native client.
    #[must_use]
    pub fn start(cluster: &Cluster, workers: u64, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            history: History::default(),
            sink: Sink::default(),
            stop: AtomicBool::new(false),
            deliveries: AtomicU64::new(0),
            completions: AtomicU64::new(0),
            accepted_late: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
        });
        let start = |number: u64| {
            let nodes = cluster.nodes();
            let door =
                if number.is_multiple_of(2) { Door::http(nodes) } else { Door::native(nodes) };
            let worker = Worker {
                shared: Arc::clone(&shared),
                door,
                rng: StdRng::seed_from_u64(seed.wrapping_add(number)),
                number,
                name: format!("w{number}"),
                sends: 0,
            };
            std::thread::spawn(move || worker.run())
        };
        let workers = (0..workers).map(start).collect();
        Self { shared, workers }
    }

    /// Waits until `more` completions have been acknowledged from now on: the cluster goes on.
    ///
    /// # Panics
    /// When it does not.
    pub fn goes_on(&self, more: u64) {
        let wanted = self.shared.completions.load(Ordering::Relaxed) + more;
        eventually("the load goes on", READY_WITHIN, || {
            (self.shared.completions.load(Ordering::Relaxed) >= wanted).then_some(())
        });
    }

    /// Stops the workers, reads every record once more, and checks the whole.
    ///
    /// # Panics
    /// On any violation.
    #[must_use]
    pub fn finish(mut self, cluster: &mut Cluster) -> Seen {
        self.shared.stop.store(true, Ordering::Relaxed);
        let panicked = self.workers.drain(..).filter_map(|worker| worker.join().err()).count();
        assert_eq!(panicked, 0, "workers panicked");
        cluster.wait_ready();
        self.read_everything(cluster);
        let events = self.shared.history.events();
        let mut violations = check::all(&events);
        violations.extend(self.effects(&events));
        violations.extend(states_differ(cluster));
        let seen = check::seen(&events);
        eprintln!(
            "{} sends, {seen:?}, {} late writes fenced",
            events.len(),
            self.shared.fenced.load(Ordering::Relaxed)
        );
        if !violations.is_empty() {
            let kept = keep(&events);
            let first: Vec<_> = violations.iter().take(5).collect();
            panic!("{} violations; history: {}\n{first:#?}", violations.len(), kept.display());
        }
        cluster.assert_sound();
        seen
    }

    /// A duplicate of every key, and a linearizable read: both say what became of it.
    fn read_everything(&self, cluster: &Cluster) {
        let mut reader = Worker {
            shared: Arc::clone(&self.shared),
            door: Door::http(cluster.nodes()),
            rng: StdRng::seed_from_u64(0),
            number: WORKERS_MAX - 1,
            name: "reader".to_owned(),
            sends: 0,
        };
        let deliveries = self.shared.deliveries.load(Ordering::Relaxed);
        let keys: BTreeSet<String> = (0..deliveries).map(key_of).collect();
        for key in keys {
            for op in [Op::Get, reader.acquire_op(&format!("last-{key}"), SHORT_MS)] {
                let outcome = reader.send(&key, op, 0);
                let answered = matches!(outcome, Outcome::Answered(_));
                assert!(answered, "a quiet cluster says {outcome:?}");
            }
        }
    }

    /// One accepted effect for each key that is complete; none or one for others. Late writers
    /// were fenced.
    fn effects(&self, events: &[Event]) -> Vec<String> {
        let accepted = self.shared.sink.accepted();
        let mut found = Vec::new();
        for (key, tokens) in &accepted {
            if tokens.len() > 1 {
                found.push(format!("{key} has several accepted effects: {tokens:?}"));
            }
        }
        let complete = events.iter().filter(|event| match &event.outcome {
            Outcome::Answered(body) => body["state"] == "complete",
            Outcome::Refused(_) | Outcome::Unknown(_) => false,
        });
        for event in complete {
            if !accepted.contains_key(&event.key) {
                found.push(format!("{} is complete, and has no effect", event.key));
            }
        }
        let late = self.shared.accepted_late.load(Ordering::Relaxed);
        if late > 0 {
            found.push(format!("{late} late writes were accepted"));
        }
        found
    }
}

/// Nodes at the same index must have the same state.
fn states_differ(cluster: &Cluster) -> Vec<String> {
    let snapshots = eventually("all nodes are at one index", READY_WITHIN, || {
        let taken = cluster
            .nodes()
            .iter()
            .map(|node| http::post(&node.http, "/v1/cluster/snapshot", &Value::Null).body());
        let taken: Vec<Value> = taken.collect();
        taken.iter().all(|one| one["index"] == taken[0]["index"]).then_some(taken)
    });
    let hashes: BTreeMap<_, _> =
        snapshots.iter().map(|one| (one["hash"].to_string(), one)).collect();
    if hashes.len() == 1 { Vec::new() } else { vec![format!("states differ: {snapshots:?}")] }
}

/// The key of a delivery.
fn key_of(delivery: u64) -> String {
    format!("key-{}", delivery / (DELIVERIES * KEYS) * KEYS + delivery % KEYS)
}

impl Worker {
    fn run(mut self) {
        while !self.stops() {
            let number = self.shared.deliveries.fetch_add(1, Ordering::Relaxed);
            self.deliver(&key_of(number));
        }
    }

    fn stops(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn acquire_op(&mut self, attempt: &str, lease_ms: u64) -> Op {
        Op::Acquire { attempt: attempt.to_owned(), mark: self.mark(), lease_ms, ttl_ms: TTL_MS }
    }

    /// Names one send.
    fn mark(&mut self) -> String {
        self.sends += 1;
        format!("{}-{}", self.name, self.sends)
    }

    fn send(&mut self, key: &str, op: Op, wait_ms: u64) -> Outcome {
        let send = Send { scope: SCOPE, key: key.to_owned(), op: op.clone(), wait_ms };
        let started = self.shared.history.now();
        let outcome = self.door.send(&send, &mut self.rng);
        let ended = self.shared.history.now();
        let process = self.number;
        if outcome.is_unknown() {
            self.number += WORKERS_MAX;
        }
        let event = Event { process, key: send.key, op, started, ended, outcome: outcome.clone() };
        self.shared.history.add(event);
        outcome
    }

    /// The load's own pace.
    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.random_range(1..=PAUSE_MS)));
    }

    /// One delivery of a key, by an attempt of its own.
    fn deliver(&mut self, key: &str) {
        let way = Way::draw(&mut self.rng);
        let short = matches!(way, Way::Dies | Way::Sleeps);
        let lease_ms = if short { SHORT_MS } else { LONG_MS };
        let attempt = format!("{}-{}", self.name, self.sends);
        for _ in 0..SENDS {
            let op = self.acquire_op(&attempt, lease_ms);
            let outcome = self.send(key, op, WAIT_MS);
            self.pause();
            match outcome {
                Outcome::Answered(body) if body["outcome"] == "acquired" => {
                    return self.hold(key, body["token"].as_u64().unwrap(), way);
                }
                Outcome::Answered(body) if body["outcome"] == "replay" => return,
                Outcome::Answered(_) | Outcome::Refused(_) | Outcome::Unknown(_) => {}
            }
        }
    }

    fn hold(&mut self, key: &str, token: u64, way: Way) {
        match way {
            Way::Dies => {}
            Way::Prompt => self.work(key, token),
            Way::Extends => {
                self.send(key, Op::Extend { token, lease_ms: LONG_MS }, 0);
                self.work(key, token);
            }
            Way::GivesUp => {
                for _ in 0..SENDS {
                    let outcome = self.send(key, Op::Release { token }, 0);
                    self.pause();
                    if matches!(outcome, Outcome::Answered(_)) {
                        return;
                    }
                }
            }
            Way::Sleeps => self.sleep_through(key, token),
        }
    }

    /// The effect, then the completion, again and again until its outcome is known.
    fn work(&mut self, key: &str, token: u64) {
        self.shared.sink.write(key, token);
        for _ in 0..10 * SENDS {
            let mark = self.mark();
            let outcome = self.send(key, Op::Complete { token, mark, ttl_ms: None }, 0);
            self.pause();
            if let Outcome::Answered(body) = outcome {
                if body["code"].is_null() {
                    self.shared.completions.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
        }
    }

    /// Wakes up when somebody else has the key, and does not know it: whatever it does then must
    /// be refused, by the cluster at once, and by the sink once the new holder has written.
    fn sleep_through(&mut self, key: &str, token: u64) {
        let mut has_tried = false;
        for _ in 0..10 * SENDS {
            let outcome = self.send(key, Op::Get, 0);
            self.pause();
            if self.stops() {
                return;
            }
            let Outcome::Answered(body) = outcome else { continue };
            let is_anothers = body["token"].as_u64().is_some_and(|current| current != token);
            if is_anothers && !has_tried {
                has_tried = true;
                let mark = self.mark();
                let late = match self.rng.random_range(0..3) {
                    0 => Op::Release { token },
                    1 => Op::Extend { token, lease_ms: LONG_MS },
                    _ => Op::Complete { token, mark, ttl_ms: None },
                };
                self.send(key, late, 0);
            }
            if is_anothers && body["state"] == "complete" {
                let accepted = self.shared.sink.write(key, token);
                let counter =
                    if accepted { &self.shared.accepted_late } else { &self.shared.fenced };
                counter.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}
