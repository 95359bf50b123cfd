//! What the leader answers: commands through the log, reads by read index, waits in between.
//!
//! - **Q1** Every answer is judged at the applied clock. If a deadline that decides it lies
//!   between that and the leader's present, a tick is committed first, or the command proposed.
//! - **Q2** A read sees a state that covers a read index taken after it was asked, or an entry of
//!   its own (Raft thesis, section 6.4).
//! - **Q3** [`Local`] says *not leading* only when nothing was proposed, so that the caller may
//!   take the request elsewhere.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_api::frame::{Ask, Decided, Phase, Reply, Waited};
use tenure_api::{Refusal, View};
use tenure_state_machine::seeded::{SeededBug, seeded};
use tenure_state_machine::{
    Acquire, AcquireVerdict, Answer, At, Command, Name, Record, Replay, State, Token,
    judge_acquire, time, visible,
};
use tenure_storage::{Applied, StateStore};
use tokio::time::{Instant, timeout_at};

use crate::budget::overloaded;
use crate::leader_time::{LeaderTime, Present};
use crate::propose::{ProposeError, Proposer};
use crate::read_index::ReadIndex;
use crate::wait::{Place, Waiters};

/// A read of a lease that is further behind the present than this waits for a tick, in
/// milliseconds: else an idle cluster would show a full lease for ever.
const STALE_LEASE_MS: u64 = 100;
/// Most payload bytes in one batch's answer.
const BATCH_REPLAY_BYTES: usize = 8 * 1024 * 1024;

/// The services of a node that leads.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) state: StateStore,
    pub(crate) read_index: ReadIndex,
    pub(crate) time: Arc<LeaderTime>,
    pub(crate) proposer: Proposer,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) disk_full: Arc<AtomicBool>,
}

/// How a command is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the log.
    Log,
    /// By a read after a read index: nothing would change, as far as this node knows.
    Read,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Q3: this node does not lead, and nothing was proposed.
    NotLeading,
    /// Anything else.
    Refused(Refusal),
}

type Answered<T> = Result<T, Unanswered>;

/// A record and what it was read at.
type Seen = (Option<Arc<Record>>, Applied);

impl From<ProposeError> for Unanswered {
    fn from(error: ProposeError) -> Self {
        if error == ProposeError::NotLeader {
            Self::NotLeading
        } else {
            Self::Refused(refused(error))
        }
    }
}

/// What a caller is told who goes nowhere else.
pub(crate) fn refused(error: ProposeError) -> Refusal {
    match error {
        ProposeError::Overloaded => overloaded("too many proposals wait"),
        ProposeError::NotLeader | ProposeError::TooLate => Refusal::NoLeader,
        ProposeError::Unknown => Refusal::OutcomeUnknown,
    }
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::Refused(internal(&error))
    }
}

/// A state that could not be read: the cause goes to the log, its id to the caller.
pub(crate) fn internal(error: &io::Error) -> Refusal {
    let request_id = uuid::Uuid::now_v7().to_string();
    tracing::error!(%error, request_id, "the state could not be read");
    Refusal::Internal { request_id }
}

/// The `at` of a read: it saw everything up to what is applied.
pub(crate) fn read_at(applied: Applied) -> At {
    At { index: applied.index, slot: None, term: applied.term, now_ms: applied.clock_ms }
}

impl Local {
    /// Answers what only a leader can.
    pub(crate) async fn answer(&self, ask: &Ask, deadlines: Deadlines) -> Answered<Reply> {
        match ask {
            Ask::Command { command: Command::Acquire(acquire), .. } => {
                self.acquire(acquire, deadlines).await.map(Reply::Answer)
            }
            Ask::Command { command, .. } => {
                self.propose_one(command.clone(), deadlines.answer).await.map(Reply::Answer)
            }
            // What is rare is boxed, or every request would have room for it.
            Ask::Batch(commands) => Box::pin(self.batch(commands.clone(), deadlines.answer)).await,
            Ask::Get { name, .. } => {
                let (record, applied) = if seeded(SeededBug::GetWithoutReadIndex) {
                    self.state.read(name)?
                } else {
                    Box::pin(self.read(name, deadlines.answer)).await?
                };
                let view = visible(record, applied.clock_ms).map(|record| View::from(&*record));
                Ok(Reply::Record { view, at: read_at(applied) })
            }
            Ask::Wait { name, .. } => {
                let (waited, at) = Box::pin(self.wait(name, deadlines)).await?;
                Ok(Reply::Waited { waited, at })
            }
            // Listings and changes of the membership are not a leader's state.
            Ask::List(_) | Ask::Change(_) => Err(Unanswered::NotLeading),
        }
    }

