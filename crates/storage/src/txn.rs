//! The changes of one step of apply, over the state as it was before.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use tenure_state_machine::seeded::{SeededBug, seeded};
use tenure_state_machine::{Name, Record, Store, codec};

use crate::disk::{Database, Family};
use crate::state::{Changed, FirstPlace, Hot};

/// The format of sealed values in the state database.
pub(crate) const VERSION: u8 = 1;

/// Reads see the changes so far; the state does not, until it absorbs [`Txn::into_changes`].
pub(crate) struct Txn<'a> {
    db: &'a dyn Database,
    hot: &'a Hot,
    /// What was looked at, changed or not.
    touched: HashMap<Name, Touched>,
    /// Changed records by their deadline, once somebody asked for what is due.
    deadlines: OnceCell<BTreeSet<(u64, Name)>>,
    first_place: &'a FirstPlace,
    /// The first place of the database, once somebody had to look for it.
    waded: OnceCell<FirstPlace>,
}

/// A record that was looked at.
struct Touched {
    /// The deadline of the record beneath, none when it has no record.
    beneath_ms: Option<u64>,
    /// The record now; none when there is none.
    now: Option<Arc<Record>>,
    changed: bool,
}

/// Records that are looked at together: what RocksDB reads at once.
const LOOK_TOGETHER: usize = 32;
/// Bytes of records, beyond which the rest is not looked at ahead.
const LOOK_BYTES: usize = 16 * 1024 * 1024;

impl<'a> Txn<'a> {
    pub(crate) fn new(db: &'a dyn Database, hot: &'a Hot, first_place: &'a FirstPlace) -> Self {
        Self {
            db,
            hot,
            touched: HashMap::new(),
            deadlines: OnceCell::new(),
            first_place,
            waded: OnceCell::new(),
        }
    }

    /// What changed; and from where to where the start of the database's deadline index moves, if
    /// somebody looked.
    #[expect(clippy::type_complexity, reason = "taken apart where it is used")]
    pub(crate) fn into_changes(self) -> (Vec<(Name, Changed)>, Option<(FirstPlace, FirstPlace)>) {
        let changed = self.touched.into_iter().filter(|(_, touched)| touched.changed);
        let changes = changed
            .map(|(name, Touched { beneath_ms, now, .. })| (name, Changed { beneath_ms, now }));
        let waded = self.waded.into_inner().map(|to| (self.first_place.clone(), to));
        (changes.collect(), waded)
    }

