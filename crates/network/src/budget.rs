//! How much memory all requests of a node may hold together.

use std::sync::Arc;

use tenure_api::Refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of all requests in flight, of both ports.
const BYTES: usize = 512 * 1024 * 1024;
/// Bytes that one permit of the semaphore stands for.
const UNIT: usize = 1024;
/// What a caller is told to wait when there is no room, in milliseconds.
const RETRY_MS: u64 = 500;

/// The room that is left. Clones are the same room.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BYTES / UNIT)))
    }
}

impl Budget {
    /// Takes room for a request of so many bytes until the permit is dropped.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when there is too little.
    pub(crate) fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let units = u32::try_from(bytes / UNIT + 1).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.0).try_acquire_many_owned(units);
        taken.map_err(|_| overloaded("requests hold all the memory that they may"))
    }
}

/// A refusal for having too much of something.
pub(crate) fn overloaded(reason: &str) -> Refusal {
    Refusal::Overloaded { reason: reason.to_owned(), retry_after_ms: RETRY_MS }
}
