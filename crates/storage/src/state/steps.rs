//! How entries become state: step by step, each one batch.

use std::io;
use std::sync::PoisonError;

use openraft::EntryPayload;
use openraft::storage::{ApplyResponder, EntryResponder};
use tenure_state_machine::{Answers, Name, apply};

use crate::disk::Durability;
use crate::observe::Changes;
use crate::txn::Txn;
use crate::types::{Applied, LogEntry, StoredMembership, TypeConfig};

use super::{Meta, Shared};

/// Most entries of one step.
pub(super) const STEP_ENTRIES: usize = 256;
/// Most bytes of commands in one step, beyond its first entry.
pub(super) const STEP_BYTES: usize = 4 * 1024 * 1024;

impl Shared {
    /// Applies the entries of one step (A1), and gives the answers for those who wait for them.
    pub(super) fn apply(
        &self,
        step: Vec<EntryResponder<TypeConfig>>,
    ) -> io::Result<Vec<(ApplyResponder<TypeConfig>, Answers)>> {
        self.fail.check()?;
        let mut answered = Vec::new();
        let (meta, mut changes) = {
            let live = self.live();
            let mut meta = live.meta.clone();
            let mut txn = Txn::new(&*live.db, &live.cache, live.first_place.clone());
            for (entry, responder) in step {
                let answers = self.apply_entry(&mut meta, &mut txn, &entry)?;
                answered.extend(responder.map(|responder| (responder, answers)));
            }
            (meta, txn.into_changes()?)
        };
        meta.write(&mut changes.batch)?;
        let applied = meta.applied();
        let names: Vec<Name> = changes.records.iter().map(|(name, _)| name.clone()).collect();
        {
            let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
            live.db.write(changes.batch, Durability::Buffered)?;
            live.meta = meta;
            live.first_place = changes.first_place;
            for (name, record) in changes.records {
                live.cache.put(&name, record);
            }
        }
        self.tell(applied, Some(&names));
        Ok(answered)
    }

    fn apply_entry(
        &self,
        meta: &mut Meta,
        txn: &mut Txn<'_>,
        entry: &LogEntry,
    ) -> io::Result<Answers> {
        let next = meta.applied.map_or(0, |applied| applied.index + 1);
        if entry.log_id.index != next || Some(entry.log_id) < meta.applied {
            let why = format!("A1: {} instead of index {next}", entry.log_id);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        meta.applied = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Normal(entry) => {
                let commands = u64::try_from(entry.commands.len()).unwrap_or(u64::MAX);
                self.counters.commands.inc_by(commands);
                apply(&mut meta.counters, txn, entry)
            }
            EntryPayload::Membership(membership) => {
                meta.set_membership(StoredMembership::new(Some(entry.log_id), membership.clone()));
                Ok(Answers::default())
            }
            EntryPayload::Blank => Ok(Answers::default()),
        }
    }

    /// A4. Before the first observer there is nobody to tell.
    pub(super) fn tell(&self, applied: Applied, names: Option<&[Name]>) {
        self.applied.send_replace(applied);
        if let Some(observer) = self.observer.get() {
            observer.changed(&Changes { applied, names });
        }
    }
}
