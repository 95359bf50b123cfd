//! Who belongs to the cluster, and changes of that. Run on the leader.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _, ServerState};
use tenure_api::frame::{Change, Reply};
use tenure_api::{
    ClusterStatus, Member as MemberStatus, MemberRole, Node as Address, NodeRole, Refusal,
};
use tenure_state_machine::seeded::{SeededBug, seeded};
use tenure_storage::{LogId, Member, Raft, StateStore, TypeConfig};
use tokio::time::{Instant, timeout_at};

use crate::local::Unanswered;

/// What a refused change tells its caller to wait.
const RETRY: Duration = Duration::from_secs(1);

/// The membership of this node's cluster.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    pub(crate) raft: Raft,
    pub(crate) state: StateStore,
    pub(crate) cluster_id: String,
    pub(crate) node_id: u64,
    /// A peer that was silent for so long is taken for gone.
    pub(crate) silent: Duration,
}

impl Members {
    /// Changes the membership and waits until the change is committed.
    pub(crate) async fn change(
        &self,
        change: &Change,
        deadline: Instant,
    ) -> Result<Reply, Unanswered> {
        match change {
            Change::Add(node) => self.add(node, deadline).await?,
            Change::Promote { id } => self.promote(*id, deadline).await?,
            Change::Remove { id } => self.remove(*id, deadline).await?,
            Change::Transfer { to } => self.transfer(*to, deadline).await?,
        }
        Ok(Reply::Changed(Box::new(self.status())))
    }

    async fn add(&self, node: &Address, deadline: Instant) -> Result<(), Unanswered> {
        let status = self.status();
        if let Some(known) = status.members.iter().find(|member| member.id == node.id) {
            let same = known.http == node.http && known.rpc == node.rpc;
            let why = "is a member already, under other addresses: use a new id";
            return if same { Ok(()) } else { Err(invalid("id", why)) };
        }
        let was_removed = self.state.removed_members().contains(&node.id);
        if was_removed && !seeded(SeededBug::WipedNodeRejoins) {
            return Err(invalid("id", "was a member before and was removed: use a new id"));
        }
        let member = Member { http: node.http.clone(), rpc: node.rpc.clone() };
        let added = self.raft.add_learner(node.id, member, false);
        settle(timeout_at(deadline, added).await)
    }

    async fn promote(&self, id: u64, deadline: Instant) -> Result<(), Unanswered> {
        self.must_be_member(id)?;
        let mut voters: BTreeSet<u64> = self.raft.voter_ids().collect();
        if voters.insert(id) {
            self.must_answer(&voters)?;
        }
        self.apply(ChangeMembers::AddVoterIds(BTreeSet::from([id])), deadline).await
    }

    /// Who was removed stays so: whoever asks again, not knowing what came of it, is told.
    async fn remove(&self, id: u64, deadline: Instant) -> Result<(), Unanswered> {
        if self.state.removed_members().contains(&id) {
            return Ok(());
        }
        self.must_be_member(id)?;
        let mut voters: BTreeSet<u64> = self.raft.voter_ids().collect();
        if !voters.remove(&id) {
            return self.apply(ChangeMembers::RemoveNodes(BTreeSet::from([id])), deadline).await;
        }
        if voters.is_empty() {
            return Err(invalid("id", "is the last voter"));
        }
        self.must_answer(&voters)?;
        self.apply(ChangeMembers::RemoveVoters(BTreeSet::from([id])), deadline).await
    }

    /// Voters without a majority that answers could not even commit that they are the voters, and
    /// a change that has begun cannot be taken back.
    fn must_answer(&self, voters: &BTreeSet<u64>) -> Result<(), Unanswered> {
        let answers = |id: &&u64| **id == self.node_id || self.is_heard(**id);
        let answering = voters.iter().filter(answers).count();
        if answering > voters.len() / 2 {
            return Ok(());
        }
        let of = voters.len();
        Err(later(format!("only {answering} of the {of} voters that there would be answer")))
    }

    async fn apply(
        &self,
        change: ChangeMembers<u64, Member>,
        deadline: Instant,
    ) -> Result<(), Unanswered> {
        let changed =
            settle(timeout_at(deadline, self.raft.change_membership(change, false)).await);
        match changed {
            // A change of voters takes two entries, and the first may be committed.
            Err(Unanswered::NotLeading) => Err(Unanswered::Refused(Refusal::OutcomeUnknown)),
            changed => changed,
        }
    }

