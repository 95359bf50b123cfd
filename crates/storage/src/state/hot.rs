//! Records that changed lately: written behind, in one piece, and kept for a while after.
//!
//! Most records are acquired, completed and replayed within a short time. So changes gather in a
//! *young* generation, where a record that changed ten times counts once; a full one is *frozen*
//! and written to the database, sorted, as one batch with the log id up to which it goes; and once
//! it is *written* it stays until the next one is, since what changed last is asked for most.
//! Nothing is lost by it: the state is not written ahead in any case, and comes again from the log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;

use tenure_state_machine::{Name, Record, codec};

use crate::disk::{Batch, Family};
use crate::txn::{VERSION, deadline_place};

use super::Meta;
use super::found::Found;

/// A young generation of so many bytes is full: some thousand records, enough for most to be
/// completed meanwhile, and few enough that others hardly notice the write.
pub(super) const GENERATION_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of records that are kept once they are written, twice.
const KEPT_BYTES: usize = 8 * 1024 * 1024;
/// What an entry takes beside its record and its name, in bytes, about.
pub(super) const ENTRY_BYTES: usize = 160;

/// A record that changed: what it is now, and what the layer beneath has.
#[derive(Debug, Clone)]
pub(crate) struct Changed {
    /// The deadline of the record beneath, none when it has no record.
    pub(crate) beneath_ms: Option<u64>,
    /// The record now; none when it was removed.
    pub(crate) now: Option<Arc<Record>>,
}

/// Changes by name.
pub(crate) type Changes = HashMap<Name, Changed>;

/// The changes of one or more steps, which the database does not have yet.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    pub(crate) changes: Changes,
    /// About how much memory they take.
    bytes: usize,
    /// No deadline in it is before this one, in milliseconds.
    first_ms: u64,
}

impl Default for Generation {
    fn default() -> Self {
        Self { changes: Changes::new(), bytes: 0, first_ms: u64::MAX }
    }
}

impl Generation {
    fn absorb(&mut self, name: Name, change: Changed) {
        let (now_bytes, now_ms) = match &change.now {
            Some(record) => (record.size(), record.deadline_ms()),
            None => (0, u64::MAX),
        };
        self.bytes += now_bytes + name.as_stored().len() + ENTRY_BYTES;
        self.first_ms = self.first_ms.min(now_ms);
        match self.changes.entry(name) {
            Entry::Occupied(changed) => changed.into_mut().now = change.now,
            Entry::Vacant(place) => drop(place.insert(change)),
        }
    }

    /// Records whose deadline has passed at `clock_ms`, with it. Looks at all, unless it knows that
    /// there are none.
    fn due(&self, clock_ms: u64) -> impl Iterator<Item = (u64, &Name)> {
        let changes = (self.first_ms <= clock_ms).then_some(&self.changes);
        let deadlines = changes.into_iter().flatten().filter_map(|(name, changed)| {
            changed.now.as_ref().map(|record| (record.deadline_ms(), name))
        });
        deadlines.filter(move |(deadline_ms, _)| *deadline_ms <= clock_ms)
    }
}

/// Generations over the database; the youngest that has a record counts.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    young: Generation,
    frozen: Option<Arc<Generation>>,
    /// Written, the newer half and the older one.
    kept: Changes,
    kept_bytes: usize,
    old: Changes,
    /// Of names that none of these has.
    found: Found,
}

impl Hot {
    /// The record, or that there is none, if that is known here.
    pub(crate) fn get(&self, name: &Name) -> Option<Option<Arc<Record>>> {
        let written = || self.kept.get(name).or_else(|| self.old.get(name));
        match self.ahead(name).or_else(written) {
            Some(changed) => Some(changed.now.clone()),
            None => self.found.get(name),
        }
    }

    /// What the database may not have yet of a record.
    pub(crate) fn ahead(&self, name: &Name) -> Option<&Changed> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.changes.get(name));
        self.young.changes.get(name).or_else(frozen)
    }

    /// Records that [`Hot::ahead`] knows and whose deadline has passed at `clock_ms`, with it.
    pub(crate) fn due(&self, clock_ms: u64) -> impl Iterator<Item = (u64, &Name)> {
        let frozen = self.frozen.iter().flat_map(move |frozen| frozen.due(clock_ms));
        let frozen = frozen.filter(|(_, name)| !self.young.changes.contains_key(*name));
        self.young.due(clock_ms).chain(frozen)
    }

    /// Keeps what the database was found to have where nothing was known.
    pub(crate) fn found(&self, name: &Name, stored: &Option<Arc<Record>>) {
        self.found.insert(name, stored);
    }

    /// Takes over the changes of a step.
    pub(crate) fn absorb(&mut self, changes: impl IntoIterator<Item = (Name, Changed)>) {
        for (name, change) in changes {
            self.young.absorb(name, change);
        }
    }

    /// Bytes that are neither written nor on their way.
    pub(crate) fn young_bytes(&self) -> usize {
        self.young.bytes
    }

    /// Begins a new young generation, and gives the one that is to be written now. The one before
    /// it must be written.
    pub(crate) fn freeze(&mut self) -> Arc<Generation> {
        debug_assert!(self.frozen.is_none(), "one generation is written at a time");
        // The next one will be about as large.
        let changes = Changes::with_capacity(self.young.changes.len());
        let next = Generation { changes, ..Generation::default() };
        let frozen = Arc::new(std::mem::replace(&mut self.young, next));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// The frozen generation is in the database. Gives the deadline, in milliseconds, that none in
    /// it is before, and what is forgotten for it, which may take long to drop.
    pub(crate) fn written(&mut self) -> (u64, Changes) {
        let frozen = self.frozen.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        self.kept_bytes += frozen.bytes;
        self.kept.extend(frozen.changes);
        if self.kept_bytes <= KEPT_BYTES {
            return (frozen.first_ms, Changes::new());
        }
        self.kept_bytes = 0;
        self.found.age();
        let kept = std::mem::take(&mut self.kept);
        (frozen.first_ms, std::mem::replace(&mut self.old, kept))
    }

    /// Forgets what the database has.
    #[cfg(test)]
    pub(crate) fn forget(&mut self) {
        (self.kept, self.old, self.found) = Default::default();
    }
}

