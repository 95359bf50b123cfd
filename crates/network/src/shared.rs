//! What the HTTP API and the metrics look at, and what they say of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openraft::async_runtime::WatchReceiver;
use openraft::{Instant as _, RaftSnapshotBuilder};
use tenure_api::{Refusal, SnapshotTaken};
use tenure_storage::{LogStore, Raft, StateStore};

use crate::config::Config;
use crate::leader_time::LeaderTime;
use crate::local::internal;
use crate::members::Members;
use crate::metrics::{Metrics, Position};
use crate::route::Router;
use crate::wait::Waiters;

/// The purge backlog is counted so far.
const PURGE_COUNTED: u64 = 100_000;

/// What the HTTP API and the metrics look at.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    pub(crate) members: Members,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) state: StateStore,
    pub(crate) raft: Raft,
    pub(crate) log: LogStore,
    pub(crate) time: Arc<LeaderTime>,
    pub(crate) config: Config,
    pub(crate) recovered: AtomicBool,
}

impl Shared {
    /// What the gauges show.
    pub(crate) async fn position(&self) -> Position {
        let status = self.members.status();
        let (first_index, last_index) = self.log.bounds();
        let present = self.time.present().map_or(status.clock_ms, |present| present.ms);
        let due = self.state.blocking(move |state| state.count_due(present, PURGE_COUNTED)).await;
        Position {
            waiters: u64::try_from(self.waiters.count()).unwrap_or(u64::MAX),
            purge_backlog: due.unwrap_or(0),
            first_index,
            last_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index.unwrap_or(0),
            clock_ms: status.clock_ms,
            term: status.term,
            leads: self.time.present().is_some(),
        }
    }

    /// Why the node is not ready; none when it is.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        if !self.recovered.load(Ordering::Relaxed) {
            return Some("what was committed before the start is not applied again yet");
        }
        let silent = self.config.silent();
        let roles = self.router.roles.borrow();
        if roles.serves {
            let acked = self.raft.metrics().borrow_watched().last_quorum_acked;
            let followed = acked.is_some_and(|acked| acked.elapsed() < silent);
            (!followed).then_some("this node leads, but no majority answers it")
        } else if roles.other.is_none() {
            Some("there is no leader that this node knows")
        } else if self.time.silence().is_none_or(|silence| silence > silent) {
            Some("the leader is silent")
        } else {
            None
        }
    }

    /// Takes a snapshot of this node's state and hashes it.
    pub(crate) async fn snapshot(&self) -> Result<SnapshotTaken, Refusal> {
        let mut state = self.state.clone();
        let built = state.build_snapshot().await;
        let snapshot = built.map_err(|error| internal(&error))?.snapshot;
        let taken = state.blocking(move |state| {
            let (index, term, hash) = state.hash(&snapshot)?;
            let bytes = snapshot.bytes()?;
            Ok(SnapshotTaken { index, term, bytes, hash })
        });
        taken.await.map_err(|error| internal(&error))
    }
}
