//! Records that changed lately, so that apply and reads seldom ask the disk: most records are
//! acquired, completed and replayed within a short time.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_state_machine::{Name, Record};

/// Bytes of one generation; there are two.
const GENERATION_BYTES: usize = 32 * 1024 * 1024;
/// What an entry takes beside its record and its name, about.
const ENTRY_BYTES: usize = 128;

/// What it has is what the database has. A full young generation becomes the old one, and the old
/// one goes: what was not changed for so long is left to the disk.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    young: HashMap<Name, Arc<Record>>,
    old: HashMap<Name, Arc<Record>>,
    young_bytes: usize,
}

impl Cache {
    /// The record, if it is here. Without it, nothing is known.
    pub(crate) fn get(&self, name: &Name) -> Option<&Arc<Record>> {
        self.young.get(name).or_else(|| self.old.get(name))
    }

    /// Takes over what is written to the database.
    pub(crate) fn put(&mut self, name: &Name, record: Option<Arc<Record>>) {
        let Some(record) = record else {
            self.young.remove(name);
            self.old.remove(name);
            return;
        };
        self.young_bytes += record.size() + name.as_stored().len() + ENTRY_BYTES;
        self.young.insert(name.clone(), record);
        if self.young_bytes > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_state_machine::{Holder, State, Token};

    use super::*;

    fn name(i: usize) -> Name {
        Name::new("s", &format!("k{i}")).unwrap()
    }

    fn record(token: u64) -> Arc<Record> {
        let state = State::Complete { completed_ms: 1, expires_ms: 2, payload: None };
        let token = Token::new(token).unwrap();
        let holder = Holder::default();
        Arc::new(Record { token, holder, fingerprint: None, acquired_ms: 1, state })
    }

    #[test]
    fn it_has_what_was_put_last_and_nothing_that_was_removed() {
        let mut cache = Cache::default();
        cache.put(&name(1), Some(record(1)));
        cache.put(&name(1), Some(record(2)));
        assert_eq!(cache.get(&name(1)), Some(&record(2)));
        cache.put(&name(1), None);
        assert_eq!(cache.get(&name(1)), None);
    }

    #[test]
    fn it_forgets_what_is_oldest_and_never_shows_an_older_record() {
        let mut cache = Cache::default();
        cache.put(&name(0), Some(record(1)));
        let fill = |cache: &mut Cache| {
            let mut i = 1;
            while !cache.young.is_empty() {
                cache.put(&name(i), Some(record(1)));
                i += 1;
            }
        };
        fill(&mut cache);
        assert_eq!(cache.get(&name(0)), Some(&record(1)), "still in the old generation");
        cache.put(&name(0), Some(record(2)));
        assert_eq!(cache.get(&name(0)), Some(&record(2)), "the young one counts");
        fill(&mut cache);
        assert_eq!(cache.get(&name(0)), Some(&record(2)));
        cache.put(&name(1), None);
        assert_eq!(cache.get(&name(1)), None);
        cache.put(&name(1), Some(record(3)));
        fill(&mut cache);
        fill(&mut cache);
        assert_eq!(cache.get(&name(0)), None, "two generations later");
    }
}
