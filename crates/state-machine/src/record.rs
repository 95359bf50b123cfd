//! What the store holds for a name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::Payload;
use crate::text::{Attempt, Fingerprint, Holder};
use crate::time;
use crate::token::Token;

/// A record: IN_PROGRESS or COMPLETE. The third state, absent, is no record, or a purgeable one
/// (rule R2: see [`visible`]). All times are absolute milliseconds of the cluster clock.
///
/// This is the stored form: a change of its fields is a format change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The token of the acquisition that made this record what it is.
    pub token: Token,
    /// Who acquired it.
    pub holder: Holder,
    /// The hash of the request, if the acquire carried one.
    pub fingerprint: Option<Fingerprint>,
    /// When it was acquired.
    pub acquired_ms: u64,
    /// Where it stands.
    pub state: State,
}

/// The two states of a stored record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The action runs under a lease.
    InProgress {
        /// The attempt that holds the record.
        attempt: Attempt,
        /// The ttl of the acquire, which a complete without one inherits, in milliseconds.
        ttl_ms: u64,
        /// Until when the holder is protected without a heartbeat.
        lease_until_ms: u64,
        /// Until when the record is kept (longer while its lease lives).
        ttl_until_ms: u64,
    },
    /// The action is done; its result is handed to every duplicate.
    Complete {
        /// When it was completed.
        completed_ms: u64,
        /// Until when it is kept.
        expires_ms: u64,
        /// The result, or none.
        payload: Option<Arc<Payload>>,
    },
}

impl Record {
    /// The moment from which the record is purgeable (rule R2), and its place in the deadline
    /// index: `expires` for COMPLETE, the later of ttl and lease for IN_PROGRESS.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        match &self.state {
            State::InProgress { lease_until_ms, ttl_until_ms, .. } => {
                (*lease_until_ms).max(*ttl_until_ms)
            }
            State::Complete { expires_ms, .. } => *expires_ms,
        }
    }

    /// Whether some deadline of the record has passed at `present_ms` but not at `clock_ms`: an
    /// answer judged at the clock could then differ from one judged in the present.
    #[must_use]
    pub fn turns_between(&self, clock_ms: u64, present_ms: u64) -> bool {
        let turns = |deadline_ms| {
            time::has_passed(deadline_ms, present_ms) && !time::has_passed(deadline_ms, clock_ms)
        };
        match &self.state {
            State::InProgress { lease_until_ms, ttl_until_ms, .. } => {
                turns(*lease_until_ms) || turns(*ttl_until_ms)
            }
            State::Complete { expires_ms, .. } => turns(*expires_ms),
        }
    }

    /// About how many bytes the record takes: the payload, and a little for the rest.
    #[must_use]
    pub fn size(&self) -> usize {
        let payload = match &self.state {
            State::Complete { payload: Some(payload), .. } => payload.size(),
            State::Complete { payload: None, .. } | State::InProgress { .. } => 0,
        };
        128 + payload
    }
}

/// Rule R2: a purgeable record is absent for every operation, whether or not a purge has run.
#[must_use]
pub fn visible<R: std::ops::Deref<Target = Record>>(record: Option<R>, clock_ms: u64) -> Option<R> {
    record.filter(|record| !time::has_passed(record.deadline_ms(), clock_ms))
}
