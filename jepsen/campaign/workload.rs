//! Workloads: what is sent, to which keys, by whom.
//!
//! Keys are few at a time, and rotate: after so many sends, or after a few that ended unknown, a
//! key is retired and the next one takes its place, so that no checker has to try too much. One
//! key lives longer than the others. A process that had an unknown outcome is never heard of
//! again; the worker goes on as another one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use tenure_jepsen::door::{Door, Send};
use tenure_jepsen::history::{Event, History, Op, Outcome};
use tenure_jepsen::sink::Sink;

use crate::fleet::Endpoints;

mod waiters;

/// The scope of all records.
const SCOPE: &str = "run";
/// Keys at a time.
const KEYS: usize = 4;
/// Sends to a key before it is retired, and to the one that lives longer.
const SENDS: u64 = 100;
const LONG_SENDS: u64 = 1500;
/// Writes to a key that may end unknown, those on their way included: who judges must try each.
const UNKNOWN: u64 = 5;
/// Longest pause of a worker between two sends, in milliseconds.
const PAUSE_MS: u64 = 20;
/// Sends of one command before a delivery is given up.
const TRIES: usize = 40;
/// A lease that outlasts every fault.
const LONG_MS: u64 = 120_000;
/// How long what must not expire is kept.
const HOUR_MS: u64 = 3_600_000;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Every command, at random, on few keys; short leases and ttls.
    Lease,
    /// Duplicates of one delivery: one accepted effect, and every duplicate is handed its result.
    Dedup,
    /// Grants and releases: tokens grow for ever.
    Tokens,
    /// Leases that run out: never stolen before, and soon after.
    Expiry,
    /// Completions that must be there at the end.
    Durability,
    /// As lease, while members and snapshots come and go; states must be equal at equal index.
    Membership,
    /// Holders that sleep through their lease and wake: what they do then is refused.
    Paused,
    /// Waiters that hang up: none of them is granted the record later.
    HangUps,
}

/// How often which command, in parts of the whole, and for how long.
struct Mix {
    acquire: u32,
    complete: u32,
    release: u32,
    extend: u32,
    get: u32,
    lease_ms: std::ops::Range<u64>,
    ttl_ms: std::ops::Range<u64>,
    wait_ms: u64,
}

impl Workload {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn mix(self) -> Option<Mix> {
        let mix = Mix {
            acquire: 45,
            complete: 5,
            release: 5,
            extend: 9,
            get: 25,
            lease_ms: 20..600,
            ttl_ms: 100..1500,
            wait_ms: 200,
        };
        match self {
            Self::Lease | Self::Membership => Some(mix),
            Self::Tokens => Some(Mix { release: 30, ttl_ms: 20..600, wait_ms: 50, ..mix }),
            Self::Expiry => Some(Mix {
                acquire: 55,
                complete: 3,
                release: 3,
                lease_ms: 10..400,
                wait_ms: 600,
                ..mix
            }),
            Self::Dedup | Self::Durability | Self::Paused | Self::HangUps => None,
        }
    }

    /// What a run of at least ten seconds must have seen.
    pub(crate) fn floors(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Lease | Self::Membership => &[
                ("grants", 40),
                ("steals", 3),
                ("expiries", 5),
                ("completions", 5),
                ("replays", 5),
                ("releases", 5),
                ("extensions", 5),
                ("late writes refused", 10),
                ("reads", 50),
            ],
            Self::Tokens => &[("grants", 100), ("releases", 30), ("expiries", 3)],
            Self::Expiry => &[("grants", 40), ("steals", 20)],
            Self::Dedup => &[("completions", 15), ("replays", 30), ("steals", 1)],
            Self::Durability => &[("completions", 40), ("replays", 40)],
            Self::HangUps => &[("hang-ups", 20), ("grants", 10), ("releases", 10)],
            Self::Paused => &[("steals", 5), ("late writes refused", 5), ("effects fenced", 3)],
        }
    }
}

/// A key in use.
#[derive(Debug, Clone, Default)]
struct Slot {
    key: String,
    sends: u64,
    unknown: u64,
    /// Writes on their way.
    writing: u64,
    /// The last tokens that an answer showed.
    tokens: Vec<u64>,
    /// The last attempt.
    attempt: String,
}

