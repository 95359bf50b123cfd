//! The one writer of generations of the state to the database, behind apply.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::work::{Queue, Work, Worker, Workers};

use super::Shared;
use super::hot::GENERATION_BYTES;

/// Who waits until the database is up to date; nobody when a generation is just full.
type Ask = Option<oneshot::Sender<io::Result<()>>>;

/// The way to the writer. Dropping it waits until the writer has done what it was asked.
#[derive(Debug)]
pub(super) struct Behind {
    worker: Worker<Ask>,
    /// The writer was told that a generation is full, and has not looked yet.
    told: Arc<AtomicBool>,
}

/// Writes generation by generation.
struct Generations {
    shared: Arc<Shared>,
    told: Arc<AtomicBool>,
}

impl Work for Generations {
    type Item = Ask;

    fn work(&mut self, ask: Ask, _more: &mut Queue<Ask>) -> ControlFlow<()> {
        self.told.store(false, Ordering::Release);
        let written = self.shared.write_behind().map(drop);
        match ask {
            // Who does not wait any more does not need to know.
            Some(reply) => drop(reply.send(written)),
            None if written.is_err() => return ControlFlow::Break(()),
            None => {}
        }
        ControlFlow::Continue(())
    }
}

impl Behind {
    pub(super) fn start(workers: &Workers, shared: Arc<Shared>) -> io::Result<Self> {
        let told = Arc::new(AtomicBool::new(false));
        let work = Generations { shared, told: Arc::clone(&told) };
        Ok(Self { worker: workers.start("state", work)?, told })
    }

    /// Returns once the database has everything that is applied now.
    pub(super) async fn settle(&self) -> io::Result<()> {
        let (reply, done) = oneshot::channel();
        self.ask(Some(reply))?;
        done.await.map_err(|_| stopped())?
    }

    /// Has a full generation written. Waits for it only when a second one has gathered meanwhile:
    /// apply goes no faster than the disk, and memory stays bounded.
    pub(super) async fn relieve(&self, young_bytes: usize) -> io::Result<()> {
        if young_bytes >= 2 * GENERATION_BYTES {
            return self.settle().await;
        }
        if young_bytes >= GENERATION_BYTES && !self.told.swap(true, Ordering::AcqRel) {
            self.ask(None)?;
        }
        Ok(())
    }

    fn ask(&self, ask: Ask) -> io::Result<()> {
        self.worker.hand(ask).ok_or_else(stopped)
    }
}

fn stopped() -> io::Error {
    io::Error::other("the state's writer has stopped")
}