    async fn transfer(&self, to: u64, deadline: Instant) -> Result<(), Unanswered> {
        if !self.raft.voter_ids().any(|id| id == to) {
            return Err(invalid("to", "is no voter of this cluster"));
        }
        if to == self.node_id {
            return Ok(());
        }
        if !self.is_heard(to) {
            return Err(invalid("to", "has not answered lately: it could not take over"));
        }
        if self.raft.trigger().transfer_leader(to).await.is_err() {
            return Err(Unanswered::NotLeading);
        }
        let mut server = self.raft.server_metrics();
        let moved = async {
            while server.borrow_watched().current_leader != Some(to) {
                if server.changed().await.is_err() {
                    return;
                }
            }
        };
        match timeout_at(deadline, moved).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Unanswered::Refused(Refusal::OutcomeUnknown)),
        }
    }

    /// Whether a peer of this leader has answered within the time of some elections.
    fn is_heard(&self, id: u64) -> bool {
        let heartbeats = self.raft.metrics().borrow_watched().heartbeat.clone();
        let acked = heartbeats.and_then(|peers| peers.get(&id).copied().flatten());
        acked.is_some_and(|acked| acked.elapsed() < self.silent)
    }

    fn must_be_member(&self, id: u64) -> Result<(), Unanswered> {
        if self.status().members.iter().any(|member| member.id == id) {
            Ok(())
        } else {
            Err(invalid("id", "is no member of this cluster"))
        }
    }

    /// The cluster as this node sees it.
    pub(crate) fn status(&self) -> ClusterStatus {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let leader = metrics.current_leader;
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let members: Vec<MemberStatus> = membership
            .nodes()
            .map(|(id, member)| MemberStatus {
                id: *id,
                http: member.http.clone(),
                rpc: member.rpc.clone(),
                role: match (leader == Some(*id), voters.contains(id)) {
                    (true, _) => MemberRole::Leader,
                    (false, true) => MemberRole::Voter,
                    (false, false) => MemberRole::Learner,
                },
                matched_index: metrics
                    .replication
                    .as_ref()
                    .and_then(|peers| peers.get(id))
                    .map(|matched| index(*matched)),
            })
            .collect();
        let leader = leader.and_then(|id| {
            let member = members.iter().find(|member| member.id == id)?;
            Some(Address { id, http: member.http.clone(), rpc: member.rpc.clone() })
        });
        ClusterStatus {
            cluster_id: self.cluster_id.clone(),
            id: self.node_id,
            role: match metrics.state {
                ServerState::Leader => NodeRole::Leader,
                ServerState::Candidate => NodeRole::Candidate,
                ServerState::Learner => NodeRole::Learner,
                ServerState::Follower | ServerState::Shutdown => NodeRole::Follower,
            },
            leader,
            term: metrics.current_term,
            members,
            last_index: metrics.last_log_index.unwrap_or(0),
            committed_index: index(metrics.local_committed),
            applied_index: self.state.applied().index,
            snapshot_index: self.state.current_snapshot().map(|snapshot| snapshot.index()),
            clock_ms: self.state.applied().clock_ms,
        }
    }
}

fn invalid(field: &str, reason: &str) -> Unanswered {
    Unanswered::Refused(Refusal::InvalidArgument {
        field: Some(field.to_owned()),
        reason: reason.to_owned(),
    })
}

fn later(reason: String) -> Unanswered {
    let retry_after_ms = u64::try_from(RETRY.as_millis()).unwrap_or(u64::MAX);
    Unanswered::Refused(Refusal::Overloaded { reason, retry_after_ms })
}

type Written<T> = Result<
    Result<T, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>,
    tokio::time::error::Elapsed,
>;

/// What a change of the membership came to, in the words of a refusal.
fn settle<T>(written: Written<T>) -> Result<(), Unanswered> {
    let error = match written {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(RaftError::APIError(error))) => error,
        Ok(Err(RaftError::Fatal(_))) | Err(_) => {
            return Err(Unanswered::Refused(Refusal::OutcomeUnknown));
        }
    };
    match error {
        ClientWriteError::ForwardToLeader(_) => Err(Unanswered::NotLeading),
        ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)) => {
            Err(later("another change of the membership is on its way".to_owned()))
        }
        ClientWriteError::ChangeMembershipError(error) => Err(invalid("id", &error.to_string())),
        ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::PreconditionFailed(_) => {
            Err(Unanswered::Refused(Refusal::OutcomeUnknown))
        }
    }
}
