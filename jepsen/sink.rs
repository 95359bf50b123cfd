//! Where effects go: a sink that keeps the highest token per key, as whoever must not be written
//! to by a late holder should.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// All keys of a run.
#[derive(Debug, Default)]
pub struct Sink(Mutex<BTreeMap<String, Written>>);

#[derive(Debug, Default)]
struct Written {
    highest: u64,
    /// The tokens whose effects were accepted.
    accepted: Vec<u64>,
}

impl Sink {
    /// Writes the effect of a holder, and says whether it was accepted: it is fenced once a higher
    /// token has written.
    ///
    /// # Panics
    /// When another writer panicked.
    pub fn write(&self, key: &str, token: u64) -> bool {
        let mut keys = self.0.lock().unwrap();
        let written = keys.entry(key.to_owned()).or_default();
        let accepts = token >= written.highest;
        if accepts {
            written.highest = token;
            written.accepted.push(token);
        }
        accepts
    }

    /// The accepted tokens of each key.
    ///
    /// # Panics
    /// When a writer panicked.
    #[must_use]
    pub fn accepted(&self) -> BTreeMap<String, Vec<u64>> {
        let keys = self.0.lock().unwrap();
        keys.iter().map(|(key, written)| (key.clone(), written.accepted.clone())).collect()
    }
}