    async fn propose_one(&self, command: Command, deadline: Instant) -> Answered<Decided> {
        self.check_disk(std::slice::from_ref(&command))?;
        let decided = self.proposer.propose(vec![command], deadline).await?;
        // One command has one answer; without it the outcome is not known.
        decided.into_iter().next().ok_or(Unanswered::Refused(Refusal::OutcomeUnknown))
    }

    async fn batch(&self, commands: Vec<Command>, deadline: Instant) -> Answered<Reply> {
        self.check_disk(&commands)?;
        let decided = self.proposer.propose(commands, deadline).await?;
        let mut left = BATCH_REPLAY_BYTES;
        let results = decided.into_iter().map(|decided| {
            let size = replayed_bytes(&decided.answer);
            if size > left {
                let limit = u64::try_from(BATCH_REPLAY_BYTES).unwrap_or(u64::MAX);
                let size = u64::try_from(size).unwrap_or(u64::MAX);
                return Err(Refusal::PayloadTooLarge { limit, size });
            }
            left -= size;
            Ok(decided)
        });
        Ok(Reply::Batch(results.collect()))
    }

    /// An almost full disk keeps room for what makes room.
    fn check_disk(&self, commands: &[Command]) -> Answered<()> {
        let grows = |command: &Command| match command {
            Command::Acquire(_) | Command::Complete(_) | Command::Extend(_) => true,
            Command::Release(_) | Command::Purge(_) => false,
        };
        if self.disk_full.load(Ordering::Relaxed) && commands.iter().any(grows) {
            return Err(Unanswered::Refused(Refusal::StorageFull));
        }
        Ok(())
    }

    fn present(&self) -> Answered<Present> {
        self.time.present().ok_or(Unanswered::NotLeading)
    }

