//! What storage says of itself: counters for whoever exports them, changes for whoever waits.

use std::fmt::Debug;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tenure_state_machine::Name;
use tokio::time::Instant;

use crate::types::Applied;

/// What changed in one step of the state, told after it is written and before its answers go out.
#[derive(Debug)]
pub struct Changes<'a> {
    /// Up to where the state is applied now.
    pub applied: Applied,
    /// Which records changed; none when any may have, as after an installed snapshot.
    pub names: Option<&'a [Name]>,
}

/// Who is told of changes, on every node.
pub trait Observer: Debug + Send + Sync {
    /// Must not block.
    fn changed(&self, changes: &Changes<'_>);
}

/// What a log has written since it was opened. Clones count together.
#[derive(Debug, Clone)]
pub struct LogCounters {
    /// Batches that were synced.
    pub syncs: Counter,
    /// Entries in them.
    pub entries: Counter,
    /// Bytes in them, before RocksDB's own framing.
    pub bytes: Counter,
    /// How long a batch took to be written and synced, in seconds.
    pub seconds: Histogram,
}

/// What a state has done since it was opened. Clones count together.
#[derive(Debug, Clone)]
pub struct StateCounters {
    /// Entries applied.
    pub entries: Counter,
    /// Commands applied.
    pub commands: Counter,
    /// How long an applied batch of entries took, in seconds.
    pub seconds: Histogram,
    /// Snapshots built.
    pub snapshots_built: Counter,
    /// Snapshots received from a leader and installed.
    pub snapshots_installed: Counter,
}

/// From 50 us to 1.6 s, doubling.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(50e-6, 2.0, 16))
}

impl Default for LogCounters {
    fn default() -> Self {
        Self {
            syncs: Counter::default(),
            entries: Counter::default(),
            bytes: Counter::default(),
            seconds: latency(),
        }
    }
}

impl Default for StateCounters {
    fn default() -> Self {
        Self {
            entries: Counter::default(),
            commands: Counter::default(),
            seconds: latency(),
            snapshots_built: Counter::default(),
            snapshots_installed: Counter::default(),
        }
    }
}

impl LogCounters {
    pub(crate) fn time<R>(&self, entries: u64, bytes: usize, write: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let written = write();
        self.seconds.observe(started.elapsed().as_secs_f64());
        self.syncs.inc();
        self.entries.inc_by(entries);
        self.bytes.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
        written
    }
}
