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

/// The changes of one or more steps.
pub(crate) type Changes = HashMap<Name, Changed>;

/// Generations over the database; the youngest that has a record counts.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    young: Changes,
    /// About how much memory `young` takes.
    young_bytes: usize,
    frozen: Option<Arc<Changes>>,
    frozen_bytes: usize,
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
        let older = || self.frozen.as_ref().and_then(|frozen| frozen.get(name));
        let written = || self.kept.get(name).or_else(|| self.old.get(name));
        match self.young.get(name).or_else(older).or_else(written) {
            Some(changed) => Some(changed.now.clone()),
            None => self.found.get(name),
        }
    }

    /// Keeps what the database was found to have where nothing was known.
    pub(crate) fn found(&self, name: &Name, stored: &Option<Arc<Record>>) {
        self.found.insert(name, stored);
    }

    /// Takes over the changes of a step.
    pub(crate) fn absorb(&mut self, changes: impl IntoIterator<Item = (Name, Changed)>) {
        for (name, change) in changes {
            let record_bytes = change.now.as_ref().map_or(0, |record| record.size());
            self.young_bytes += record_bytes + name.as_stored().len() + ENTRY_BYTES;
            match self.young.entry(name) {
                Entry::Occupied(changed) => changed.into_mut().now = change.now,
                Entry::Vacant(place) => drop(place.insert(change)),
            }
        }
    }

    /// Bytes that are neither written nor on their way.
    pub(crate) fn young_bytes(&self) -> usize {
        self.young_bytes
    }

    /// Begins a new young generation, and gives the one that is to be written now. The one before
    /// it must be written.
    pub(crate) fn freeze(&mut self) -> Arc<Changes> {
        debug_assert!(self.frozen.is_none(), "one generation is written at a time");
        self.frozen_bytes = std::mem::take(&mut self.young_bytes);
        // The next one will be about as large.
        let next = Changes::with_capacity(self.young.len());
        let frozen = Arc::new(std::mem::replace(&mut self.young, next));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// The frozen generation is in the database. Gives what is forgotten for it, which may take
    /// long to drop.
    pub(crate) fn written(&mut self) -> Changes {
        let frozen = self.frozen.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        self.kept_bytes += std::mem::take(&mut self.frozen_bytes);
        self.kept.extend(frozen);
        if self.kept_bytes <= KEPT_BYTES {
            return Changes::new();
        }
        self.kept_bytes = 0;
        self.found.age();
        let kept = std::mem::take(&mut self.kept);
        std::mem::replace(&mut self.old, kept)
    }
}

/// A frozen generation for the database, in the order of keys, and its first place in the deadline
/// index.
pub(crate) fn batch(changes: &Changes, meta: &Meta) -> io::Result<(Batch, Option<Vec<u8>>)> {
    let mut sorted: Vec<(&Name, &Changed)> = changes.iter().collect();
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
    let first = places.iter().find(|(_, added)| *added).map(|(place, _)| place.clone());
    for (place, added) in places {
        if added {
            batch.put(Family::Deadlines, place, Vec::new());
        } else {
            batch.delete(Family::Deadlines, place);
        }
    }
    meta.write(&mut batch)?;
    Ok((batch, first))
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
    fn written(changes: &Changes) -> Vec<(bool, Family, Vec<u8>)> {
        let (batch, _) = batch(changes, &Meta::default()).unwrap();
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
        assert!(hot.freeze().is_empty() && hot.get(&name(1)).is_none());
        hot.written();
        change(&mut hot, 1, None, record(1, 5));
        assert_eq!(hot.freeze().len(), 1);
        change(&mut hot, 1, Some(5), record(2, 5));
        change(&mut hot, 2, Some(9), None);
        assert_eq!(hot.get(&name(1)), Some(record(2, 5)));
        hot.written();
        assert_eq!(hot.get(&name(1)), Some(record(2, 5)));
        assert_eq!(hot.get(&name(2)), Some(None), "it is known that there is none");
        assert_eq!((hot.freeze().len(), hot.young_bytes()), (2, 0));
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
