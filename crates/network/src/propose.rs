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

/// Hands commands to the proposer's task.
#[derive(Debug, Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Proposal>,
    flow: Arc<Flow>,
}

/// Commands that go into one entry together; none for a tick.
#[derive(Debug)]
struct Proposal {
    commands: Vec<Command>,
    /// Its part of an entry, of [`ENTRY_BYTES`].
    weight: usize,
    stage: Arc<AtomicU8>,
    reply: Reply,
}

type Reply = oneshot::Sender<Result<Vec<Decided>, ProposeError>>;

const QUEUED: u8 = 0;
const PROPOSED: u8 = 1;
const WITHDRAWN: u8 = 2;

impl Proposal {
    fn new(commands: Vec<Command>, stage: Arc<AtomicU8>, reply: Reply) -> Self {
        let bytes: usize = commands.iter().map(Command::size).sum();
        let weight = bytes.max(commands.len() * COMMAND_WEIGHT);
        Self { commands, weight, stage, reply }
    }

    /// P3: claims the proposal for an entry, unless nobody waits for it.
    fn claim(&self) -> bool {
        !self.reply.is_closed()
            && self
                .stage
                .compare_exchange(QUEUED, PROPOSED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
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

    /// Proposes commands that share an entry and waits until they are applied.
    pub(crate) async fn propose(
        &self,
        commands: Vec<Command>,
        deadline: Instant,
    ) -> Result<Vec<Decided>, ProposeError> {
        let (reply, answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(QUEUED));
        let proposal = Proposal::new(commands, Arc::clone(&stage), reply);
        let weight = proposal.weight;
        self.flow.arrive(weight);
        self.queue.try_send(proposal).map_err(|error| {
            self.flow.leave(weight);
            match error {
                mpsc::error::TrySendError::Full(_) => ProposeError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => ProposeError::NotLeader,
            }
        })?;
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
            if !batch.replies.0.is_empty() {
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
            if proposal.claim() {
                batch.push(proposal);
            }
            next = self.proposals.try_recv().ok();
        }
        batch
    }

    async fn propose(&self, batch: Batch) {
        // P1.
        let Some(present) = self.time.present() else {
            return batch.replies.refuse(ProposeError::NotLeader);
        };
        let weight = batch.weight;
        self.metrics.entry_proposed(batch.commands.len());
        let entry = Arc::new(Entry { stamp_ms: present.ms, commands: batch.commands });
        let (responder, answer) = ProgressResponder::complete_only();
        let leader = CommittedLeaderId::new(present.term);
        self.flow.depart();
        let handed = self.raft.write(entry).with_leader(leader).responder(responder).await;
        let replies = batch.replies;
        if handed.is_err() {
            self.flow.land(weight);
            return replies.refuse(ProposeError::Unknown);
        }
        let flow = Arc::clone(&self.flow);
        tokio::spawn(async move {
            let result: Option<ClientWriteResult<TypeConfig>> = answer.await.ok();
            flow.land(weight);
            replies.distribute(result);
        });
    }
}

/// One entry's worth of commands, and who waits for their answers.
#[derive(Default)]
struct Batch {
    commands: Vec<Command>,
    weight: usize,
    replies: Replies,
}

/// Each with the number of commands that it waits for.
#[derive(Default)]
struct Replies(Vec<(usize, Reply)>);

impl Batch {
    fn fits(&self, proposal: &Proposal) -> bool {
        self.replies.0.is_empty() || self.weight + proposal.weight <= ENTRY_BYTES
    }

    fn push(&mut self, proposal: Proposal) {
        self.weight += proposal.weight;
        self.replies.0.push((proposal.commands.len(), proposal.reply));
        self.commands.extend(proposal.commands);
    }
}

impl Replies {
    /// P2.
    fn distribute(self, result: Option<ClientWriteResult<TypeConfig>>) {
        match result {
            Some(Ok(response)) => self.answer(response.log_id, response.data),
            Some(Err(ClientWriteError::ForwardToLeader(_))) => self.refuse(ProposeError::NotLeader),
            // Discarded by a new leader, which may have it all the same; or Raft has stopped.
            Some(Err(_)) | None => self.refuse(ProposeError::Unknown),
        }
    }

    fn answer(self, log_id: LogId, answers: Answers) {
        let (index, term) = (log_id.index, log_id.committed_leader_id().term);
        let mut slots = (0_u32..).zip(answers.answers);
        for (count, reply) in self.0 {
            let decided = slots.by_ref().take(count).map(|(slot, answer)| {
                let at = At { index, slot: Some(slot), term, now_ms: answers.now_ms };
                Decided { answer, at }
            });
            drop(reply.send(Ok(decided.collect())));
        }
    }

    fn refuse(self, error: ProposeError) {
        for (_, reply) in self.0 {
            drop(reply.send(Err(error)));
        }
    }
}
