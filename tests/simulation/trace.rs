//! What happened, line by line, and a hash of it: two runs are the same if their hashes are.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

/// All events of a run. Clones are the same trace.
#[derive(Clone)]
pub(crate) struct Trace {
    hash: Arc<Mutex<Sha256>>,
    is_shown: bool,
}

impl Trace {
    /// Whether lines are `shown` as they come.
    pub(crate) fn new(is_shown: bool) -> Self {
        Self { hash: Arc::default(), is_shown }
    }

    /// Adds an event at a moment of the run, in milliseconds.
    pub(crate) fn note(&self, at_ms: u128, event: impl Display) {
        let line = format!("{at_ms:>6} {event}\n");
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).update(&line);
        if self.is_shown {
            eprint!("{line}");
        }
    }

    /// The hash so far, in hex.
    pub(crate) fn hash(&self) -> String {
        let hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}
