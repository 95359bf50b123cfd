//! Linearizable reads by read index (Raft thesis, section 6.4), one round for all that ask
//! meanwhile.
//!
//! A round asks a majority whether this node still leads, and waits until the state covers what was
//! committed by then. It answers only reads that asked before it began. While a round is on its
//! way the next one gathers, for [`GATHER`] at most: with a majority far away it costs a read no
//! second way there.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use openraft::async_runtime::WatchReceiver;
use openraft::{Instant as _, ReadPolicy};
use tenure_state_machine::seeded::{SeededBug, seeded};
use tenure_storage::{Raft, StateStore};
use tokio::sync::{mpsc, oneshot};
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a round gathers at most while another one is on its way.
const GATHER: Duration = Duration::from_millis(5);
/// Rounds on their way at once.
const IN_FLIGHT: usize = 16;

/// Who waits for a round.
pub(crate) trait Reader: Send {
    /// Whether somebody still waits.
    fn waits(&self) -> bool;
    /// Called once: whether this node is known to have led after the question, and its state covers
    /// all that was committed by then; false when it does not lead, or nobody says so. Not called
    /// when the runtime ends.
    fn told(self: Box<Self>, confirmed: bool);
}

/// The reader that is a future.
impl Reader for oneshot::Sender<bool> {
    fn waits(&self) -> bool {
        !self.is_closed()
    }

    fn told(self: Box<Self>, confirmed: bool) {
        // Who does not wait any more does not need to know.
        let _gone = self.send(confirmed);
    }
}

/// Hands reads to [`Rounds`].
#[derive(Debug, Clone)]
pub(crate) struct ReadIndex(mpsc::UnboundedSender<Box<dyn Reader>>);

impl ReadIndex {
    /// A round fails after `limit`.
    pub(crate) fn new(raft: Raft, state: StateStore, limit: Duration) -> (Self, Rounds) {
        let (queue, asks) = mpsc::unbounded_channel();
        (Self(queue), Rounds { raft, state, limit, asks })
    }

    /// Asks for a round that begins from now on.
    pub(crate) fn ask(&self, reader: Box<dyn Reader>) {
        if let Err(ended) = self.0.send(reader) {
            ended.0.told(false);
        }
    }

    /// Returns what [`Reader::told`] is told.
    pub(crate) async fn confirm(&self) -> bool {
        let (reader, told) = oneshot::channel();
        self.ask(Box::new(reader));
        told.await == Ok(true)
    }
}

/// Runs the rounds.
pub(crate) struct Rounds {
    raft: Raft,
    state: StateStore,
    limit: Duration,
    asks: mpsc::UnboundedReceiver<Box<dyn Reader>>,
}

impl Rounds {
    /// Ends with the last handle.
    pub(crate) async fn run(self) {
        let Self { raft, state, limit, mut asks } = self;
        let mut rounds = FuturesUnordered::new();
        let mut began = Instant::now();
        loop {
            let first = tokio::select! {
                first = asks.recv() => match first {
                    Some(first) => first,
                    None => return,
                },
                Some(()) = rounds.next() => continue,
            };
            while !rounds.is_empty() {
                let may_go = rounds.len() < IN_FLIGHT;
                tokio::select! {
                    _ = rounds.next() => {}
                    () = sleep_until(began + GATHER), if may_go => break,
                }
            }
            let mut together = vec![first];
            while let Ok(ask) = asks.try_recv() {
                together.push(ask);
            }
            // Who does not wait any more is no reason to ask the majority.
            together.retain(|ask| ask.waits());
            if !together.is_empty() {
                began = Instant::now();
                rounds.push(round(&raft, &state, limit, together));
            }
        }
    }
}

async fn round(raft: &Raft, state: &StateStore, limit: Duration, together: Vec<Box<dyn Reader>>) {
    let confirmed = async {
        if seeded(SeededBug::ReadOnClockLease) && holds_clock_lease(raft, limit) {
            return Some(());
        }
        let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
        let index = linearizer.read_log_id().index();
        state.watch_applied().wait_for(|applied| applied.index >= index).await.ok()?;
        Some(())
    };
    let confirmed = matches!(timeout(limit, confirmed).await, Ok(Some(())));
    for reader in together {
        reader.told(confirmed);
        // Each may read its record now: others have their turn in between.
        consume_budget().await;
    }
}

/// Bug 2: a majority has answered within `limit`, which is longer than an election takes.
fn holds_clock_lease(raft: &Raft, limit: Duration) -> bool {
    let acked = raft.metrics().borrow_watched().last_quorum_acked;
    acked.is_some_and(|acked| acked.elapsed() < limit)
}
