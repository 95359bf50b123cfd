//! The changes of one step of apply, over the state as it was before.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use tenure_state_machine::{Name, Record, Store, codec};

use crate::disk::{Database, Family};
use crate::state::{Changed, Hot};

/// The format of sealed values in the state database.
pub(crate) const VERSION: u8 = 1;

/// Reads see the changes so far; the state does not, until it absorbs [`Txn::into_changes`].
pub(crate) struct Txn<'a> {
    db: &'a dyn Database,
    hot: &'a Hot,
    /// What was looked at, changed or not.
    touched: HashMap<Name, Touched>,
    /// Places in the deadline index of changed records, once somebody asked for what is due.
    places: OnceCell<BTreeSet<Vec<u8>>>,
    /// The database has no place before this one.
    first_place: &'a [u8],
    /// The first place of the database, once somebody had to look for it.
    found_place: OnceCell<Vec<u8>>,
}

/// A record that was looked at.
struct Touched {
    /// The deadline of the record beneath, none when it has no record.
    beneath_ms: Option<u64>,
    /// The record now; none when there is none.
    now: Option<Arc<Record>>,
    changed: bool,
}

/// Comes after all places but those of the last deadline that there is.
const LAST_PLACE: [u8; 8] = u64::MAX.to_be_bytes();

impl<'a> Txn<'a> {
    /// Who may be asked for what is due must not have changes in `hot` that `db` does not have.
    pub(crate) fn new(db: &'a dyn Database, hot: &'a Hot, first_place: &'a [u8]) -> Self {
        Self {
            db,
            hot,
            touched: HashMap::new(),
            places: OnceCell::new(),
            first_place,
            found_place: OnceCell::new(),
        }
    }

    /// What changed, and where the database's deadline index was found to begin, if it was.
    pub(crate) fn into_changes(self) -> (Vec<(Name, Changed)>, Option<Vec<u8>>) {
        let changed = self.touched.into_iter().filter(|(_, touched)| touched.changed);
        let changes = changed
            .map(|(name, Touched { beneath_ms, now, .. })| (name, Changed { beneath_ms, now }));
        (changes.collect(), self.found_place.into_inner())
    }

