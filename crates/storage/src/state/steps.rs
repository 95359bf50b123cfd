//! How entries become state: step by step in memory, and behind that in the database.

use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};

use openraft::EntryPayload;
use openraft::storage::{ApplyResponder, EntryResponder};
use tenure_state_machine::seeded::{SeededBug, seeded};
use tenure_state_machine::{Answers, Command, Name, apply};

use crate::disk::{Batch, Durability};
use crate::observe::Changes;
use crate::txn::Txn;
use crate::types::{Applied, LogEntry, StoredMembership, TypeConfig};

use super::{Meta, Shared, hot};

/// Most entries of one step.
pub(super) const STEP_ENTRIES: usize = 256;
/// Most bytes of commands in one step, beyond its first entry.
pub(super) const STEP_BYTES: usize = 4 * 1024 * 1024;

/// The records that entries are about, but those that they may purge.
pub(crate) fn names<'a>(entries: impl IntoIterator<Item = &'a LogEntry>) -> Vec<&'a Name> {
    let commands = entries.into_iter().flat_map(|entry| match &entry.payload {
        EntryPayload::Normal(entry) => entry.commands.as_slice(),
        EntryPayload::Blank | EntryPayload::Membership(_) => &[],
    });
    commands.filter_map(Command::name).collect()
}

/// Who waits for the answers of an entry, and those.
type Answered = (ApplyResponder<TypeConfig>, Answers);

impl Shared {
    /// Applies the entries of one step. Gives the answers for those who wait for them, and how many
    /// bytes are to be written behind.
    pub(super) fn apply(
        &self,
        step: Vec<EntryResponder<TypeConfig>>,
    ) -> io::Result<(Vec<Answered>, usize)> {
        self.fail.check()?;
        let mut answered = Vec::with_capacity(step.len());
        let (meta, changes, waded) = {
            let live = self.live();
            let mut meta = live.meta.clone();
            let mut txn = Txn::new(&*live.db, &live.hot, &live.first_place);
            txn.look_ahead(&names(step.iter().map(|(entry, _)| entry)))?;
            for (entry, responder) in step {
                let answers = self.apply_entry(&mut meta, &mut txn, &entry)?;
                answered.extend(responder.map(|responder| (responder, answers)));
            }
            let (changes, waded) = txn.into_changes();
            (meta, changes, waded)
        };
        let applied = meta.applied();
        let names: Vec<Name> = changes.iter().map(|(name, _)| name.clone()).collect();
        let young_bytes = {
            let mut live = self.live_mut();
            live.meta = meta;
            live.hot.absorb(changes);
            if let Some((from, to)) = waded {
                live.first_place.waded(&from, to);
            }
            live.hot.young_bytes()
        };
        self.tell(applied, Some(&names));
        Ok((answered, young_bytes))
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

    /// Brings the database up to what is applied now (A1). Blocks for the write. A state that
    /// cannot be written stops the node.
    pub(super) fn write_behind(&self) -> io::Result<MutexGuard<'_, Meta>> {
        let mut at = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.write_generation(&mut at);
        self.fail.guard("the state could not be written", written)?;
        Ok(at)
    }

    /// Writes what changed since the database was at `at`, whose lock keeps generations in order.
    fn write_generation(&self, at: &mut Meta) -> io::Result<()> {
        self.fail.check()?;
        let (db, frozen, meta) = {
            let mut live = self.live_mut();
            if live.meta == *at {
                return Ok(());
            }
            (Arc::clone(&live.db), live.hot.freeze(), live.meta.clone())
        };
        let mut batch = hot::batch(&frozen, &meta)?;
        drop(frozen);
        if seeded(SeededBug::HalfBatchApplied) {
            let half = batch.changes.split_off(batch.changes.len() / 2);
            db.write(std::mem::take(&mut batch), Durability::Buffered)?;
            batch.changes = half;
        }
        db.write(batch, Durability::Buffered)?;
        *at = meta;
        let forgotten = self.live_mut().written();
        drop(forgotten);
        Ok(())
    }

    /// Bug 9: the database says that it is up to date, and is not.
    pub(super) fn claim_written(&self) -> io::Result<()> {
        let live = self.live();
        let mut batch = Batch::default();
        live.meta.write(&mut batch)?;
        live.db.write(batch, Durability::Buffered)
    }

    /// A4. Before the first observer there is nobody to tell.
    pub(super) fn tell(&self, applied: Applied, names: Option<&[Name]>) {
        self.applied.send_replace(applied);
        if let Some(observer) = self.observer.get() {
            observer.changed(&Changes { applied, names });
        }
    }
}
