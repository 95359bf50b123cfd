//! What a client knows of cluster time: enough to put a deadline into a request.
//!
//! An answer that went through the log was stamped between its send and its arrival. Cluster time
//! never runs ahead of real time by more than a clock's rate error, so what has passed here since
//! the *send* bounds it from above.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_state_machine::At;

/// By how much two machines' clocks may drift apart: one part in so many. Clocks are disciplined
/// to 500 parts in a million, each in its own direction.
const DRIFT: u32 = 500;

/// The last answer that says what time it was.
#[derive(Debug, Default)]
pub(crate) struct ClusterTime(Mutex<Option<Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    now_ms: u64,
    sent_at: Duration,
}

impl ClusterTime {
    /// Takes in where an answer to a request sent at `sent_at` was decided. A read is no help: it
    /// is judged at the applied clock, which stands still in an idle cluster.
    pub(crate) fn heard(&self, at: At, sent_at: Duration) {
        if at.slot.is_none() {
            return;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_none_or(|seen| seen.now_ms <= at.now_ms) {
            *seen = Some(Seen { now_ms: at.now_ms, sent_at });
        }
    }

    /// The largest cluster time that there can be when the clock here, now at `now`, has gone on
    /// by `ahead`; none if nothing is known.
    pub(crate) fn at_most_in(&self, now: Duration, ahead: Duration) -> Option<u64> {
        let seen = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let elapsed = now.saturating_sub(seen.sent_at).saturating_add(ahead);
        let elapsed = elapsed.saturating_add(elapsed / DRIFT);
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        Some(seen.now_ms.saturating_add(elapsed_ms).saturating_add(1))
    }

    /// Forgets what it knew: the cluster is ahead of it.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(slot: Option<u32>, now_ms: u64) -> At {
        At { index: 1, slot, term: 1, now_ms }
    }

    #[test]
    fn a_bound_counts_from_the_send_and_only_from_what_the_log_decided() {
        let (time, second) = (ClusterTime::default(), Duration::from_secs(1));
        time.heard(at(None, 5000), second);
        assert_eq!(time.at_most_in(second, second), None, "a read tells no time");
        time.heard(at(Some(0), 5000), second);
        assert_eq!(time.at_most_in(second, Duration::ZERO), Some(5001));
        assert_eq!(time.at_most_in(3 * second, second), Some(8007), "3 s and their drift");
        time.heard(at(Some(0), 4000), 9 * second);
        assert_eq!(time.at_most_in(second, Duration::ZERO), Some(5001), "an older answer");
        time.forget();
        assert_eq!(time.at_most_in(second, Duration::ZERO), None);
    }
}
