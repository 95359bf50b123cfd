//! One run: a cluster, its clients and its nemesis under one seed, and what it comes to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tenure_api::NodeRole;
use tenure_jepsen::history::Event;
use tenure_jepsen::verify::{self, floors};
use tenure_network::{Admission, Config};
use turmoil::Sim;

use crate::Defect;
use crate::clients::Clients;
use crate::links::{CLIENTS, LATENCY, Links, host};
use crate::nemesis::Nemesis;
use crate::seat::{Seat, member};
use crate::trace::Trace;
use crate::witness::Witness;

/// How long there are load and faults.
const LOAD: Duration = Duration::from_secs(10);
/// How long a healed cluster may take until all nodes are as one, and how long it then may take to
/// answer every key.
const SETTLE: Duration = Duration::from_secs(15);
const READ: Duration = Duration::from_secs(20);
/// Clocks run too fast or too slow by this part at most.
const DRIFT: f64 = 0.05;
/// What no clock does.
const WILD: f64 = 1.5;

/// What is said of a run.
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) wrong: Vec<String>,
    pub(crate) events: Vec<Event>,
    trace: String,
    seen: Value,
    faults: BTreeMap<&'static str, u64>,
    sim_ms: u64,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        json!({ "seed": self.seed, "trace": self.trace, "seen": self.seen, "faults": self.faults,
            "sim_ms": self.sim_ms, "wrong": self.wrong })
    }
}

/// Panics of any task, which tokio would keep to itself.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Run {
    sim: Sim<'static>,
    trace: Trace,
    clients: Clients,
    nemesis: Nemesis,
    witness: Witness,
    wrong: Vec<String>,
    is_over: bool,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, defect: Option<Defect>, shows: bool) -> Report {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
    }));
    let mut run = Run::new(seed, defect, shows);
    run.load();
    run.settle();
    run.read();
    run.judge(seed)
}

fn config(rng: &mut StdRng) -> Config {
    Config {
        heartbeat: Duration::from_millis(50),
        election_min: Duration::from_millis(250),
        election_max: Duration::from_millis(500),
        purge_interval: Duration::from_millis(rng.random_range(50..400)),
        snapshot_entries: rng.random_range(10..120),
        request_timeout: Duration::from_millis(rng.random_range(500..3000)),
        ..Config::default()
    }
}

impl Run {
    fn new(seed: u64, defect: Option<Defect>, shows: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut sim = turmoil::Builder::new();
        sim.rng_seed(seed)
            .simulation_duration(Duration::from_secs(3600))
            .tick_duration(Duration::from_millis(1))
            .min_message_latency(*LATENCY.start())
            .max_message_latency(*LATENCY.end())
            .tcp_capacity(4096)
            .enable_random_order();
        let mut sim = sim.build();
        let trace = Trace::new(shows);
        let config = config(&mut rng);
        let ids: Vec<u64> = (1..=if rng.random_range(0..4) == 0 { 5 } else { 3 }).collect();
        let first: BTreeMap<_, _> = ids.iter().map(|id| (*id, member(*id))).collect();
        let drift = if rng.random() { DRIFT } else { 0.0 };
        let (links, mut seats) = (Links::default(), BTreeMap::new());
        for id in &ids {
            let is_wild = defect == Some(Defect::WildClock) && *id == 1;
            let speed = if is_wild { WILD } else { 1.0 + drift * rng.random_range(-1.0..1.0) };
            let admission = Admission::Bootstrap(first.clone());
            let seat = Arc::new(Seat::new(*id, speed, &config, &links, admission));
            seat.disk.lie_about_syncs(defect == Some(Defect::LyingDisks));
            seats.insert(*id, Arc::clone(&seat));
            sim.host(host(*id), move || Arc::clone(&seat).live());
        }
        let clients = Clients::new(trace.clone(), links.clone(), ids, &mut rng);
        sim.client(CLIENTS, clients.clone().live(rng.random()));
        let nemesis = Nemesis::new(seats, config, links, trace.clone(), rng.random());
        let witness = Witness::new(1.0 + DRIFT);
        Self { sim, trace, clients, nemesis, witness, wrong: Vec::new(), is_over: false }
    }

    /// One step of everything; says whether the run may go on.
    fn step(&mut self) -> bool {
        match self.sim.step() {
            Ok(is_over) => self.is_over = is_over,
            Err(error) => self.wrong.push(format!("a host failed: {error}")),
        }
        let elapsed = self.sim.elapsed();
        self.witness.step(&self.nemesis.seats, elapsed);
        for news in std::mem::take(&mut self.witness.news) {
            self.note(&news);
        }
        let found = self.nemesis.tend(&mut self.sim, &self.clients, &mut self.witness);
        self.wrong.extend(found);
        self.wrong.append(&mut PANICS.lock().unwrap_or_else(PoisonError::into_inner));
        self.wrong.append(&mut self.witness.wrong);
        self.wrong.is_empty()
    }

