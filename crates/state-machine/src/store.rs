//! What apply needs of a store, and one in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use crate::name::Name;
use crate::record::Record;

/// Records by name, with an index on their deadlines.
pub trait Store {
    /// The store's own I/O error, the only one that apply can meet.
    type Error;

    /// The record as stored, purgeable or not.
    ///
    /// # Errors
    /// The store's own.
    fn get(&self, name: &Name) -> Result<Option<Arc<Record>>, Self::Error>;

    /// The one door for changes: puts `new`, or removes the record where that is none. `old` is
    /// what [`Store::get`] gave; the deadline index moves from its deadline to the new one (I10).
    ///
    /// # Errors
    /// The store's own.
    fn replace(
        &mut self,
        name: &Name,
        old: Option<&Record>,
        new: Option<Record>,
    ) -> Result<(), Self::Error>;

    /// At most `limit` records whose deadline has passed at `clock_ms`, with it, oldest deadline
    /// first, ties by stored name. Its cost grows with what it finds, not with what is stored.
    ///
    /// # Errors
    /// The store's own.
    fn first_due(&self, clock_ms: u64, limit: usize) -> Result<Vec<(u64, Name)>, Self::Error>;

    /// Removes a record whose deadline is `deadline_ms`, as [`Store::first_due`] has just said. It
    /// need not read the record, which may be large and on a disk: the index decides (I10).
    ///
    /// # Errors
    /// The store's own.
    fn purge(&mut self, name: &Name, deadline_ms: u64) -> Result<(), Self::Error>;
}

/// A store in memory: for tests, for `replay`, and for saying what the others must do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryStore {
    records: BTreeMap<Name, Arc<Record>>,
    deadlines: BTreeSet<(u64, Name)>,
}

impl MemoryStore {
    /// Every record, in the order of stored names.
    pub fn records(&self) -> impl Iterator<Item = (&Name, &Record)> {
        self.records.iter().map(|(name, record)| (name, &**record))
    }

    /// The deadline index, in its order.
    pub fn deadlines(&self) -> impl Iterator<Item = (u64, &Name)> {
        self.deadlines.iter().map(|(deadline_ms, name)| (*deadline_ms, name))
    }
}

impl Store for MemoryStore {
    type Error = Infallible;

    fn get(&self, name: &Name) -> Result<Option<Arc<Record>>, Infallible> {
        Ok(self.records.get(name).cloned())
    }

    fn replace(
        &mut self,
        name: &Name,
        old: Option<&Record>,
        new: Option<Record>,
    ) -> Result<(), Infallible> {
        if let Some(old) = old {
            self.deadlines.remove(&(old.deadline_ms(), name.clone()));
        }
        match new {
            Some(new) => {
                self.deadlines.insert((new.deadline_ms(), name.clone()));
                self.records.insert(name.clone(), Arc::new(new));
            }
            None => {
                self.records.remove(name);
            }
        }
        Ok(())
    }

    fn first_due(&self, clock_ms: u64, limit: usize) -> Result<Vec<(u64, Name)>, Infallible> {
        let due = self.deadlines.iter().take_while(|(deadline_ms, _)| *deadline_ms <= clock_ms);
        Ok(due.take(limit).cloned().collect())
    }

    fn purge(&mut self, name: &Name, deadline_ms: u64) -> Result<(), Infallible> {
        let record = self.records.remove(name);
        let indexed = self.deadlines.remove(&(deadline_ms, name.clone()));
        let agree = indexed && record.is_some_and(|record| record.deadline_ms() == deadline_ms);
        assert!(agree, "I10: {name} is not due at {deadline_ms}");
        Ok(())
    }
}
