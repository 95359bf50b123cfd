//! The changes of one step of apply, over the database as it was before.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use tenure_state_machine::{Name, Record, Store, codec};

use crate::disk::{Batch, Database, Family};
use crate::state::Cache;

/// The format of sealed values in the state database.
pub(crate) const VERSION: u8 = 1;

/// Reads see the changes so far; the database does not, until [`Changes::batch`] is written.
pub(crate) struct Txn<'a> {
    db: &'a dyn Database,
    cache: &'a Cache,
    records: BTreeMap<Name, Option<Arc<Record>>>,
    /// Changed places of the deadline index: whether each is in it now.
    deadlines: BTreeMap<Vec<u8>, bool>,
    /// The database has no place before this one.
    first_place: Vec<u8>,
    /// The first place of the database, once somebody had to look for it.
    found_place: OnceCell<Vec<u8>>,
}

/// What a [`Txn`] comes to.
pub(crate) struct Changes {
    /// What changed, and what it is now.
    pub(crate) records: Vec<(Name, Option<Arc<Record>>)>,
    /// All changes.
    pub(crate) batch: Batch,
    /// Once they are written, the database has no place before this one.
    pub(crate) first_place: Vec<u8>,
}

/// Comes after all places but those of the last deadline that there is.
const LAST_PLACE: [u8; 8] = u64::MAX.to_be_bytes();

impl<'a> Txn<'a> {
    pub(crate) fn new(db: &'a dyn Database, cache: &'a Cache, first_place: Vec<u8>) -> Self {
        Self {
            db,
            cache,
            records: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            first_place,
            found_place: OnceCell::new(),
        }
    }

    pub(crate) fn into_changes(self) -> io::Result<Changes> {
        let mut batch = Batch::default();
        let mut first_place = self.found_place.into_inner().unwrap_or(self.first_place);
        let mut added = self.deadlines.iter().filter(|(_, present)| **present);
        if let Some((place, _)) = added.next().filter(|(place, _)| **place < first_place) {
            first_place.clone_from(place);
        }
        for (key, present) in self.deadlines {
            if present {
                batch.put(Family::Deadlines, key, Vec::new());
            } else {
                batch.delete(Family::Deadlines, key);
            }
        }
        for (name, record) in &self.records {
            match record {
                Some(record) => {
                    let sealed = codec::seal(VERSION, &**record).map_err(io::Error::other)?;
                    batch.put(Family::Records, name.as_stored(), sealed);
                }
                None => batch.delete(Family::Records, name.as_stored()),
            }
        }
        Ok(Changes { records: self.records.into_iter().collect(), batch, first_place })
    }
}

/// The place of a record in the deadline index: its order is the order of purging.
fn deadline_key(deadline_ms: u64, name: &Name) -> Vec<u8> {
    let mut key = deadline_ms.to_be_bytes().to_vec();
    key.extend_from_slice(name.as_stored());
    key
}

fn deadline_name(key: &[u8]) -> io::Result<Name> {
    Name::from_stored(key.get(8..).unwrap_or_default()).map_err(|error| damaged(&error))
}

/// Whether the deadline of a place has passed.
fn is_due(key: &[u8], clock_ms: u64) -> bool {
    key.first_chunk().is_some_and(|bytes| u64::from_be_bytes(*bytes) <= clock_ms)
}

fn damaged(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the state is damaged: {error}"))
}

/// The record as stored in `db`, or as `cache` has it.
pub(crate) fn read_record(
    db: &dyn Database,
    cache: &Cache,
    name: &Name,
) -> io::Result<Option<Arc<Record>>> {
    if let Some(record) = cache.get(name) {
        return Ok(Some(Arc::clone(record)));
    }
    let stored = db.get(Family::Records, name.as_stored())?;
    stored.map(|sealed| unseal_record(&sealed).map(Arc::new)).transpose()
}

pub(crate) fn unseal_record(sealed: &[u8]) -> io::Result<Record> {
    codec::unseal(VERSION, sealed).map_err(|error| damaged(&error))
}

/// The oldest deadline of all records, none of which has a place before `from`.
pub(crate) fn first_deadline_ms(db: &dyn Database, from: &[u8]) -> io::Result<Option<u64>> {
    let mut first = None;
    db.scan(Family::Deadlines, from, &mut |key, _| {
        first = key.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        ControlFlow::Break(())
    })?;
    Ok(first)
}

/// How many of the next `limit` deadlines have passed at `clock_ms`; none is before `from`.
pub(crate) fn count_due(
    db: &dyn Database,
    from: &[u8],
    clock_ms: u64,
    limit: u64,
) -> io::Result<u64> {
    let mut count = 0;
    db.scan(Family::Deadlines, from, &mut |key, _| {
        if !is_due(key, clock_ms) || count == limit {
            return ControlFlow::Break(());
        }
        count += 1;
        ControlFlow::Continue(())
    })?;
    Ok(count)
}

impl Store for Txn<'_> {
    type Error = io::Error;

    fn get(&self, name: &Name) -> io::Result<Option<Arc<Record>>> {
        match self.records.get(name) {
            Some(record) => Ok(record.clone()),
            None => read_record(self.db, self.cache, name),
        }
    }

    fn replace(
        &mut self,
        name: &Name,
        old: Option<&Record>,
        new: Option<Record>,
    ) -> io::Result<()> {
        if let Some(old) = old {
            self.deadlines.insert(deadline_key(old.deadline_ms(), name), false);
        }
        if let Some(new) = &new {
            self.deadlines.insert(deadline_key(new.deadline_ms(), name), true);
        }
        self.records.insert(name.clone(), new.map(Arc::new));
        Ok(())
    }

    fn first_due(&self, clock_ms: u64, limit: usize) -> io::Result<Vec<Name>> {
        let changed = self.deadlines.iter().take_while(|(key, _)| is_due(key, clock_ms));
        let mut due: BTreeSet<Vec<u8>> =
            changed.filter(|(_, present)| **present).map(|(key, _)| key.clone()).collect();
        let mut stored = 0;
        let from = self.found_place.get().unwrap_or(&self.first_place);
        let mut found = None;
        self.db.scan(Family::Deadlines, from, &mut |key, _| {
            found.get_or_insert_with(|| key.to_vec());
            if !is_due(key, clock_ms) || stored == limit {
                return ControlFlow::Break(());
            }
            if !self.deadlines.contains_key(key) {
                stored += 1;
                due.insert(key.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        self.found_place.get_or_init(|| found.unwrap_or_else(|| LAST_PLACE.to_vec()));
        due.iter().take(limit).map(|key| deadline_name(key)).collect()
    }
}
