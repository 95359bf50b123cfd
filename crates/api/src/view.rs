//! What a read shows of a record: all but the attempt, which is a capability.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_state_machine::{Fingerprint, Holder, Payload, Record, State, Token};

/// A record as a reader sees it. Times are milliseconds of cluster time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The token of the acquisition that made it what it is.
    pub token: Token,
    /// Who acquired it.
    pub holder: Holder,
    /// The hash of the request, if one was given.
    pub fingerprint: Option<Fingerprint>,
    /// Where it stands.
    pub state: ViewState,
}

/// The state of a record as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViewState {
    /// The action runs under a lease.
    InProgress {
        /// When it was acquired.
        acquired_ms: u64,
        /// Until when the holder is protected without a heartbeat.
        lease_until_ms: u64,
        /// Until when the record is kept.
        ttl_until_ms: u64,
    },
    /// The action is done.
    Complete {
        /// When it was completed.
        completed_ms: u64,
        /// Until when it is kept.
        expires_ms: u64,
        /// The result, or none. Listings leave it out.
        payload: Option<Arc<Payload>>,
    },
}

/// A record in a listing, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// The record.
    pub view: View,
}

impl From<&Record> for View {
    fn from(record: &Record) -> Self {
        let state = match &record.state {
            State::InProgress { lease_until_ms, ttl_until_ms, .. } => ViewState::InProgress {
                acquired_ms: record.acquired_ms,
                lease_until_ms: *lease_until_ms,
                ttl_until_ms: *ttl_until_ms,
            },
            State::Complete { completed_ms, expires_ms, payload } => ViewState::Complete {
                completed_ms: *completed_ms,
                expires_ms: *expires_ms,
                payload: payload.clone(),
            },
        };
        Self {
            token: record.token,
            holder: record.holder.clone(),
            fingerprint: record.fingerprint.clone(),
            state,
        }
    }
}