/// A frozen generation for the database, in the order of keys.
pub(crate) fn batch(frozen: &Generation, meta: &Meta) -> io::Result<Batch> {
    let mut sorted: Vec<(&Name, &Changed)> = frozen.changes.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    let mut batch = Batch::default();
    // Whether each place is in the index afterwards.
    let mut places = Vec::with_capacity(sorted.len());
    for (name, changed) in sorted {
        let now_ms = changed.now.as_ref().map(|record| record.deadline_ms());
        match &changed.now {
            Some(record) => {
                let sealed = codec::seal(VERSION, &**record).map_err(io::Error::other)?;
                batch.put(Family::Records, name.as_stored(), sealed);
            }
            None if changed.beneath_ms.is_some() => {
                batch.delete(Family::Records, name.as_stored());
            }
            None => {}
        }
        if changed.beneath_ms != now_ms {
            places.extend(changed.beneath_ms.map(|ms| (deadline_place(ms, name), false)));
            places.extend(now_ms.map(|ms| (deadline_place(ms, name), true)));
        }
    }
    places.sort_unstable();
    for (place, added) in places {
        if added {
            batch.put(Family::Deadlines, place, Vec::new());
        } else {
            batch.delete(Family::Deadlines, place);
        }
    }
    meta.write(&mut batch)?;
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use tenure_state_machine::{Holder, State, Token};

    use super::*;
    use crate::disk::Change;

    fn name(i: usize) -> Name {
        Name::new("s", &format!("k{i}")).unwrap()
    }

    fn record(token: u64, expires_ms: u64) -> Option<Arc<Record>> {
        let state = State::Complete { completed_ms: 1, expires_ms, payload: None };
        let token = Token::new(token).unwrap();
        let holder = Holder::default();
        Some(Arc::new(Record { token, holder, fingerprint: None, acquired_ms: 1, state }))
    }

    fn change(hot: &mut Hot, i: usize, beneath_ms: Option<u64>, now: Option<Arc<Record>>) {
        hot.absorb(HashMap::from([(name(i), Changed { beneath_ms, now })]));
    }

    /// Puts and deletes in each family, in the order written.
    fn written(frozen: &Generation) -> Vec<(bool, Family, Vec<u8>)> {
        let batch = batch(frozen, &Meta::default()).unwrap();
        let changes = batch.changes.into_iter().map(|change| match change {
            Change::Put(family, key, _) => (true, family, key),
            Change::Delete(family, key) => (false, family, key),
            Change::DeleteRange(..) => panic!("a generation deletes key by key"),
        });
        changes.filter(|(_, family, _)| *family != Family::Meta).collect()
    }

    #[test]
    fn the_younger_generation_counts() {
        let mut hot = Hot::default();
        assert!(hot.freeze().changes.is_empty() && hot.get(&name(1)).is_none());
        hot.written();
        change(&mut hot, 1, None, record(1, 5));
        assert_eq!(hot.freeze().changes.len(), 1);
        change(&mut hot, 1, Some(5), record(2, 5));
        change(&mut hot, 2, Some(9), None);
        assert_eq!(hot.get(&name(1)), Some(record(2, 5)));
        hot.written();
        assert_eq!(hot.get(&name(1)), Some(record(2, 5)));
        assert_eq!(hot.get(&name(2)), Some(None), "it is known that there is none");
        assert_eq!((hot.freeze().changes.len(), hot.young_bytes()), (2, 0));
        hot.written();
        assert_eq!(hot.get(&name(1)), Some(record(2, 5)));
    }

    #[test]
    fn what_is_written_is_kept_until_as_much_was_written_after_it() {
        let mut hot = Hot::default();
        let mut i = 0;
        let mut fill = |hot: &mut Hot| {
            let first = i;
            while i == first || !hot.kept.is_empty() {
                change(hot, i, None, record(1, 5));
                i += 1;
                hot.freeze();
                hot.written();
            }
            first
        };
        let first = fill(&mut hot);
        assert!(hot.get(&name(first)).is_some() && hot.kept.is_empty());
        let second = fill(&mut hot);
        assert!(hot.get(&name(first)).is_none() && hot.get(&name(second)).is_some());
    }

    #[test]
    fn a_record_that_changed_often_is_written_once() {
        let mut hot = Hot::default();
        change(&mut hot, 1, Some(5), record(1, 7));
        change(&mut hot, 1, Some(7), record(1, 9));
        let place = |ms| deadline_place(ms, &name(1));
        let key = name(1).as_stored().to_vec();
        assert_eq!(
            written(&hot.freeze()),
            [
                (true, Family::Records, key.clone()),
                (false, Family::Deadlines, place(5)),
                (true, Family::Deadlines, place(9)),
            ]
        );
        hot.written();
        // Back where it was: the index has it already.
        change(&mut hot, 1, Some(9), record(1, 11));
        change(&mut hot, 1, Some(11), record(2, 9));
        assert_eq!(written(&hot.freeze()), [(true, Family::Records, key)]);
    }

    #[test]
    fn a_record_that_came_and_went_is_not_written_at_all() {
        let mut hot = Hot::default();
        change(&mut hot, 1, None, record(1, 7));
        change(&mut hot, 1, Some(7), None);
        assert_eq!(written(&hot.freeze()), []);
    }
}
