//! What reads found in the database lately, so that who looks again does not ask it again.
//!
//! A request looks at its record more than once: when it comes, after its read index, when its
//! entry is applied. Most look for a record that is not there, and no database says that fast. And
//! a result that is asked for once is often asked for again.
//!
//! - **H1** Changes come first, and what was found before a change is forgotten no later than that
//!   change. It is in the newer half, or was looked at again while no change of it was known; each
//!   time changes are forgotten the halves move on, and a change is there for two such times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_state_machine::{Name, Record};

use super::hot::ENTRY_BYTES;

/// A half of so many bytes is full.
const HALF_BYTES: usize = 4 * 1024 * 1024;

/// A record of the database, none when it has none.
type Stored = Option<Arc<Record>>;

/// What was found, in two halves: who is asked for stays.
#[derive(Debug, Default)]
pub(super) struct Found(Mutex<Halves>);

#[derive(Debug, Default)]
struct Halves {
    newer: HashMap<Name, Stored>,
    newer_bytes: usize,
    older: HashMap<Name, Stored>,
}

impl Found {
    /// What the database has, if that is known. Only for names that no change is known of.
    pub(super) fn get(&self, name: &Name) -> Option<Stored> {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = halves.newer.get(name) {
            return Some(stored.clone());
        }
        let (name, stored) = halves.older.remove_entry(name)?;
        halves.insert(name, stored.clone());
        Some(stored)
    }

    /// Keeps what was found. Whoever found it has kept changes from being forgotten since.
    pub(super) fn insert(&self, name: &Name, stored: &Stored) {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        halves.insert(name.clone(), stored.clone());
    }

    /// Changes are being forgotten (H1).
    pub(super) fn age(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).age();
    }
}

impl Halves {
    fn insert(&mut self, name: Name, stored: Stored) {
        let record_bytes = stored.as_ref().map_or(0, |record| record.size());
        self.newer_bytes += record_bytes + name.as_stored().len() + ENTRY_BYTES;
        self.newer.insert(name, stored);
        if self.newer_bytes > HALF_BYTES {
            self.age();
        }
    }

    fn age(&mut self) {
        self.newer_bytes = 0;
        self.older = std::mem::take(&mut self.newer);
    }
}