    /// Looks at records together that will be asked for, which costs less than one by one.
    pub(crate) fn look_ahead(&mut self, names: &[&Name]) -> io::Result<()> {
        self.touched.reserve(names.len());
        let mut unknown = Vec::new();
        for name in names {
            match self.hot.get(name) {
                Some(record) => self.touch(name, record),
                None => unknown.push(*name),
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = unknown.iter().map(|name| name.as_stored()).collect();
        let stored = self.db.get_all(Family::Records, &keys)?;
        for (name, sealed) in unknown.into_iter().zip(stored) {
            let record = sealed.map(|sealed| unseal_record(&sealed).map(Arc::new)).transpose()?;
            self.touch(name, record);
        }
        Ok(())
    }

    fn touch(&mut self, name: &Name, record: Option<Arc<Record>>) {
        let beneath_ms = record.as_ref().map(|record| record.deadline_ms());
        let touched = Touched { beneath_ms, now: record, changed: false };
        self.touched.insert(name.clone(), touched);
    }
}

/// The place of a record in the deadline index: its order is the order of purging.
pub(crate) fn deadline_place(deadline_ms: u64, name: &Name) -> Vec<u8> {
    let mut place = Vec::with_capacity(8 + name.as_stored().len());
    place.extend_from_slice(&deadline_ms.to_be_bytes());
    place.extend_from_slice(name.as_stored());
    place
}

fn place_name(place: &[u8]) -> io::Result<Name> {
    Name::from_stored(place.get(8..).unwrap_or_default()).map_err(|error| damaged(&error))
}

/// Whether the deadline of a place has passed.
fn is_due(place: &[u8], clock_ms: u64) -> bool {
    place.first_chunk().is_some_and(|bytes| u64::from_be_bytes(*bytes) <= clock_ms)
}

fn damaged(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the state is damaged: {error}"))
}

/// The record as `hot` has it, or as stored in `db`.
pub(crate) fn read_record(
    db: &dyn Database,
    hot: &Hot,
    name: &Name,
) -> io::Result<Option<Arc<Record>>> {
    hot.get(name).map_or_else(|| stored_record(db, name), Ok)
}

/// The record as stored in `db`, which is to be asked for again.
pub(crate) fn look_at_record(
    db: &dyn Database,
    hot: &Hot,
    name: &Name,
) -> io::Result<Option<Arc<Record>>> {
    if let Some(record) = hot.get(name) {
        return Ok(record);
    }
    let stored = stored_record(db, name)?;
    hot.found(name, &stored);
    Ok(stored)
}

fn stored_record(db: &dyn Database, name: &Name) -> io::Result<Option<Arc<Record>>> {
    let stored = db.get(Family::Records, name.as_stored())?;
    stored.map(|sealed| unseal_record(&sealed).map(Arc::new)).transpose()
}

pub(crate) fn unseal_record(sealed: &[u8]) -> io::Result<Record> {
    codec::unseal(VERSION, sealed).map_err(|error| damaged(&error))
}

/// The oldest deadline of all records, none of which has a place before `from`.
pub(crate) fn first_deadline_ms(db: &dyn Database, from: &[u8]) -> io::Result<Option<u64>> {
    let mut first = None;
    db.scan(Family::Deadlines, from, &mut |place, _| {
        first = place.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
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
    db.scan(Family::Deadlines, from, &mut |place, _| {
        if !is_due(place, clock_ms) || count == limit {
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
        match self.touched.get(name) {
            Some(touched) => Ok(touched.now.clone()),
            None => read_record(self.db, self.hot, name),
        }
    }

    fn replace(
        &mut self,
        name: &Name,
        old: Option<&Record>,
        new: Option<Record>,
    ) -> io::Result<()> {
        let beneath_ms = old.map(Record::deadline_ms);
        if let Some(places) = self.places.get_mut() {
            if let Some(ms) = beneath_ms {
                places.remove(&deadline_place(ms, name));
            }
            places.extend(new.as_ref().map(|new| deadline_place(new.deadline_ms(), name)));
        }
        let now = new.map(Arc::new);
        match self.touched.get_mut(name) {
            Some(touched) => {
                touched.now = now;
                touched.changed = true;
            }
            None => {
                let touched = Touched { beneath_ms, now, changed: true };
                self.touched.insert(name.clone(), touched);
            }
        }
        Ok(())
    }

    fn first_due(&self, clock_ms: u64, limit: usize) -> io::Result<Vec<Name>> {
        let places = self.places.get_or_init(|| {
            let changed = self.touched.iter().filter(|(_, touched)| touched.changed);
            let now = |(name, touched): (&Name, &Touched)| {
                touched.now.as_ref().map(|record| deadline_place(record.deadline_ms(), name))
            };
            changed.filter_map(now).collect()
        });
        let mut due: BTreeSet<Vec<u8>> = places
            .iter()
            .take_while(|place| is_due(place, clock_ms))
            .take(limit)
            .cloned()
            .collect();
        let mut stored = 0;
        let mut found = None;
        let mut failed = None;
        let from = self.found_place.get().map_or(self.first_place, Vec::as_slice);
        self.db.scan(Family::Deadlines, from, &mut |place, _| {
            found.get_or_insert_with(|| place.to_vec());
            if !is_due(place, clock_ms) || stored == limit {
                return ControlFlow::Break(());
            }
            match place_name(place) {
                // Its place now, if it has one, is among those of changed records.
                Ok(name) if self.touched.get(&name).is_some_and(|touched| touched.changed) => {}
                Ok(_) => {
                    stored += 1;
                    due.insert(place.to_vec());
                }
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.found_place.get_or_init(|| found.unwrap_or_else(|| LAST_PLACE.to_vec()));
        due.iter().take(limit).map(|place| place_name(place)).collect()
    }
}
