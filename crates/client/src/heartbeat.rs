//! Heartbeats of all leases of a client: one task, one timer, one frame for those that are due
//! together.
//!
//! A heartbeat is a single send, so that its moment is known; when it has no answer, the next one
//! follows after a short pause. What it was answered decides ([`Beat::settle`]); what it was not
//! answered decides nothing, until the lease's own deadline passes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_api::frame::{Ask, Decided, Reply};
use tenure_state_machine::limits::BATCH_COMMANDS;
use tenure_state_machine::{Answer, Command, LeaseLost};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::boottime::BootTime;
use crate::client::Retry;
use crate::cluster_time::ClusterTime;
use crate::connection::places_for;
use crate::held::{Held, Lost};
use crate::route::Route;
use crate::send::{Failure, send_late};

/// A heartbeat goes along with another one if it is due so soon: this part of its interval, and
/// at most [`ALONG_MAX`]. Leases that were once sent together stay together.
const ALONG_PART: u32 = 8;
/// See [`ALONG_PART`]. It bounds how far the agenda is looked through.
const ALONG_MAX: Duration = Duration::from_secs(1);

/// Sends heartbeats for leases, and says when one is lost.
#[derive(Debug)]
pub(crate) struct Keeper {
    route: Arc<Route>,
    clock: Arc<dyn BootTime>,
    time: Arc<ClusterTime>,
    send_timeout: Duration,
    retry: Retry,
    wake: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    leases: HashMap<u64, Kept>,
    /// The next moment of each lease at which something is to be done.
    agenda: BTreeSet<(Duration, u64)>,
    last_id: u64,
    /// The task runs, and sleeps until then.
    sleeps_until: Option<Duration>,
}

/// A lease whose heartbeats are sent.
#[derive(Debug)]
struct Kept {
    held: Arc<Held>,
    /// Its place in the agenda.
    moment: Duration,
    /// When the next heartbeat is due; none while one is under way, or none is needed any more.
    next_beat: Option<Duration>,
    /// Heartbeats in a row that had no answer.
    failures: u32,
}

impl State {
    /// Puts a lease where it belongs in the agenda.
    fn plan(&mut self, id: u64, next_beat: Option<Duration>) {
        let Some(kept) = self.leases.get_mut(&id) else { return };
        self.agenda.remove(&(kept.moment, id));
        kept.next_beat = next_beat;
        let deadline = kept.held.deadline();
        kept.moment = next_beat.map_or(deadline, |beat| beat.min(deadline));
        self.agenda.insert((kept.moment, id));
    }

    fn remove(&mut self, id: u64) {
        if let Some(kept) = self.leases.remove(&id) {
            self.agenda.remove(&(kept.moment, id));
        }
    }

    /// Takes the leases whose heartbeats go out at `now` off the agenda, after those whose
    /// deadlines have passed, which are lost.
    fn take_due(&mut self, now: Duration) -> Vec<u64> {
        let passed: Vec<u64> = self.agenda.range(..=(now, u64::MAX)).map(|(_, id)| *id).collect();
        let mut is_due = false;
        for id in passed {
            let Some(kept) = self.leases.get(&id) else { continue };
            if kept.held.deadline() <= now {
                kept.held.lose(Lost::Expired);
                self.remove(id);
            } else {
                is_due |= kept.next_beat.is_some_and(|beat| beat <= now);
            }
        }
        if !is_due {
            return Vec::new();
        }
        let soon = now.saturating_add(ALONG_MAX);
        let goes_along = |id: &u64| {
            let kept = self.leases.get(id)?;
            let along = (kept.held.terms.interval() / ALONG_PART).min(ALONG_MAX);
            (kept.next_beat? <= now.saturating_add(along)).then_some(*id)
        };
        let range = self.agenda.range(..=(soon, u64::MAX));
        let due: Vec<u64> = range.filter_map(|(_, id)| goes_along(id)).collect();
        due.iter().for_each(|id| self.plan(*id, None));
        due
    }
}

