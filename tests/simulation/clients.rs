//! Clients: workers that send single commands over frames to any node, and the operator, who
//! changes who belongs to the cluster.
//!
//! Keys are few at a time, and rotate: after so many sends, or after a few that ended unknown, a
//! key is retired. A process that had an unknown outcome is never heard of again. Some workers
//! give up in the middle of a wait; some show tokens that they should have forgotten long ago, as
//! a client does that was paused.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tenure_api::frame::{Ask, Change, Consistency, Hello, PROTOCOL, Reply, Role, ServerFrame};
use tenure_api::{Refusal, Response};
use tenure_client::{Connection, ConnectionError, DialTimeouts};
use tenure_jepsen::door::command_of;
use tenure_jepsen::history::{Event, Op, Outcome};
use tenure_state_machine::Name;
use tokio::time::{sleep, timeout};

use crate::links::{Links, address};
use crate::trace::Trace;

/// The scope of all records.
pub(crate) const SCOPE: &str = "run";
/// Workers.
const WORKERS: u64 = 6;
/// Keys at a time.
const KEYS: usize = 4;
/// Sends to a key before it is retired, and to the one that lives longer.
const SENDS: u64 = 60;
const LONG_SENDS: u64 = 300;
/// Sends to a key that may end unknown.
const UNKNOWN: u64 = 4;
/// Longest pause of a worker between two sends, in milliseconds.
const PAUSE_MS: u64 = 60;
/// What a client allows for an answer.
const BUDGET: Duration = Duration::from_secs(3);
/// Sends of one final read before it counts as unanswered.
const TRIES: usize = 20;

/// How often which command, in parts of the whole, and for how long.
#[derive(Debug, Clone)]
struct Mix {
    acquire: u32,
    complete: u32,
    release: u32,
    extend: u32,
    get: u32,
    lease_ms: Range<u64>,
    ttl_ms: Range<u64>,
    wait_ms: u64,
}

impl Mix {
    /// One of a few.
    fn draw(rng: &mut StdRng) -> Self {
        let mix = Self {
            acquire: 45,
            complete: 5,
            release: 5,
            extend: 9,
            get: 25,
            lease_ms: 20..600,
            ttl_ms: 100..1500,
            wait_ms: 200,
        };
        match rng.random_range(0..4) {
            0 => Self { release: 30, ttl_ms: 20..600, wait_ms: 50, ..mix },
            1 => Self { acquire: 55, complete: 2, lease_ms: 10..400, wait_ms: 600, ..mix },
            2 => Self { complete: 12, lease_ms: 500..4000, ttl_ms: 2000..9000, ..mix },
            _ => mix,
        }
    }
}

/// A key in use.
#[derive(Debug, Clone, Default)]
struct Slot {
    key: String,
    sends: u64,
    unknown: u64,
    /// The last tokens that an answer showed.
    tokens: Vec<u64>,
    attempt: String,
}

/// All clients of a run, as seen from outside. Clones are the same.
#[derive(Clone)]
pub(crate) struct Clients(Arc<Shared>);

struct Shared {
    trace: Trace,
    links: Links,
    mix: Mix,
    /// Nodes that clients know.
    nodes: Mutex<Vec<u64>>,
    history: Mutex<Vec<Event>>,
    slots: Mutex<Vec<Slot>>,
    keys: AtomicU64,
    processes: AtomicU64,
    /// No more sends of the load.
    stop: AtomicBool,
    /// The last reads may begin.
    finish: AtomicBool,
    /// What the operator is to do, or is doing, and what is done.
    orders: Mutex<VecDeque<Change>>,
    done: Mutex<Vec<(Change, bool)>>,
    wrong: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the run has lasted.
fn elapsed() -> Duration {
    turmoil::sim_elapsed().expect("a client's task runs on a host")
}

fn now_ns() -> u64 {
    u64::try_from(elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Clients {
    pub(crate) fn new(trace: Trace, links: Links, nodes: Vec<u64>, rng: &mut StdRng) -> Self {
        Self(Arc::new(Shared {
            trace,
            links,
            mix: Mix::draw(rng),
            nodes: Mutex::new(nodes),
            history: Mutex::default(),
            slots: Mutex::new(vec![Slot::default(); KEYS]),
            keys: AtomicU64::new(0),
            processes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            orders: Mutex::default(),
            done: Mutex::default(),
            wrong: Mutex::default(),
        }))
    }

    /// From now on the load asks these.
    pub(crate) fn know(&self, nodes: Vec<u64>) {
        if !self.0.finish.load(Ordering::Relaxed) {
            *lock(&self.0.nodes) = nodes;
        }
    }

    /// Ends the load.
    pub(crate) fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// Begins the last reads, which ask these.
    pub(crate) fn finish(&self, nodes: Vec<u64>) {
        self.know(nodes);
        self.0.finish.store(true, Ordering::Relaxed);
    }

    /// Tells the operator to change the cluster.
    pub(crate) fn order(&self, change: Change) {
        lock(&self.0.orders).push_back(change);
    }

    /// Whether the operator has nothing to do: the members stay who they are.
    pub(crate) fn has_followed_orders(&self) -> bool {
        lock(&self.0.orders).is_empty()
    }

    /// What the operator has done since the last look, and whether it was taken.
    pub(crate) fn done(&self) -> Vec<(Change, bool)> {
        std::mem::take(&mut *lock(&self.0.done))
    }

    /// All sends so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        lock(&self.0.history).clone()
    }

    /// What clients found wrong by themselves.
    pub(crate) fn wrong(&self) -> Vec<String> {
        lock(&self.0.wrong).clone()
    }

    /// The life of all clients: the load, then the last reads.
    pub(crate) async fn live(self, seed: u64) -> turmoil::Result {
        let operator = tokio::spawn(operate(Arc::clone(&self.0)));
        let workers = (0..WORKERS).map(|number| {
            tokio::spawn(Worker::new(&self.0, seed.wrapping_mul(1000) + number).run())
        });
        for ended in join_all(workers.collect::<Vec<_>>()).await {
            ended?;
        }
        while !self.0.finish.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(10)).await;
        }
        operator.abort();
        Worker::new(&self.0, seed).read_all().await;
        Ok(())
    }
}

