//! Who leads, as this node knows it, and what it does when that changes.

use std::sync::Arc;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tenure_api::Node as Address;
use tenure_storage::{Raft, StateStore};
use tokio::sync::watch;

use crate::leader_time::LeaderTime;
use crate::metrics::Metrics;
use crate::wait::Waiters;

/// Who leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// The leader, when it is known and another node.
    pub(crate) other: Option<Address>,
    /// Whether this node leads, is anchored, and so may serve.
    pub(crate) serves: bool,
}

/// Follows Raft: anchors time in a new term of leadership, steps down at its end, hands waiters
/// back, and publishes who leads. Ends when Raft does.
pub(crate) async fn follow(
    raft: Raft,
    state: StateStore,
    time: Arc<LeaderTime>,
    waiters: Arc<Waiters>,
    metrics: Arc<Metrics>,
    roles: watch::Sender<Roles>,
) {
    let mut server = raft.server_metrics();
    let mut applied = state.watch_applied();
    let mut last_leader = None;
    loop {
        let (leads, term, leader) = {
            let now = server.borrow_watched();
            let leads = now.state == ServerState::Leader;
            let id = now.current_leader;
            let member = id.and_then(|id| {
                let member = now.membership_config.membership().get_node(&id)?;
                Some(Address { id, http: member.http.clone(), rpc: member.rpc.clone() })
            });
            (leads, now.vote.leader_id.term, member)
        };
        let at = *applied.borrow_and_update();
        // T1: a term has one leader, so an applied entry of it is this node's own.
        if leads && at.term == term {
            time.anchor(term, at.clock_ms);
        } else if !leads {
            time.step_down();
        }
        let serves = time.present().is_some_and(|present| leads && present.term == term);
        if leader.is_some() && leader != last_leader {
            metrics.leader_changes.inc();
            tracing::info!(leader = leader.as_ref().map(|leader| leader.id), term, "leader");
            last_leader.clone_from(&leader);
        }
        let now = Roles { other: leader.filter(|_| !leads), serves };
        let changed = roles.send_if_modified(|roles| {
            let changed = *roles != now;
            *roles = now;
            changed
        });
        if changed && !serves {
            waiters.wake_all();
        }
        // Entries move on all the time; they count only until the anchor holds.
        tokio::select! {
            changed = server.changed() => if changed.is_err() { break },
            changed = applied.changed(), if leads && !serves => if changed.is_err() { break },
        }
    }
    time.step_down();
    roles.send_replace(Roles::default());
    waiters.wake_all();
}
