//! The one thread that writes generations of the state to the database, behind apply.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::Shared;
use super::hot::GENERATION_BYTES;

/// Who waits until the database is up to date; nobody when a generation is just full.
type Ask = Option<oneshot::Sender<io::Result<()>>>;

/// The way to the thread. Dropping it waits until the thread has done what it was asked.
#[derive(Debug)]
pub(super) struct Behind {
    queue: Option<mpsc::Sender<Ask>>,
    /// The thread was told that a generation is full, and has not looked yet.
    told: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Behind {
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (queue, asks) = mpsc::channel::<Ask>();
        let told = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&told);
        let run = move || {
            while let Ok(ask) = asks.recv() {
                seen.store(false, Ordering::Release);
                let written = shared.write_behind().map(drop);
                let written = shared.fail.guard("the state could not be written", written);
                match ask {
                    // Who does not wait any more does not need to know.
                    Some(reply) => drop(reply.send(written)),
                    None if written.is_err() => return,
                    None => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("state".into()).spawn(run)?;
        Ok(Self { queue: Some(queue), told, thread: Some(thread) })
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
        self.queue.as_ref().and_then(|queue| queue.send(ask).ok()).ok_or_else(stopped)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the state's writer panicked");
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the state's writer has stopped")
}
