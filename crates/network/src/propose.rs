//! The one door to the log: stamps, batches, proposes, and alone decides refused or unknown.
//!
//! - **P1** A stamp is this leader's present in the term that the proposal is bound to; openraft
//!   refuses it under any other leader.
//! - **P2** *Refused* is said only of what was never handed to openraft, or what openraft refused
//!   before it appended. Everything else that has no answer is *unknown*.
//! - **P3** What nobody waits for any more is dropped before it is proposed.
//! - **P4** Order of arrival is order of slots; a proposal is never split over two entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::vote::leader_id_std::CommittedLeaderId;
use tenure_api::frame::Decided;
use tenure_state_machine::limits::ENTRY_BYTES;
use tenure_state_machine::{Answers, At, Command, Entry};
use tenure_storage::{LogId, Raft, TypeConfig};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::flow::{COMMAND_WEIGHT, Flow};
use crate::leader_time::LeaderTime;
use crate::metrics::Metrics;

/// Proposals that may wait; more are refused as overload. At 20 000 a second it is half a second.
const QUEUE: usize = 10_000;
/// Why a proposal has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProposeError {
    /// Refused: this node does not lead, or not yet. Nothing was proposed.
    #[error("this node does not lead")]
    NotLeader,
    /// Refused: too many proposals wait. Nothing was proposed.
    #[error("too many proposals wait")]
    Overloaded,
    /// It was not proposed in time, and will not be.
    #[error("not proposed in time")]
    TooLate,
    /// It may have committed, or still will.
    #[error("the outcome is unknown")]
    Unknown,
}

/// Who waits for a proposal.
pub(crate) trait Asker: Send + Sync {
    /// P3: whether somebody still waits. From here on the proposal may commit, and an asker that
    /// gives up must say so.
    fn claim(&self) -> bool;
    /// Called once: what was decided, one of each command, or why there is nothing. Not called when
    /// the runtime ends.
    fn answer(self: Box<Self>, outcome: Result<Vec<Decided>, ProposeError>, commands: &[Command]);
}

/// Hands commands to the proposer's task.
#[derive(Debug, Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Proposal>,
    flow: Arc<Flow>,
}

/// Commands that go into one entry together; none for a tick.
struct Proposal {
    commands: Vec<Command>,
    /// Its part of an entry, of [`ENTRY_BYTES`].
    weight: usize,
    asker: Box<dyn Asker>,
}

/// The asker that is a future.
struct Call {
    stage: Arc<AtomicU8>,
    reply: oneshot::Sender<Result<Vec<Decided>, ProposeError>>,
}

const QUEUED: u8 = 0;
const PROPOSED: u8 = 1;
const WITHDRAWN: u8 = 2;

impl Asker for Call {
    fn claim(&self) -> bool {
        !self.reply.is_closed()
            && self
                .stage
                .compare_exchange(QUEUED, PROPOSED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    fn answer(self: Box<Self>, outcome: Result<Vec<Decided>, ProposeError>, _: &[Command]) {
        // Who does not wait any more has said so.
        drop(self.reply.send(outcome));
    }
}

impl Proposer {
    /// Starts the task. It ends when the last handle is dropped.
    pub(crate) fn start(raft: Raft, time: Arc<LeaderTime>, metrics: Arc<Metrics>) -> Self {
        let (queue, proposals) = mpsc::channel(QUEUE);
        let flow = Arc::new(Flow::default());
        let task = Task { raft, time, metrics, proposals, flow: Arc::clone(&flow), held: None };
        tokio::spawn(task.run());
        Self { queue, flow }
    }

    /// Proposes commands that share an entry. The asker learns what comes of them; at once, when
    /// that is nothing.
    pub(crate) fn submit(&self, commands: Vec<Command>, asker: Box<dyn Asker>) {
        let bytes: usize = commands.iter().map(Command::size).sum();
        let weight = bytes.max(commands.len() * COMMAND_WEIGHT);
        self.flow.arrive(weight);
        let Err(error) = self.queue.try_send(Proposal { commands, weight, asker }) else { return };
        self.flow.leave(weight);
        let (proposal, why) = match error {
            TrySendError::Full(proposal) => (proposal, ProposeError::Overloaded),
            TrySendError::Closed(proposal) => (proposal, ProposeError::NotLeader),
        };
        proposal.asker.answer(Err(why), &proposal.commands);
    }

    /// Proposes commands that share an entry and waits until they are applied.
    pub(crate) async fn propose(
        &self,
        commands: Vec<Command>,
        deadline: Instant,
    ) -> Result<Vec<Decided>, ProposeError> {
        let (reply, answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(QUEUED));
        self.submit(commands, Box::new(Call { stage: Arc::clone(&stage), reply }));
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(after_silence(&stage, ProposeError::NotLeader)),
            Err(_) => Err(after_silence(&stage, ProposeError::TooLate)),
        }
    }

    /// Moves the cluster clock to the present; ticks that wait together share one entry.
    pub(crate) async fn tick(&self, deadline: Instant) -> Result<(), ProposeError> {
        self.propose(Vec::new(), deadline).await.map(|_| ())
    }
}

/// P2: without an answer, only what was withdrawn in time is certain.
fn after_silence(stage: &AtomicU8, withdrawn: ProposeError) -> ProposeError {
    match stage.compare_exchange(QUEUED, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) | Err(WITHDRAWN) => withdrawn,
        Err(_) => ProposeError::Unknown,
    }
}