#[derive(Debug)]
struct Shared {
    workload: Workload,
    history: Arc<History>,
    endpoints: Endpoints,
    sink: Sink,
    slots: Mutex<Vec<Slot>>,
    stop: AtomicBool,
    keys: AtomicU64,
    processes: AtomicU64,
    acknowledged: AtomicU64,
    /// Late effects that the sink refused, and those that it took though another was done.
    fenced: AtomicU64,
    accepted_late: AtomicU64,
}

/// Workers that run until they are stopped.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What is left of a load.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) violations: Vec<String>,
    pub(crate) effects_fenced: u64,
    pub(crate) effects: u64,
    /// Workers that ended by a defect of the harness.
    pub(crate) lost_workers: usize,
}

impl Load {
    pub(crate) fn start(
        workload: Workload,
        history: Arc<History>,
        endpoints: Endpoints,
        workers: u64,
        seed: u64,
    ) -> Self {
        let shared = Arc::new(Shared {
            workload,
            history,
            endpoints,
            sink: Sink::default(),
            slots: Mutex::new(vec![Slot::default(); KEYS]),
            stop: AtomicBool::new(false),
            keys: AtomicU64::new(0),
            processes: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            accepted_late: AtomicU64::new(0),
        });
        let start = |number: u64| {
            let worker = Worker::new(&shared, seed.wrapping_mul(1000).wrapping_add(number));
            std::thread::spawn(move || worker.run())
        };
        let workers = (0..workers).map(start).collect();
        Self { shared, workers }
    }

    /// Sends that were answered so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops the workers.
    pub(crate) fn stop(&mut self) -> usize {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.workers.drain(..).filter_map(|worker| worker.join().err()).count()
    }

    /// Reads every key once more, by a read and by a duplicate, if the cluster is well, and looks at
    /// the effects.
    pub(crate) fn finish(mut self, is_well: bool) -> Left {
        let mut left = Left { lost_workers: self.stop(), ..Left::default() };
        let mut reader = Worker::new(&self.shared, 0);
        let events = self.shared.history.events();
        let keys: std::collections::BTreeSet<String> =
            events.into_iter().map(|event| event.key).collect();
        for key in keys.into_iter().filter(|_| is_well) {
            let mut was_read = false;
            for _ in 0..TRIES {
                if let Outcome::Answered(body) = reader.send(&key, Op::Get, 0) {
                    was_read = true;
                    left.violations.extend(self.without_effect(&key, &body));
                    break;
                }
                reader.pause();
            }
            if !was_read {
                left.violations.push(format!("a quiet cluster does not answer a read of {key}"));
            }
            let op = reader.acquire(&format!("last of {key}"), 10..100, 100..200);
            reader.send(&key, op, 0);
        }
        let accepted = self.shared.sink.accepted();
        for (key, tokens) in &accepted {
            if tokens.len() > 1 {
                left.violations.push(format!("{key} has several accepted effects: {tokens:?}"));
            }
        }
        let late = self.shared.accepted_late.load(Ordering::Relaxed);
        if late > 0 {
            left.violations.push(format!("{late} late effects were accepted"));
        }
        left.effects = accepted.len() as u64;
        left.effects_fenced = self.shared.fenced.load(Ordering::Relaxed);
        left
    }

    /// A delivery that is complete has had its effect.
    fn without_effect(&self, key: &str, body: &Value) -> Option<String> {
        let delivers = self.shared.workload.mix().is_none();
        let has = self.shared.sink.accepted().contains_key(key);
        (delivers && body["state"] == "complete" && !has)
            .then(|| format!("{key} is complete, and has no effect"))
    }
}

/// What a holder does with its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Works,
    Dies,
    Sleeps,
    GivesUp,
}

struct Worker {
    shared: Arc<Shared>,
    door: Door,
    rng: StdRng,
    process: u64,
    sends: u64,
}