impl Keeper {
    pub(crate) fn new(
        route: Arc<Route>,
        clock: Arc<dyn BootTime>,
        time: Arc<ClusterTime>,
        send_timeout: Duration,
        retry: Retry,
    ) -> Arc<Self> {
        let (wake, state) = (Arc::default(), Mutex::default());
        Arc::new(Self { route, clock, time, send_timeout, retry, wake, state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the heartbeats of a lease. Must be called within a runtime, whose end is theirs.
    pub(crate) fn keep(self: &Arc<Self>, held: Arc<Held>) -> u64 {
        let mut state = self.lock();
        state.last_id = state.last_id.wrapping_add(1);
        let id = state.last_id;
        let beat = self.clock.now().saturating_add(held.terms.interval());
        let first = held.deadline().saturating_sub(held.terms.usable() / 2).min(beat);
        state.leases.insert(id, Kept { held, moment: first, next_beat: None, failures: 0 });
        state.plan(id, Some(first));
        let runs = state.sleeps_until;
        if runs.is_none() {
            state.sleeps_until = Some(Duration::ZERO);
        }
        drop(state);
        match runs {
            None => drop(tokio::spawn(run(self.running()))),
            // Most leases end before their first heartbeat: the task need not know of them.
            Some(until) if first < until => self.wake.notify_one(),
            Some(_) => {}
        }
        id
    }

    /// Ends the heartbeats of a lease: none is put together any more.
    pub(crate) fn leave(&self, id: u64) {
        self.lock().remove(id);
    }

    fn running(self: &Arc<Self>) -> Running {
        Running {
            keeper: Arc::downgrade(self),
            clock: Arc::clone(&self.clock),
            wake: Arc::clone(&self.wake),
            has_ended: false,
        }
    }

    /// Does what is to be done now. Gives the moment at which there is more to do; none when there
    /// is nothing left, and no heartbeat under way: then the task has ended.
    fn step(self: &Arc<Self>, beats: &mut JoinSet<()>) -> Option<Duration> {
        let mut state = self.lock();
        let due = state.take_due(self.clock.now());
        let next = match state.agenda.first() {
            Some((moment, _)) => Some(*moment),
            None if beats.is_empty() => None,
            None => Some(Duration::MAX),
        };
        state.sleeps_until = next;
        drop(state);
        for ids in due.chunks(BATCH_COMMANDS) {
            beats.spawn(Arc::clone(self).beat(ids.to_vec()));
        }
        next
    }

    /// Sends one heartbeat for each of these leases, in one frame.
    async fn beat(self: Arc<Self>, ids: Vec<u64>) {
        let (mut patience, mut bytes) = (self.send_timeout, 0);
        for held in ids.iter().filter_map(|id| self.held(*id)) {
            patience = patience.min(held.terms.patience());
            bytes += held.extend().size();
        }
        let mut beat = Beat { keeper: &self, ids, sent: Vec::new(), sent_at: Duration::ZERO };
        let make = || beat.make();
        let reply = send_late(&self.route, places_for(bytes), make, patience).await;
        beat.settle(reply);
    }

    fn held(&self, id: u64) -> Option<Arc<Held>> {
        self.lock().leases.get(&id).map(|kept| Arc::clone(&kept.held))
    }

    /// How long to wait after so many heartbeats in a row had no answer: little, because what is
    /// left of the lease runs on.
    fn pause(&self, failures: u32, held: &Held) -> Duration {
        let doubled = self.retry.pause_min.saturating_mul(1 << failures.min(16));
        let longest = self.retry.pause_max.min(held.terms.lease / 20);
        let pause = doubled.min(longest).max(Duration::from_millis(1));
        pause.mul_f64(rand::random_range(0.5..1.0))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The task finds it gone.
        self.wake.notify_one();
    }
}

/// What the task holds while it sleeps: not the keeper, so that a client that is dropped is gone.
#[derive(Debug)]
struct Running {
    keeper: Weak<Keeper>,
    clock: Arc<dyn BootTime>,
    wake: Arc<Notify>,
    /// By itself. From then on another task may run.
    has_ended: bool,
}

async fn run(mut running: Running) {
    let mut beats = JoinSet::new();
    loop {
        let Some(keeper) = running.keeper.upgrade() else { return };
        let next = keeper.step(&mut beats);
        drop(keeper);
        let Some(next) = next else {
            running.has_ended = true;
            return;
        };
        tokio::select! {
            () = running.clock.sleep_until(next) => {}
            () = running.wake.notified() => {}
            Some(_) = beats.join_next() => {}
        }
    }
}

impl Drop for Running {
    /// Its runtime has ended under it: nobody sends heartbeats any more.
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.upgrade().filter(|_| !self.has_ended) else { return };
        let mut state = keeper.lock();
        state.sleeps_until = None;
        state.leases.drain().for_each(|(_, kept)| kept.held.lose(Lost::Stopped));
        state.agenda.clear();
    }
}

/// One frame of heartbeats.
struct Beat<'a> {
    keeper: &'a Arc<Keeper>,
    ids: Vec<u64>,
    /// The leases in the frame, once it is put together.
    sent: Vec<(u64, Arc<Held>)>,
    /// Just before it left.
    sent_at: Duration,
}

impl Beat<'_> {
    /// Puts the frame together, of the leases that are kept at this moment: right after this it is
    /// in the socket's buffer.
    fn make(&mut self) -> Option<Ask> {
        let state = self.keeper.lock();
        self.sent_at = self.keeper.clock.now();
        for id in &self.ids {
            if let Some(kept) = state.leases.get(id) {
                kept.held.set_beating(true);
                self.sent.push((*id, Arc::clone(&kept.held)));
            }
        }
        drop(state);
        let commands: Vec<Command> = self.sent.iter().map(|(_, held)| held.extend()).collect();
        (!commands.is_empty()).then_some(Ask::Batch(commands))
    }