    fn note(&self, event: &str) {
        self.trace.note(self.sim.elapsed().as_millis(), event);
    }

    fn load(&mut self) {
        while self.sim.elapsed() < LOAD && self.step() {
            self.nemesis.step(&mut self.sim, &self.clients, &mut self.witness);
        }
        self.nemesis.heal(&mut self.sim);
        self.clients.stop();
        self.note("healed");
    }

    /// Until all members are as one, and stay so. The last reads ask only them: whoever is no member
    /// yet, or no more, has no leader.
    fn settle(&mut self) {
        let mut until = self.sim.elapsed() + SETTLE;
        let members = loop {
            if !self.wrong.is_empty() {
                return;
            }
            if !self.clients.has_followed_orders() {
                until = self.sim.elapsed() + SETTLE;
            } else if let Some(members) = self.settled() {
                break members;
            }
            if self.sim.elapsed() >= until {
                let statuses = self.statuses();
                self.wrong.push(format!("not settled {SETTLE:?} after all was healed: {statuses}"));
            }
            self.step();
            // A disk may have failed in the moment in which it was healed.
            self.nemesis.heal(&mut self.sim);
        };
        self.note("settled");
        self.clients.finish(members);
    }

    /// The members, when all are as one.
    fn settled(&self) -> Option<Vec<u64>> {
        let seats = &self.nemesis.seats;
        let running = |id: &u64| seats.get(id)?.running()?.node.upgrade();
        let statuses: Vec<_> = seats.keys().filter_map(running).map(|node| node.status()).collect();
        let leaders = statuses.iter().filter(|status| status.role == NodeRole::Leader);
        let leader = leaders.max_by_key(|status| status.term)?;
        let members = leader.members.iter().map(|member| member.id);
        let members: Vec<u64> = members.filter(|id| !self.nemesis.is_lost(*id)).collect();
        let are_as_one = members.iter().all(|id| {
            let status = statuses.iter().find(|status| status.id == *id);
            status.is_some_and(|s| s.applied_index == leader.last_index && s.term == leader.term)
        });
        are_as_one.then_some(members)
    }

    fn statuses(&self) -> String {
        let seats = self.nemesis.seats.iter();
        let status = |(id, seat): (&u64, &Arc<Seat>)| {
            let node = seat.running().and_then(|running| running.node.upgrade());
            let status = node.map(|node| node.status());
            format!("{id}: {:?}", status.map(|s| (s.role, s.term, s.last_index, s.applied_index)))
        };
        seats.map(status).collect::<Vec<_>>().join(", ")
    }

    /// The last reads, and whatever is still on its way.
    fn read(&mut self) {
        let until = self.sim.elapsed() + READ;
        while !self.is_over && self.step() {
            if self.sim.elapsed() >= until {
                self.wrong.push(format!("not every key was read {READ:?} after all was settled"));
            }
        }
        for (id, seat) in &self.nemesis.seats {
            if let Some(running) = seat.running() {
                self.witness.check_all(*id, &running.state);
            }
        }
    }

    fn judge(mut self, seed: u64) -> Report {
        let events = self.clients.events();
        let mut seen = floors::seen(&events);
        if self.wrong.is_empty() {
            self.witness.check_history(&events);
            let judgement = verify::judge(&events);
            let found = judgement.violations.iter().map(|violation| {
                format!("{} ({}): {}", violation.kind.name(), violation.checker, violation.text)
            });
            self.wrong.extend(found);
            // A checker that gives up has found nothing.
            seen.count("undecided", judgement.undecided.len() as u64);
        }
        self.wrong.append(&mut self.witness.wrong);
        self.wrong.extend(self.clients.wrong());
        self.witness.seen.count("entries", self.witness.committed() as u64);
        let mut all = seen.json();
        if let (Value::Object(all), Value::Object(more)) = (&mut all, self.witness.seen.json()) {
            all.extend(more);
        }
        for wrong in &self.wrong {
            self.note(&format!("WRONG {wrong}"));
        }
        let sim_ms = u64::try_from(self.sim.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (trace, faults) = (self.trace.hash(), self.nemesis.installed.clone());
        Report { seed, wrong: self.wrong, events, trace, seen: all, faults, sim_ms }
    }
}