impl Worker {
    fn new(shared: &Arc<Shared>, seed: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            door: Door::http(&[]),
            rng: StdRng::seed_from_u64(seed),
            process: shared.processes.fetch_add(1, Ordering::Relaxed),
            sends: 0,
        }
    }

    fn run(mut self) {
        while !self.stops() {
            match self.shared.workload.mix() {
                Some(mix) => self.one_of(&mix),
                None if self.shared.workload == Workload::HangUps => self.keep_waiting(),
                None => self.deliver(),
            }
            self.pause();
        }
    }

    fn stops(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.random_range(1..=PAUSE_MS)));
    }

    /// Names one send.
    fn mark(&mut self) -> String {
        self.sends += 1;
        format!("p{}-{}", self.process, self.sends)
    }

    fn send(&mut self, key: &str, op: Op, wait_ms: u64) -> Outcome {
        self.send_as(key, op, |door, rng, send| door.send(&Send { wait_ms, ..send }, rng))
    }

    fn send_as(
        &mut self,
        key: &str,
        op: Op,
        how: impl FnOnce(&mut Door, &mut StdRng, Send) -> Outcome,
    ) -> Outcome {
        self.door.follow(&self.shared.endpoints.read().unwrap());
        let send = Send { scope: SCOPE, key: key.to_owned(), op: op.clone(), wait_ms: 0 };
        let started = self.shared.history.now();
        let outcome = how(&mut self.door, &mut self.rng, send);
        let ended = self.shared.history.now();
        let process = self.process;
        let is_answered = matches!(outcome, Outcome::Answered(_));
        self.shared.acknowledged.fetch_add(is_answered.into(), Ordering::Relaxed);
        if outcome.is_unknown() {
            self.process = self.shared.processes.fetch_add(1, Ordering::Relaxed);
        }
        let key = key.to_owned();
        let event = Event { process, key, op, started, ended, outcome: outcome.clone() };
        self.shared.history.add(event);
        outcome
    }

    /// A key to send to, and its slot.
    fn slot(&mut self) -> (usize, Slot) {
        let number = self.rng.random_range(0..KEYS);
        let mut slots = self.shared.slots.lock().unwrap();
        let slot = &mut slots[number];
        let most = if number == 0 { LONG_SENDS } else { SENDS };
        if slot.key.is_empty() || slot.sends >= most || slot.unknown >= UNKNOWN {
            let next = self.shared.keys.fetch_add(1, Ordering::Relaxed);
            *slot = Slot { key: format!("key-{next}"), ..Slot::default() };
        }
        slot.sends += 1;
        (number, slot.clone())
    }

    /// Whether one more write to a key may end unknown; it is then on its way.
    fn may_write(&self, number: usize, key: &str) -> bool {
        let mut slots = self.shared.slots.lock().unwrap();
        let slot = slots.get_mut(number).filter(|slot| slot.key == key);
        let Some(slot) = slot.filter(|slot| slot.unknown + slot.writing < UNKNOWN) else {
            return false;
        };
        slot.writing += 1;
        true
    }

    /// What an answer showed of a key.
    fn learn(&self, number: usize, key: &str, op: &Op, outcome: &Outcome) {
        let mut slots = self.shared.slots.lock().unwrap();
        let Some(slot) = slots.get_mut(number).filter(|slot| slot.key == key) else { return };
        if *op != Op::Get {
            slot.writing -= 1;
            slot.unknown += u64::from(outcome.is_unknown());
        }
        if let Op::Acquire { attempt, .. } = op {
            slot.attempt.clone_from(attempt);
        }
        let token = outcome
            .body()
            .and_then(|body| body["token"].as_u64().or_else(|| body["current_token"].as_u64()));
        if let Some(token) = token.filter(|token| slot.tokens.last() != Some(token)) {
            slot.tokens.push(token);
        }
    }

    fn acquire(
        &mut self,
        attempt: &str,
        lease_ms: std::ops::Range<u64>,
        ttl_ms: std::ops::Range<u64>,
    ) -> Op {
        let lease_ms = self.rng.random_range(lease_ms);
        let ttl_ms = self.rng.random_range(ttl_ms);
        Op::Acquire { attempt: attempt.to_owned(), mark: self.mark(), lease_ms, ttl_ms }
    }

    /// A random command. Mostly it carries the last token that anybody saw, sometimes an older one.
    fn one_of(&mut self, mix: &Mix) {
        let (number, slot) = self.slot();
        let back = if self.rng.random_range(0..4) == 0 { 2 } else { 1 };
        let token = slot.tokens.len().checked_sub(back).map(|place| slot.tokens[place]);
        let all = mix.acquire + mix.complete + mix.release + mix.extend + mix.get;
        let drawn = self.rng.random_range(0..all);
        let complete = mix.acquire + mix.complete;
        let release = complete + mix.release;
        let op = match token {
            Some(token) if (mix.acquire..complete).contains(&drawn) => {
                let given = self.rng.random::<bool>().then_some(mix.ttl_ms.start);
                Op::Complete { token, mark: self.mark(), ttl_ms: given }
            }
            Some(token) if (complete..release).contains(&drawn) => Op::Release { token },
            Some(token) if (release..release + mix.extend).contains(&drawn) => {
                Op::Extend { token, lease_ms: self.rng.random_range(mix.lease_ms.clone()) }
            }
            Some(_) if drawn >= mix.acquire => Op::Get,
            _ => {
                let again = !slot.attempt.is_empty() && self.rng.random_range(0..8) == 0;
                let fresh = format!("attempt {}-{}", self.process, self.sends);
                let attempt = if again { slot.attempt.clone() } else { fresh };
                self.acquire(&attempt, mix.lease_ms.clone(), mix.ttl_ms.clone())
            }
        };
        let op = if op == Op::Get || self.may_write(number, &slot.key) { op } else { Op::Get };
        let waits = self.rng.random_range(0..3) == 0;
        let wait_ms = if waits { self.rng.random_range(1..=mix.wait_ms) } else { 0 };
        let outcome = self.send(&slot.key, op.clone(), wait_ms);
        self.learn(number, &slot.key, &op, &outcome);
    }

    fn way(&mut self) -> Way {
        let drawn = self.rng.random_range(0..100);
        let (dies, sleeps, gives_up) = match self.shared.workload {
            Workload::Durability => (0, 0, 2),
            Workload::Paused => (2, 45, 5),
            Workload::Dedup
            | Workload::Lease
            | Workload::Tokens
            | Workload::Expiry
            | Workload::HangUps
            | Workload::Membership => (8, 6, 8),
        };
        match drawn {
            _ if drawn < dies => Way::Dies,
            _ if drawn < dies + sleeps => Way::Sleeps,
            _ if drawn < dies + sleeps + gives_up => Way::GivesUp,
            _ => Way::Works,
        }
    }

    /// One delivery of the key that all deliver now, by an attempt of its own.
    fn deliver(&mut self) {
        let number = self.shared.keys.fetch_add(1, Ordering::Relaxed);
        // Each key is delivered six times, four keys in turn.
        let key = format!("key-{}", number / 24 * 4 + number % 4);
        let way = self.way();
        let short = matches!(way, Way::Dies | Way::Sleeps);
        let lease_ms = if short { 150..500 } else { LONG_MS..LONG_MS + 1 };
        let attempt = format!("attempt {}-{}", self.process, self.sends);
        let mut unknown = 0;
        for _ in 0..TRIES {
            if self.stops() || unknown >= UNKNOWN {
                return;
            }
            let op = self.acquire(&attempt, lease_ms.clone(), HOUR_MS..HOUR_MS + 1);
            let outcome = self.send(&key, op, 600);
            unknown += u64::from(outcome.is_unknown());
            self.pause();
            let Some(body) = outcome.body() else { continue };
            if body["outcome"] == "replay" {
                return;
            }
            if let (true, Some(token)) = (body["outcome"] == "acquired", body["token"].as_u64()) {
                return self.hold(&key, token, way);
            }
        }
    }

    fn hold(&mut self, key: &str, token: u64, way: Way) {
        match way {
            Way::Dies => {}
            Way::Works => {
                self.shared.sink.write(key, token);
                self.again(key, |worker| Op::Complete { token, mark: worker.mark(), ttl_ms: None });
            }
            Way::GivesUp => self.again(key, |_| Op::Release { token }),
            Way::Sleeps => self.sleep_through(key, token),
        }
    }

    /// The same command until its outcome is known.
    fn again(&mut self, key: &str, mut op: impl FnMut(&mut Self) -> Op) {
        for _ in 0..TRIES {
            let op = op(self);
            let outcome = self.send(key, op, 0);
            self.pause();
            if outcome.body().is_some() {
                return;
            }
        }
    }

    /// Wakes up when somebody else has the key, and does not know it: whatever it does then must be
    /// refused, by the cluster at once, and by the sink once the new holder has written.
    fn sleep_through(&mut self, key: &str, token: u64) {
        let mut has_tried = false;
        for _ in 0..10 * TRIES {
            let outcome = self.send(key, Op::Get, 0);
            self.pause();
            if self.stops() {
                return;
            }
            let Some(body) = outcome.body() else { continue };
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
                let shared = &self.shared;
                let counter = if accepted { &shared.accepted_late } else { &shared.fenced };
                counter.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}
