//! The state as it must be, in memory, and how to compare.

use std::ops::ControlFlow;

use openraft::EntryPayload;
use tenure_state_machine::{Counters, MemoryStore, Name, Record, apply, snapshot};

use crate::disk::{Database, Family};
use crate::state::Meta;
use crate::txn::unseal_record;
use crate::{LogEntry, LogId};

/// What the entries so far come to.
#[derive(Debug, Default)]
pub(super) struct Reference {
    pub(super) applied: Option<LogId>,
    pub(super) counters: Counters,
    pub(super) store: MemoryStore,
}

impl Reference {
    pub(super) fn of<'a>(entries: impl IntoIterator<Item = &'a LogEntry>) -> Self {
        let mut reference = Self::default();
        for entry in entries {
            reference.apply(entry);
        }
        reference
    }

    pub(super) fn apply(&mut self, entry: &LogEntry) {
        self.applied = Some(entry.log_id);
        if let EntryPayload::Normal(entry) = &entry.payload {
            apply(&mut self.counters, &mut self.store, entry).unwrap();
        }
    }

    pub(super) fn hash(&self) -> String {
        snapshot::hash(|sink| snapshot::write(self.counters, &self.store, sink)).unwrap()
    }

    /// Records, deadline index, clock and log id of `db`, key by key (I10).
    #[track_caller]
    pub(super) fn assert_is(&self, db: &dyn Database) {
        let meta = Meta::read(db).unwrap();
        assert_eq!((meta.applied, meta.counters), (self.applied, self.counters));
        let mut records: Vec<(Name, Record)> = Vec::new();
        db.scan(Family::Records, &[], &mut |key, value| {
            records.push((Name::from_stored(key).unwrap(), unseal_record(value).unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap();
        let expected = self.store.records().map(|(name, record)| (name.clone(), record.clone()));
        assert_eq!(records, expected.collect::<Vec<_>>());
        let mut places: Vec<(u64, Name)> = Vec::new();
        db.scan(Family::Deadlines, &[], &mut |key, value| {
            assert!(value.is_empty());
            let (deadline, name) = key.split_at(8);
            let deadline = u64::from_be_bytes(deadline.try_into().unwrap());
            places.push((deadline, Name::from_stored(name).unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap();
        let expected = self.store.deadlines().map(|(deadline, name)| (deadline, name.clone()));
        assert_eq!(places, expected.collect::<Vec<_>>());
    }
}