impl Shared {
    async fn dial(&self, node: u64) -> Option<Arc<Connection>> {
        let hello = Hello { protocol: PROTOCOL, cluster_id: None, role: Role::Client };
        let timeouts = DialTimeouts::default();
        let dialled = Connection::dial(&self.links, &address(node), hello, timeouts).await;
        dialled.ok().map(Arc::new)
    }
}

/// Carries out orders one by one, again until each is taken or can never be.
async fn operate(shared: Arc<Shared>) {
    let mut rng = StdRng::seed_from_u64(rand::random());
    loop {
        sleep(Duration::from_millis(20)).await;
        let Some(change) = lock(&shared.orders).front().cloned() else { continue };
        let mut is_taken = None;
        for _ in 0..TRIES {
            let node = *lock(&shared.nodes).choose(&mut rng).expect("there are nodes");
            let Some(connection) = shared.dial(node).await else { continue };
            let answer = connection.call(Ask::Change(change.clone()), BUDGET, false).await;
            match answer.map(|frame| frame.reply) {
                Ok(Ok(_)) => is_taken = Some(true),
                Ok(Err(Refusal::InvalidArgument { reason, .. })) => {
                    shared.trace.note(elapsed().as_millis(), format_args!("refused: {reason}"));
                    is_taken = Some(false);
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if is_taken.is_some() {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        let is_taken = is_taken.unwrap_or(false);
        shared.trace.note(elapsed().as_millis(), format_args!("operator {change:?} {is_taken}"));
        lock(&shared.done).push((change, is_taken));
        lock(&shared.orders).pop_front();
    }
}

struct Worker {
    shared: Arc<Shared>,
    rng: StdRng,
    connections: BTreeMap<u64, Arc<Connection>>,
    process: u64,
    sends: u64,
}

impl Worker {
    fn new(shared: &Arc<Shared>, seed: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            rng: StdRng::seed_from_u64(seed),
            connections: BTreeMap::new(),
            process: shared.processes.fetch_add(1, Ordering::Relaxed),
            sends: 0,
        }
    }

    async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.one().await;
            self.pause().await;
        }
    }

    async fn pause(&mut self) {
        sleep(Duration::from_millis(self.rng.random_range(1..=PAUSE_MS))).await;
    }

    /// Names one send.
    fn mark(&mut self) -> String {
        self.sends += 1;
        format!("p{}-{}", self.process, self.sends)
    }

    /// Reads every key once more, by a read and by a duplicate.
    async fn read_all(mut self) {
        let keys = self.shared.keys.load(Ordering::Relaxed);
        for key in (0..keys).map(|number| format!("key-{number}")) {
            let mut tries = 0;
            while !matches!(self.send(&key, Op::Get, 0).await, Outcome::Answered(_)) {
                tries += 1;
                if tries == TRIES {
                    let wrong = format!("a quiet cluster does not answer a read of {key}");
                    lock(&self.shared.wrong).push(wrong);
                    return;
                }
                self.pause().await;
            }
            let last = self.acquire(format!("last of {key}"), 10..100, 100..200);
            self.send(&key, last, 0).await;
        }
    }

    fn acquire(&mut self, attempt: String, lease_ms: Range<u64>, ttl_ms: Range<u64>) -> Op {
        let lease_ms = self.rng.random_range(lease_ms);
        let ttl_ms = self.rng.random_range(ttl_ms);
        Op::Acquire { attempt, mark: self.mark(), lease_ms, ttl_ms }
    }

    /// A key to send to, and its slot.
    fn slot(&mut self) -> (usize, Slot) {
        let number = self.rng.random_range(0..KEYS);
        let mut slots = lock(&self.shared.slots);
        let slot = &mut slots[number];
        let most = if number == 0 { LONG_SENDS } else { SENDS };
        if slot.key.is_empty() || slot.sends >= most || slot.unknown >= UNKNOWN {
            let next = self.shared.keys.fetch_add(1, Ordering::Relaxed);
            *slot = Slot { key: format!("key-{next}"), ..Slot::default() };
        }
        slot.sends += 1;
        (number, slot.clone())
    }

    /// What an answer showed of a key.
    fn learn(&self, number: usize, key: &str, op: &Op, outcome: &Outcome) {
        let mut slots = lock(&self.shared.slots);
        let Some(slot) = slots.get_mut(number).filter(|slot| slot.key == key) else { return };
        slot.unknown += u64::from(outcome.is_unknown());
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

    /// A random command. Mostly it carries the last token that anybody saw, sometimes an older one.
    async fn one(&mut self) {
        let mix = self.shared.mix.clone();
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
                self.acquire(attempt, mix.lease_ms.clone(), mix.ttl_ms.clone())
            }
        };
        let waits = self.rng.random_range(0..3) == 0;
        let wait_ms = if waits { self.rng.random_range(1..=mix.wait_ms) } else { 0 };
        let outcome = self.send(&slot.key, op.clone(), wait_ms).await;
        self.learn(number, &slot.key, &op, &outcome);
    }

    async fn send(&mut self, key: &str, op: Op, wait_ms: u64) -> Outcome {
        let (started, process) = (now_ns(), self.process);
        let name = Name::new(SCOPE, key).expect("keys are names");
        let ask = match command_of(&op, name.clone()) {
            Some(command) => {
                let wait_ms = if matches!(op, Op::Acquire { .. }) { wait_ms } else { 0 };
                Ask::Command { command, wait_ms }
            }
            None => Ask::Get { name, consistency: Consistency::Linearizable },
        };
        let outcome = self.ask(ask, wait_ms > 0).await;
        if outcome.is_unknown() {
            self.process = self.shared.processes.fetch_add(1, Ordering::Relaxed);
        }
        self.shared
            .trace
            .note(elapsed().as_millis(), format_args!("{process} {key} {} {outcome:?}", op.name()));
        let event = Event {
            process,
            key: key.to_owned(),
            op,
            started,
            ended: now_ns(),
            outcome: outcome.clone(),
        };
        lock(&self.shared.history).push(event);
        outcome
    }

    async fn ask(&mut self, ask: Ask, may_give_up: bool) -> Outcome {
        let node = *lock(&self.shared.nodes).choose(&mut self.rng).expect("there are nodes");
        let open = self.connections.get(&node).filter(|open| !open.is_closed()).cloned();
        let connection = match open {
            Some(open) => open,
            None => match self.shared.dial(node).await {
                Some(connection) => connection,
                None => return Outcome::Refused("not connected".to_owned()),
            },
        };
        let patience = match may_give_up && self.rng.random_range(0..6) == 0 {
            true => Duration::from_millis(self.rng.random_range(1..100)),
            false => BUDGET + BUDGET,
        };
        let called = timeout(patience, connection.call(ask, BUDGET, false)).await;
        let Ok(called) = called else { return Outcome::Unknown("given up".to_owned()) };
        if called.is_ok() {
            self.connections.insert(node, connection);
        } else {
            self.connections.remove(&node);
        }
        concluded(called)
    }
}

fn concluded(called: Result<ServerFrame, ConnectionError>) -> Outcome {
    let answered = |response: Response| {
        Outcome::Answered(serde_json::from_slice(&response.body).expect("a body is JSON"))
    };
    match called.map(|frame| frame.reply) {
        Ok(Ok(Reply::Answer(decided))) => answered(Response::decided(&decided)),
        Ok(Ok(Reply::Record { view, at })) => answered(Response::record(view.as_ref(), at)),
        Ok(Ok(other)) => panic!("answered {other:?}"),
        Ok(Err(refusal @ (Refusal::OutcomeUnknown | Refusal::Internal { .. }))) => {
            // Without its id, which is drawn from the wall clock.
            let is_internal = matches!(refusal, Refusal::Internal { .. });
            Outcome::Unknown(if is_internal { "internal" } else { "unknown" }.to_owned())
        }
        Ok(Err(refusal)) => Outcome::Refused(format!("{refusal:?}")),
        Err(error) if error.is_sent() => Outcome::Unknown(error.to_string()),
        Err(error) => Outcome::Refused(error.to_string()),
    }
}
