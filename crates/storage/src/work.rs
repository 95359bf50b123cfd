//! Where work is done that waits for the disk: by threads; or, where time is simulated, by tasks
//! that take some of it and then do all at once.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// What is handed to a worker and not taken yet.
pub(crate) type Queue<T> = mpsc::UnboundedReceiver<T>;

/// Who does it.
#[derive(Clone, Default)]
pub(crate) enum Workers {
    /// Threads.
    #[default]
    Threads,
    /// Tasks of the runtime in which the storage is opened. Asked before each piece of work how
    /// long the disk takes for it. A runtime that ends takes what is not done with it, as a crash
    /// does.
    Tasks(Arc<dyn Fn() -> Duration + Send + Sync>),
}

/// Work that is handed over piece by piece, and done in that order.
pub(crate) trait Work: Send + 'static {
    /// A piece of it.
    type Item: Send + 'static;
    /// Does `first`, and as much of `more` as it takes along. Breaks off when nothing more is to be
    /// done.
    fn work(&mut self, first: Self::Item, more: &mut Queue<Self::Item>) -> ControlFlow<()>;
    /// Everything is done, and nothing more comes.
    fn end(&mut self) {}
}

/// The way to one who works. Dropping it waits until a thread has done what it was handed.
pub(crate) struct Worker<T> {
    queue: Option<mpsc::UnboundedSender<T>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts one who works by himself.
    pub(crate) fn start<W: Work>(&self, name: &str, work: W) -> io::Result<Worker<W::Item>> {
        let (queue, items) = mpsc::unbounded_channel();
        let thread = match self {
            Self::Threads => {
                let thread = std::thread::Builder::new().name(name.to_owned());
                Some(thread.spawn(move || by_thread(work, items))?)
            }
            Self::Tasks(takes) => {
                tokio::spawn(by_task(work, items, Arc::clone(takes)));
                None
            }
        };
        Ok(Worker { queue: Some(queue), thread })
    }

    /// Does one piece of work where it holds nobody up, to its end even if nobody waits for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let running = match self {
            Self::Threads => spawn_blocking(work),
            Self::Tasks(takes) => {
                let takes = takes();
                tokio::spawn(async move {
                    sleep(takes).await;
                    work()
                })
            }
        };
        running.await.map_err(io::Error::other)?
    }
}

fn by_thread<W: Work>(mut work: W, mut items: Queue<W::Item>) {
    while let Some(first) = items.blocking_recv() {
        if work.work(first, &mut items).is_break() {
            return;
        }
    }
    work.end();
}

async fn by_task<W: Work>(
    mut work: W,
    mut items: Queue<W::Item>,
    takes: Arc<dyn Fn() -> Duration + Send + Sync>,
) {
    while let Some(first) = items.recv().await {
        sleep(takes()).await;
        if work.work(first, &mut items).is_break() {
            return;
        }
    }
    work.end();
}

impl<T> Worker<T> {
    /// Hands over a piece of work; gives none when it will not be done any more.
    pub(crate) fn hand(&self, item: T) -> Option<()> {
        self.queue.as_ref()?.send(item).ok()
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(name, "a writer panicked");
            }
        }
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "Threads",
            Self::Tasks(_) => "Tasks",
        })
    }
}