    /// Returns once this node is known to have led after the call, and its state covers all that
    /// was committed by then (Q2).
    async fn read_index(&self, deadline: Instant) -> Answered<()> {
        self.present()?;
        match timeout_at(deadline, self.read_index.confirm()).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Unanswered::NotLeading),
        }
    }

    /// A linearizable read of a record that is current enough to be judged (Q1).
    async fn read(&self, name: &Name, deadline: Instant) -> Answered<Seen> {
        self.read_index(deadline).await?;
        self.look(name, deadline).await
    }

    /// Looks at the record as applied, after a tick if its answer would depend on one (Q1).
    async fn look(&self, name: &Name, deadline: Instant) -> Answered<Seen> {
        if let Some(seen) = self.glance(name)? {
            return Ok(seen);
        }
        self.proposer.tick(deadline).await.map_err(tick_failed)?;
        Ok(self.state.read(name)?)
    }

    /// The record as applied, unless its answer would depend on a tick (Q1).
    fn glance(&self, name: &Name) -> Answered<Option<Seen>> {
        let (record, applied) = self.state.read(name)?;
        let present = self.present()?;
        let current = !needs_tick(record.as_deref(), applied.clock_ms, present.ms);
        Ok(current.then_some((record, applied)))
    }

    async fn acquire(&self, acquire: &Acquire, deadlines: Deadlines) -> Answered<Decided> {
        let decided = self.try_acquire(acquire, deadlines.answer).await?;
        let refused = matches!(decided.answer, Answer::InProgress { .. });
        match deadlines.wait {
            Some(wait) if refused && seeded(SeededBug::DeadWaiterGranted) => {
                self.wait_without_caller(acquire.clone(), wait, deadlines.answer).await
            }
            Some(wait) if refused => {
                Box::pin(self.wait_to_acquire(acquire, wait, deadlines.answer)).await
            }
            _ => Ok(decided),
        }
    }

    /// How a command is answered, if that takes one step: the disk must have room for the log.
    pub(crate) fn way(&self, command: &Command) -> Option<Way> {
        match command {
            Command::Acquire(acquire) if self.may_settle(acquire).ok()? => Some(Way::Read),
            Command::Acquire(_)
            | Command::Complete(_)
            | Command::Release(_)
            | Command::Extend(_)
            | Command::Purge(_) => {
                self.check_disk(std::slice::from_ref(command)).ok().map(|()| Way::Log)
            }
        }
    }

    /// What a read answers now that a read index was confirmed (Q2), if that is all it takes.
    pub(crate) fn settled_by_read(&self, command: &Command) -> Answered<Option<Decided>> {
        let Command::Acquire(acquire) = command else { return Ok(None) };
        match self.glance(&acquire.name)? {
            Some(seen) => self.settled(acquire, &seen),
            None => Ok(None),
        }
    }

    /// Whether nothing would change, as far as this node knows.
    fn may_settle(&self, acquire: &Acquire) -> io::Result<bool> {
        let (record, applied) = self.state.read(&acquire.name)?;
        let verdict = judge_acquire(record.as_deref(), applied.clock_ms, acquire);
        Ok(matches!(verdict, AcquireVerdict::Settled(_)))
    }

    /// One pass: a read if nothing would change, else through the log.
    async fn try_acquire(&self, acquire: &Acquire, deadline: Instant) -> Answered<Decided> {
        if self.may_settle(acquire)? {
            let seen = Box::pin(self.read(&acquire.name, deadline)).await?;
            if let Some(decided) = self.settled(acquire, &seen)? {
                return Ok(decided);
            }
        }
        self.propose_one(Command::Acquire(acquire.clone()), deadline).await
    }

    /// The answer that a read may give: nothing would change, now or by the present (Q1).
    fn settled(&self, acquire: &Acquire, (record, applied): &Seen) -> Answered<Option<Decided>> {
        let present = self.present()?;
        let clock_ms = applied.clock_ms;
        let late = |clock_ms| time::is_too_late(acquire.not_after_ms, clock_ms);
        let turns = late(present.ms) != late(clock_ms)
            || record.as_ref().is_some_and(|record| record.turns_between(clock_ms, present.ms));
        Ok(match judge_acquire(record.as_deref(), clock_ms, acquire) {
            AcquireVerdict::Settled(answer) if !turns => {
                Some(Decided { answer, at: read_at(*applied) })
            }
            AcquireVerdict::Settled(_) | AcquireVerdict::Grant(_) | AcquireVerdict::Resume => None,
        })
    }

    /// Waits for the record to become free or COMPLETE, in order of arrival. A pass that was
    /// linearizable came before (W1), so from here on any applied state may answer.
    async fn wait_to_acquire(
        &self,
        acquire: &Acquire,
        wait: Instant,
        deadline: Instant,
    ) -> Answered<Decided> {
        let queued = self.waiters.queue_up(&acquire.name, &acquire.attempt);
        let place = queued
            .map_err(|_| Unanswered::Refused(overloaded("the node has all waiters it may have")))?;
        loop {
            let over = Instant::now() >= wait || place.is_superseded();
            let seen = if over {
                self.look(&acquire.name, deadline).await?
            } else {
                self.state.read(&acquire.name)?
            };
            match self.settled(acquire, &seen)? {
                Some(Decided { answer: Answer::InProgress { .. }, .. }) if !over => {}
                Some(decided) => {
                    if let Some(token) = completed_by(seen.0.as_deref()) {
                        place.share(token);
                    }
                    return Ok(decided);
                }
                None if over || place.is_front() || holds(seen.0.as_deref(), acquire) => {
                    let command = Command::Acquire(acquire.clone());
                    let decided = self.propose_one(command, deadline).await?;
                    if over || !matches!(decided.answer, Answer::InProgress { .. }) {
                        return Ok(decided);
                    }
                }
                None => {}
            }
            self.sleep(&place, place.is_front(), seen.0.as_deref(), wait).await;
        }
    }

    /// Bug 21: goes on when nobody waits for its answer any more.
    async fn wait_without_caller(
        &self,
        acquire: Acquire,
        wait: Instant,
        deadline: Instant,
    ) -> Answered<Decided> {
        let local = self.clone();
        let waits = async move { local.wait_to_acquire(&acquire, wait, deadline).await };
        let waited = tokio::spawn(waits).await;
        waited.unwrap_or(Err(Unanswered::Refused(Refusal::OutcomeUnknown)))
    }

    /// Observes a record until it is COMPLETE, absent or without a live lease.
    async fn wait(&self, name: &Name, deadlines: Deadlines) -> Answered<(Waited, At)> {
        let until = deadlines.wait.unwrap_or_else(Instant::now);
        self.read_index(deadlines.answer).await?;
        let place = self
            .waiters
            .watch(name)
            .map_err(|_| Unanswered::Refused(overloaded("the node has all waiters it may have")))?;
        // W1: looked at after it is registered, so that no change falls in between.
        let (mut record, mut applied) = self.look(name, deadlines.answer).await?;
        loop {
            let now_ms = applied.clock_ms;
            let over = Instant::now() >= until;
            let waited = match visible(record.as_deref(), now_ms).map(|r| (r.token, &r.state)) {
                None => Some(Waited::Absent),
                Some((token, State::Complete { completed_ms, expires_ms, payload })) => {
                    Some(Waited::Complete(Replay {
                        token,
                        payload: payload.clone(),
                        completed_ms: *completed_ms,
                        expires_ms: *expires_ms,
                    }))
                }
                Some((_, State::InProgress { lease_until_ms, .. })) => {
                    let retry_after_ms = time::left(*lease_until_ms, now_ms);
                    if retry_after_ms == 0 {
                        Some(Waited::LeaseExpired)
                    } else {
                        over.then_some(Waited::TimedOut { retry_after_ms })
                    }
                }
            };
            if let Some(waited) = waited {
                return Ok((waited, read_at(applied)));
            }
            self.sleep(&place, true, record.as_deref(), until).await;
            (record, applied) = self.look(name, deadlines.answer).await?;
        }
    }

    /// Until there may be something to see: a change, the end of the lease for whom that counts,
    /// or the end of the wait.
    async fn sleep(&self, place: &Place, timed: bool, record: Option<&Record>, until: Instant) {
        let lease = async {
            match record.map(|record| &record.state) {
                Some(State::InProgress { lease_until_ms, .. }) if timed => {
                    self.time.sleep_until_ms(*lease_until_ms).await;
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = place.woken() => {}
            () = lease => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

/// Q1, and the freshness of a lease that is shown.
fn needs_tick(record: Option<&Record>, clock_ms: u64, present_ms: u64) -> bool {
    let Some(record) = record else { return false };
    let shows_lease = matches!(record.state, State::InProgress { .. });
    record.turns_between(clock_ms, present_ms)
        || shows_lease && present_ms.saturating_sub(clock_ms) > STALE_LEASE_MS
}

/// The token of a COMPLETE record.
fn completed_by(record: Option<&Record>) -> Option<Token> {
    record.filter(|record| Phase::of(record) == Phase::Complete).map(|record| record.token)
}

/// Whether the record is held by the attempt that asks: it need not wait for its turn.
fn holds(record: Option<&Record>, acquire: &Acquire) -> bool {
    record.is_some_and(|record| match &record.state {
        State::InProgress { attempt, .. } => *attempt == acquire.attempt,
        State::Complete { .. } => false,
    })
}

/// A tick changes no record: without it the read was not answered, and nothing is unknown.
fn tick_failed(error: ProposeError) -> Unanswered {
    match error {
        ProposeError::NotLeader | ProposeError::Unknown => Unanswered::NotLeading,
        ProposeError::Overloaded | ProposeError::TooLate => error.into(),
    }
}

fn replayed_bytes(answer: &Answer) -> usize {
    let Answer::Replay(Replay { payload: Some(payload), .. }) = answer else { return 0 };
    payload.size()
}

/// When a request must be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    /// The end of the wait, if it waits.
    pub(crate) wait: Option<Instant>,
    /// The end of everything.
    pub(crate) answer: Instant,
}

impl Deadlines {
    /// A request that may wait so long, within what its sender and this node allow.
    pub(crate) fn new(wait_ms: u64, budget: Duration, limit: Duration) -> Self {
        let now = Instant::now();
        let wait = Duration::from_millis(wait_ms);
        Self {
            wait: (wait_ms > 0).then(|| now + wait.min(budget)),
            answer: now + (wait + limit).min(budget),
        }
    }
}