    fn settle(mut self, reply: Result<Option<Reply>, Failure>) {
        let (mut answers, mut pause) = (Vec::new(), Duration::ZERO);
        match reply {
            Ok(Some(Reply::Batch(batch))) => answers = batch,
            Ok(_) => {}
            Err(failure) => pause = failure.pause,
        }
        if self.sent.is_empty() {
            self.ids.iter().for_each(|id| self.plan(*id, Next::Again, pause));
        }
        let mut answers = answers.into_iter();
        for (id, held) in std::mem::take(&mut self.sent) {
            let next = match answers.next() {
                Some(Ok(Decided { answer, at })) => {
                    self.keeper.time.heard(at, self.sent_at);
                    self.settle_one(&held, answer)
                }
                Some(Err(_)) | None => Next::Again,
            };
            held.set_beating(false);
            self.plan(id, next, pause);
        }
    }

    fn settle_one(&self, held: &Held, answer: Answer) -> Next {
        match answer {
            Answer::Extended { lease_until_ms, .. } => {
                held.extended(self.sent_at, self.keeper.clock.now(), lease_until_ms);
                Next::AfterInterval
            }
            // By the holder itself, whose complete has not been answered yet.
            Answer::LeaseLost(LeaseLost::Completed { current_token })
                if current_token == held.token =>
            {
                Next::Never
            }
            Answer::LeaseLost(lost) => {
                held.lose(Lost::Taken(lost));
                Next::Never
            }
            // The cluster's deadline has passed, in spite of the margin.
            Answer::TooLate => {
                held.lose(Lost::Expired);
                Next::Never
            }
            Answer::Acquired { .. }
            | Answer::Replay(_)
            | Answer::InProgress { .. }
            | Answer::FingerprintMismatch { .. }
            | Answer::Completed(_)
            | Answer::AlreadyComplete(_)
            | Answer::Released
            | Answer::Purged { .. } => Next::Again,
        }
    }

    fn plan(&self, id: u64, next: Next, asked_pause: Duration) {
        let mut state = self.keeper.lock();
        let Some(kept) = state.leases.get_mut(&id) else { return };
        if kept.held.lost().is_some() {
            state.remove(id);
            return;
        }
        let next_beat = match next {
            Next::AfterInterval => {
                kept.failures = 0;
                Some(self.sent_at.saturating_add(kept.held.terms.interval()))
            }
            Next::Again => {
                let pause = self.keeper.pause(kept.failures, &kept.held).max(asked_pause);
                kept.failures = kept.failures.saturating_add(1);
                Some(self.keeper.clock.now().saturating_add(pause))
            }
            Next::Never => None,
        };
        state.plan(id, next_beat);
    }
}

impl Drop for Beat<'_> {
    /// Nothing is left to do unless its task was aborted.
    fn drop(&mut self) {
        self.sent.iter().for_each(|(_, held)| held.set_beating(false));
    }
}

/// When a lease's next heartbeat is due.
enum Next {
    /// It succeeded.
    AfterInterval,
    /// It decided nothing.
    Again,
    /// There is no use in another one.
    Never,
}
