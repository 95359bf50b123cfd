//! How a node is set up.

use std::time::Duration;

use openraft::SnapshotPolicy;
use tenure_storage::Member;

/// What a node is told when it starts. [`Config::default`] suits three nodes in one region.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where others reach this node.
    pub address: Member,
    /// Between two heartbeats of the leader.
    pub heartbeat: Duration,
    /// Shortest silence after which a follower stands for election.
    pub election_min: Duration,
    /// Longest such silence, and the leader's lease.
    pub election_max: Duration,
    /// Log entries between two snapshots, and how many are kept behind one.
    pub snapshot_entries: u64,
    /// Between two looks for purgeable records; zero turns purging off.
    pub purge_interval: Duration,
    /// What a request may take beyond its own wait.
    pub request_timeout: Duration,
    /// Most requests that may wait for records.
    pub max_waiters: usize,
    /// Less free disk space than this, in bytes, and only what frees some is taken.
    pub min_free_disk: u64,
    /// Host names, beside IP literals and localhost, under which the HTTP API may be reached.
    pub hosts: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: Member::default(),
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1000),
            snapshot_entries: 50_000,
            purge_interval: Duration::from_millis(1000),
            request_timeout: Duration::from_millis(3000),
            max_waiters: 100_000,
            min_free_disk: 256 * 1024 * 1024,
            hosts: Vec::new(),
        }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A node, or a majority, that was silent for so many election timeouts is taken for gone.
const ELECTIONS_OF_SILENCE: u32 = 3;

impl Config {
    /// How long a node may be silent before it is taken for gone.
    pub(crate) fn silent(&self) -> Duration {
        self.election_max * ELECTIONS_OF_SILENCE
    }

    /// What openraft is told.
    pub(crate) fn raft(&self, cluster_id: &str) -> openraft::Config {
        openraft::Config {
            cluster_name: cluster_id.to_owned(),
            heartbeat_interval: ms(self.heartbeat),
            election_timeout_min: ms(self.election_min),
            election_timeout_max: ms(self.election_max),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_entries),
            // A follower that is not further behind than this catches up from the log.
            max_in_snapshot_log_to_keep: self.snapshot_entries,
            replication_lag_threshold: self.snapshot_entries.saturating_mul(2),
            // A snapshot is streamed whole by one call, in chunks with their own limits.
            install_snapshot_timeout: 10 * 60 * 1000,
            enable_pre_vote: Some(true),
            // Else a leader that sends but cannot receive blocks elections.
            quorum_loss_probe_interval: Some(2 * ms(self.election_max)),
            // A lone client then waits for one sync, not two; batches are formed by the proposer.
            broadcast_submitted_on_append: Some(true),
            // A restarted leader would serve the state of before.
            enable_leader_restore: Some(false),
            ..openraft::Config::default()
        }
    }
}