    /// Looks at records together that will be asked for, which costs less than one by one.
    pub(crate) fn look_ahead(&mut self, names: &[&Name]) -> io::Result<()> {
        self.touched.reserve(names.len());
        let mut unknown = Vec::new();
        for name in names {
            match self.hot.get(name) {
                _ if self.touched.contains_key(*name) => {}
                Some(record) => self.touch(name, record),
                None => unknown.push(*name),
            }
        }
        let mut bytes = 0;
        for together in unknown.chunks(LOOK_TOGETHER) {
            let keys: Vec<&[u8]> = together.iter().map(|name| name.as_stored()).collect();
            let stored = self.db.get_all(Family::Records, &keys)?;
            for (name, sealed) in together.iter().zip(stored) {
                bytes += sealed.as_ref().map_or(0, Vec::len);
                let record =
                    sealed.map(|sealed| unseal_record(&sealed).map(Arc::new)).transpose()?;
                self.touch(name, record);
            }
            if bytes > LOOK_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// Moves a record from one deadline to what it is now.
    fn change(&mut self, name: &Name, old_ms: Option<u64>, new: Option<Record>) {
        if let Some(deadlines) = self.deadlines.get_mut() {
            if let Some(ms) = old_ms {
                deadlines.remove(&(ms, name.clone()));
            }
            deadlines.extend(new.as_ref().map(|new| (new.deadline_ms(), name.clone())));
        }
        let now = new.map(Arc::new);
        match self.touched.get_mut(name) {
            Some(touched) => {
                touched.now = now;
                touched.changed = true;
            }
            None => {
                let touched = Touched { beneath_ms: old_ms, now, changed: true };
                self.touched.insert(name.clone(), touched);
            }
        }
    }

    /// Whether this step changed the record.
    fn is_changed(&self, name: &Name) -> bool {
        self.touched.get(name).is_some_and(|touched| touched.changed)
    }

    /// What is due by the database, but for records that changed since.
    fn stored_due(&self, clock_ms: u64, limit: usize) -> io::Result<Vec<(u64, Name)>> {
        let mut due = Vec::new();
        let mut first = None;
        let mut failed = None;
        let from = self.waded.get().unwrap_or(self.first_place);
        self.db.scan(Family::Deadlines, from.place(), &mut |place, _| {
            let deadline_ms = place_ms(place);
            match place_name(place) {
                // Its place now, if it has one, is known there.
                Ok(name) if deadline_ms <= clock_ms && self.has_moved(&name) => {
                    return ControlFlow::Continue(());
                }
                Ok(name) if deadline_ms <= clock_ms && due.len() < limit => {
                    first.get_or_insert_with(|| FirstPlace::found(place));
                    due.push((deadline_ms, name));
                    return ControlFlow::Continue(());
                }
                Ok(_) => drop(first.get_or_insert_with(|| FirstPlace::found(place))),
                Err(error) => failed = Some(error),
            }
            ControlFlow::Break(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.waded.get_or_init(|| first.unwrap_or_else(FirstPlace::none));
        Ok(due)
    }

    /// Whether a record's place in the database may not be the one that it has now.
    fn has_moved(&self, name: &Name) -> bool {
        let ahead = self.hot.ahead(name);
        let ahead =
            ahead.filter(|ahead| ahead.now.is_none() || !seeded(SeededBug::PurgeByStaleIndex));
        self.is_changed(name) || ahead.is_some()
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

fn place_ms(place: &[u8]) -> u64 {
    place.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes))
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
pub(crate) fn first_deadline_ms(db: &dyn Database, from: &FirstPlace) -> io::Result<Option<u64>> {
    let mut first = None;
    db.scan(Family::Deadlines, from.place(), &mut |place, _| {
        first = Some(place_ms(place));
        ControlFlow::Break(())
    })?;
    Ok(first)
}

/// How many of the next `limit` deadlines have passed at `clock_ms`; none is before `from`.
pub(crate) fn count_due(
    db: &dyn Database,
    from: &FirstPlace,
    clock_ms: u64,
    limit: u64,
) -> io::Result<u64> {
    let mut count = 0;
    db.scan(Family::Deadlines, from.place(), &mut |place, _| {
        if place_ms(place) > clock_ms || count == limit {
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
        self.change(name, old.map(Record::deadline_ms), new);
        Ok(())
    }

    fn first_due(&self, clock_ms: u64, limit: usize) -> io::Result<Vec<(u64, Name)>> {
        let deadlines = self.deadlines.get_or_init(|| {
            let changed = self.touched.iter().filter(|(_, touched)| touched.changed);
            let now = |(name, touched): (&Name, &Touched)| {
                touched.now.as_ref().map(|record| (record.deadline_ms(), name.clone()))
            };
            changed.filter_map(now).collect()
        });
        let changed = deadlines.iter().take_while(|(deadline_ms, _)| *deadline_ms <= clock_ms);
        let hot = self.hot.due(clock_ms).filter(|(_, name)| !self.is_changed(name));
        let mut due = self.stored_due(clock_ms, limit)?;
        due.extend(changed.take(limit).cloned());
        due.extend(hot.map(|(deadline_ms, name)| (deadline_ms, name.clone())));
        due.sort_unstable();
        due.truncate(limit);
        Ok(due)
    }

    fn purge(&mut self, name: &Name, deadline_ms: u64) -> io::Result<()> {
        // I10 is checked where the record is at hand.
        let known = match self.touched.get(name) {
            Some(touched) => Some(touched.now.clone()),
            None => self.hot.get(name),
        };
        let agrees =
            known.is_none_or(|now| now.is_some_and(|now| now.deadline_ms() == deadline_ms));
        let agrees = agrees || seeded(SeededBug::PurgeByStaleIndex);
        assert!(agrees, "I10: the deadline index holds {name}, which is not purgeable");
        self.change(name, Some(deadline_ms), None);
        Ok(())
    }
}
