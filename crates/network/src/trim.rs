//! Keeps the log from growing heavy. openraft counts entries; an entry may be a megabyte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_storage::{LogStore, Raft, StateStore};
use tokio::time::sleep;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// With so many bytes behind the last snapshot, another is due, whatever the entries.
const SNAPSHOT_BYTES: u64 = 512 * 1024 * 1024;
/// Bytes of log kept behind a snapshot for followers that are a little behind.
const KEPT_BYTES: u64 = 512 * 1024 * 1024;
/// The same two, while the disk is almost full: then the log is what can be given up.
const SCARCE_BYTES: u64 = 32 * 1024 * 1024;

/// Takes snapshots and purges the log as their weight asks for, on every node.
pub(crate) async fn run(raft: Raft, log: LogStore, state: StateStore, disk_full: Arc<AtomicBool>) {
    loop {
        sleep(EVERY).await;
        let scarce = disk_full.load(Ordering::Relaxed);
        let (snapshot_bytes, kept_bytes) =
            if scarce { (SCARCE_BYTES, SCARCE_BYTES) } else { (SNAPSHOT_BYTES, KEPT_BYTES) };
        let covered = state.current_snapshot().map_or(0, |snapshot| snapshot.index());
        let (first, _) = log.bounds();
        let behind = log.bytes_after(covered);
        let kept = log.bytes_after(first.saturating_sub(1)).saturating_sub(behind);
        let done = if behind > snapshot_bytes {
            tracing::info!(behind, "the log is heavy: taking a snapshot");
            raft.trigger().snapshot().await
        } else if kept > kept_bytes && covered > first {
            tracing::info!(kept, covered, "the log is heavy: purging what a snapshot covers");
            raft.trigger().purge_log(covered).await
        } else {
            Ok(())
        };
        if done.is_err() {
            return;
        }
    }
}
