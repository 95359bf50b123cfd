//! What the state knows beside its records.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_state_machine::{Counters, codec};

use crate::disk::{Batch, Database, Family};
use crate::txn::VERSION;
use crate::types::{Applied, LogId, StoredMembership};

const META: &[u8] = b"state";

/// Written with every generation (A1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: Arc<StoredMembership>,
    pub(crate) counters: Counters,
    /// Ids of nodes that were members once and are none now. They may not come back: a node that
    /// lost its disk could vote twice.
    pub(crate) removed: BTreeSet<u64>,
}

impl Meta {
    pub(crate) fn read(db: &dyn Database) -> io::Result<Self> {
        match db.get(Family::Meta, META)? {
            Some(sealed) => codec::unseal(VERSION, &sealed).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the state's meta: {error}"))
            }),
            None => Ok(Self::default()),
        }
    }

    pub(super) fn write(&self, batch: &mut Batch) -> io::Result<()> {
        let sealed = codec::seal(VERSION, self).map_err(io::Error::other)?;
        batch.put(Family::Meta, META, sealed);
        Ok(())
    }

    pub(super) fn applied(&self) -> Applied {
        Applied {
            index: self.applied.map_or(0, |id| id.index),
            term: self.applied.map_or(0, |id| id.committed_leader_id().term),
            clock_ms: self.counters.clock_ms,
        }
    }

    pub(super) fn set_membership(&mut self, membership: StoredMembership) {
        let ids = |stored: &StoredMembership| -> BTreeSet<u64> {
            stored.membership().nodes().map(|(id, _)| *id).collect()
        };
        let (before, after) = (ids(&self.membership), ids(&membership));
        self.removed.extend(before.difference(&after));
        self.membership = Arc::new(membership);
    }
}