struct Task {
    raft: Raft,
    time: Arc<LeaderTime>,
    metrics: Arc<Metrics>,
    proposals: mpsc::Receiver<Proposal>,
    flow: Arc<Flow>,
    /// Did not fit into the entry before.
    held: Option<Proposal>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let first = match self.held.take() {
                Some(held) => held,
                None => match self.proposals.recv().await {
                    Some(first) => first,
                    None => return,
                },
            };
            self.flow.ready().await;
            let batch = self.gather(first);
            if !batch.askers.0.is_empty() {
                self.propose(batch).await;
            }
        }
    }

    /// Drains what has arrived into one entry's worth (P4).
    fn gather(&mut self, first: Proposal) -> Batch {
        let mut batch = Batch::default();
        let mut next = Some(first);
        while let Some(proposal) = next.take() {
            if !batch.fits(&proposal) {
                self.held = Some(proposal);
                break;
            }
            self.flow.leave(proposal.weight);
            if proposal.asker.claim() {
                batch.push(proposal);
            }
            next = self.proposals.try_recv().ok();
        }
        batch
    }

    async fn propose(&self, batch: Batch) {
        // P1.
        let Some(present) = self.time.present() else {
            return batch.askers.refuse(ProposeError::NotLeader, &batch.commands);
        };
        let weight = batch.weight;
        self.metrics.entry_proposed(batch.commands.len());
        let entry = Arc::new(Entry { stamp_ms: present.ms, commands: batch.commands });
        let (responder, answer) = ProgressResponder::complete_only();
        let leader = CommittedLeaderId::new(present.term);
        self.flow.depart();
        let proposed = Arc::clone(&entry);
        let handed = self.raft.write(entry).with_leader(leader).responder(responder).await;
        let askers = batch.askers;
        if handed.is_err() {
            self.flow.land(weight);
            return askers.refuse(ProposeError::Unknown, &proposed.commands);
        }
        let flow = Arc::clone(&self.flow);
        tokio::spawn(async move {
            let result: Option<ClientWriteResult<TypeConfig>> = answer.await.ok();
            flow.land(weight);
            askers.distribute(result, &proposed.commands);
        });
    }
}

/// One entry's worth of commands, and who waits for their answers.
#[derive(Default)]
struct Batch {
    commands: Vec<Command>,
    weight: usize,
    askers: Askers,
}

/// Each with the number of commands that it waits for.
#[derive(Default)]
struct Askers(Vec<(usize, Box<dyn Asker>)>);

impl Batch {
    fn fits(&self, proposal: &Proposal) -> bool {
        self.askers.0.is_empty() || self.weight + proposal.weight <= ENTRY_BYTES
    }

    fn push(&mut self, proposal: Proposal) {
        self.weight += proposal.weight;
        self.askers.0.push((proposal.commands.len(), proposal.asker));
        self.commands.extend(proposal.commands);
    }
}

impl Askers {
    /// P2.
    fn distribute(self, result: Option<ClientWriteResult<TypeConfig>>, commands: &[Command]) {
        match result {
            Some(Ok(response)) => self.answer(response.log_id, response.data, commands),
            Some(Err(ClientWriteError::ForwardToLeader(_))) => {
                self.refuse(ProposeError::NotLeader, commands);
            }
            // Discarded by a new leader, which may have it all the same; or Raft has stopped.
            Some(Err(_)) | None => self.refuse(ProposeError::Unknown, commands),
        }
    }

    fn answer(self, log_id: LogId, answers: Answers, commands: &[Command]) {
        let (index, term) = (log_id.index, log_id.committed_leader_id().term);
        let mut slots = (0_u32..).zip(answers.answers);
        self.each(commands, |count| {
            let decided = slots.by_ref().take(count).map(|(slot, answer)| {
                let at = At { index, slot: Some(slot), term, now_ms: answers.now_ms };
                Decided { answer, at }
            });
            Ok(decided.collect())
        });
    }

    fn refuse(self, error: ProposeError, commands: &[Command]) {
        self.each(commands, |_| Err(error));
    }

    /// Tells each asker the outcome of its commands.
    fn each(
        self,
        mut commands: &[Command],
        mut outcome: impl FnMut(usize) -> Result<Vec<Decided>, ProposeError>,
    ) {
        for (count, asker) in self.0 {
            let (its, rest) = commands.split_at_checked(count).unwrap_or_default();
            commands = rest;
            asker.answer(outcome(count), its);
        }
    }
}
