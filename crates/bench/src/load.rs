//! The closed loop: each client asks, waits for the answer, and asks again.
//!
//! The clients run through; whoever measures opens and closes *windows* meanwhile. A call belongs
//! to the window in which it began, so that a stall at the end of a window is in its tail.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::system::{Acquired, System, fresh_key};
use crate::tally::Tally;

/// Completed keys for each client of the `duplicates` workload.
const DUPLICATES_EACH: usize = 16;
/// Of a hundred calls of `duplicates`, how many are duplicates.
const DUPLICATES_OF_100: u32 = 90;
/// Most concurrent clients.
pub const CLIENTS_MAX: u32 = 100_000;
/// Between an error and the next call of its client, so that a dead cluster is not hammered.
const ERROR_PAUSE: Duration = Duration::from_millis(5);

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Acquire and complete fresh keys; each is an operation.
    Cycle,
    /// Nine of ten are acquires of completed keys, the tenth a cycle.
    Duplicates,
    /// Each client holds one record and extends its lease.
    Heartbeat,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cycle, Self::Duplicates, Self::Heartbeat];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Duplicates => "duplicates",
            Self::Heartbeat => "heartbeat",
        }
    }
}

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// What the clients do.
    pub workload: Workload,
    /// How many, 1 to [`CLIENTS_MAX`].
    pub clients: u32,
    /// Bytes of each result, which replays are checked against.
    pub payload: usize,
}

/// Clients that run until [`Running::stop`].
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<anyhow::Result<()>>>,
}

/// What the clients share.
#[derive(Debug)]
struct Shared {
    /// The window that is open: 0 for none, [`OVER`] at the end.
    window: AtomicUsize,
    /// Operations in and out of windows.
    ops: AtomicU64,
    /// Tallies of the windows so far, in lanes that clients share: one for each client would be more
    /// memory than a processor's cache holds, and the bench would measure itself.
    lanes: [Mutex<Vec<Tally>>; LANES],
}

/// More than threads that count at the same time.
const LANES: usize = 8;

/// The window of a load that is over.
const OVER: usize = usize::MAX;

impl Running {
    /// Starts the clients; client `i` uses connection `i` modulo their number. When this returns,
    /// `duplicates` has its completed keys. No window is open yet.
    ///
    /// # Errors
    /// When the load is out of bounds, or the store does not take what has to be prepared.
    pub async fn start<S: System>(connections: Vec<Arc<S>>, load: Load) -> anyhow::Result<Self> {
        ensure!(
            (1..=CLIENTS_MAX).contains(&load.clients),
            "there can be 1 to {CLIENTS_MAX} clients"
        );
        ensure!(!connections.is_empty(), "there is no connection");
        let completed = Arc::new(prepare(&connections, load).await?);
        let shared = Arc::new(Shared {
            window: AtomicUsize::new(0),
            ops: AtomicU64::new(0),
            lanes: Default::default(),
        });
        let clients = clients_of(&connections, load).enumerate().map(|(number, connection)| {
            let client = Client {
                connection: Arc::clone(connection),
                load,
                shared: Arc::clone(&shared),
                completed: Arc::clone(&completed),
                lane: number % LANES,
            };
            tokio::spawn(client.run())
        });
        let clients = clients.collect();
        Ok(Self { shared, clients })
    }

    /// Opens window `number` (from 1 up) and closes the one before; 0 only closes.
    pub fn open(&self, number: usize) {
        self.shared.window.store(number, Ordering::Relaxed);
    }

    /// Operations so far, in windows or not.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.shared.ops.load(Ordering::Relaxed)
    }

    /// Lets each client end its call. Gives what came of each window, the first at place 0.
    ///
    /// # Errors
    /// When a client could not go on.
    pub async fn stop(self) -> anyhow::Result<Vec<Tally>> {
        self.open(OVER);
        for client in self.clients {
            client.await.context("a client of the bench failed")??;
        }
        let mut sums: Vec<Tally> = Vec::new();
        for lane in &self.shared.lanes {
            for (place, tally) in std::mem::take(&mut *lock(lane)).into_iter().enumerate() {
                match sums.get_mut(place) {
                    Some(sum) => sum.add(tally)?,
                    None => sums.push(tally),
                }
            }
        }
        Ok(sums)
    }
}

fn lock(lane: &Mutex<Vec<Tally>>) -> MutexGuard<'_, Vec<Tally>> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection of each client.
fn clients_of<S>(connections: &[Arc<S>], load: Load) -> impl Iterator<Item = &Arc<S>> {
    let clients = usize::try_from(load.clients).unwrap_or(usize::MAX);
    connections.iter().cycle().take(clients)
}

/// Completes what `duplicates` needs.
async fn prepare<S: System>(connections: &[Arc<S>], load: Load) -> anyhow::Result<Vec<String>> {
    if load.workload != Workload::Duplicates {
        return Ok(Vec::new());
    }
    let makers = clients_of(connections, load).map(|connection| {
        let connection = Arc::clone(connection);
        tokio::spawn(async move {
            let mut keys = Vec::new();
            for _ in 0..DUPLICATES_EACH {
                let key = fresh_key();
                let held = held(connection.acquire(&key).await?)?;
                connection.complete(&key, held).await?;
                keys.push(key);
            }
            anyhow::Ok(keys)
        })
    });
    let makers: Vec<_> = makers.collect();
    let mut completed = Vec::new();
    for maker in makers {
        let made = maker.await.context("a client of the bench failed")?;
        completed.extend(made.context("cannot complete the keys of the duplicates")?);
    }
    Ok(completed)
}

/// What an acquire of a fresh key has to come to.
fn held<H>(acquired: Acquired<H>) -> anyhow::Result<H> {
    match acquired {
        Acquired::Held(held) => Ok(held),
        Acquired::Replayed(_) => bail!("a fresh key was complete"),
    }
}

/// One client.
struct Client<S> {
    connection: Arc<S>,
    load: Load,
    shared: Arc<Shared>,
    completed: Arc<Vec<String>>,
    lane: usize,
}

impl<S: System> Client<S> {
    async fn run(mut self) -> anyhow::Result<()> {
        match self.load.workload {
            Workload::Cycle => while self.cycle().await? {},
            Workload::Duplicates => {
                while if rand::random_range(0..100) < DUPLICATES_OF_100 {
                    self.duplicate().await?
                } else {
                    self.cycle().await?
                } {}
            }
            Workload::Heartbeat => self.heartbeats().await?,
        }
        Ok(())
    }

    /// Whether it goes on.
    fn goes_on(&self) -> bool {
        self.shared.window.load(Ordering::Relaxed) != OVER
    }

    async fn cycle(&mut self) -> anyhow::Result<bool> {
        let (key, connection) = (fresh_key(), Arc::clone(&self.connection));
        let acquire = async { held(connection.acquire(&key).await?) };
        if S::ACQUIRE_COMPLETES {
            self.measure(2 * S::WIDTH, acquire).await?;
        } else if let Some(held) = self.measure(S::WIDTH, acquire).await? {
            self.measure(S::WIDTH, connection.complete(&key, held)).await?;
        }
        Ok(self.goes_on())
    }

    async fn duplicate(&mut self) -> anyhow::Result<bool> {
        let (completed, connection) = (Arc::clone(&self.completed), Arc::clone(&self.connection));
        let key = completed.get(rand::random_range(0..completed.len()));
        let key = key.context("nothing was completed")?;
        let expected = self.load.payload;
        let replay = async {
            match connection.acquire(key).await? {
                Acquired::Replayed(bytes) if bytes == expected => Ok(()),
                Acquired::Replayed(bytes) => {
                    bail!("a result of {bytes} bytes came back, {expected} went in")
                }
                Acquired::Held(_) => bail!("a completed key was granted again"),
            }
        };
        self.measure(S::WIDTH, replay).await?;
        Ok(self.goes_on())
    }

    async fn heartbeats(&mut self) -> anyhow::Result<()> {
        let (key, connection) = (fresh_key(), Arc::clone(&self.connection));
        let mut held = held(connection.acquire(&key).await?)?;
        while self.goes_on() {
            self.measure(S::WIDTH, connection.extend(&key, &mut held)).await?;
        }
        Ok(())
    }

    /// Counts a call of `width` operations with its latency, or its error, in the window in which
    /// it began.
    async fn measure<T>(
        &mut self,
        width: u64,
        call: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Option<T>> {
        let window = self.shared.window.load(Ordering::Relaxed);
        let began = Instant::now();
        let came_to = call.await;
        let latency = began.elapsed();
        let error = match came_to {
            Ok(value) => {
                self.shared.ops.fetch_add(width, Ordering::Relaxed);
                self.count(window, |tally| tally.succeeded(latency, width))?;
                return Ok(Some(value));
            }
            Err(error) => error,
        };
        self.count(window, |tally| tally.failed(&error))?;
        sleep(ERROR_PAUSE).await;
        Ok(None)
    }

    fn count(&self, window: usize, add: impl FnOnce(&mut Tally)) -> anyhow::Result<()> {
        if window == 0 || window == OVER {
            return Ok(());
        }
        let Some(lane) = self.shared.lanes.get(self.lane) else { return Ok(()) };
        let mut tallies = lock(lane);
        while tallies.len() < window {
            tallies.push(Tally::new()?);
        }
        tallies.get_mut(window - 1).map(add);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;

    /// A store in memory. Each call takes a millisecond of virtual time.
    #[derive(Debug, Default)]
    struct Memory {
        complete: Mutex<HashMap<String, bool>>,
        forgets: bool,
    }

    impl System for Memory {
        type Held = ();
        async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<()>> {
            sleep(Duration::from_millis(1)).await;
            let mut complete = self.complete.lock().unwrap();
            match complete.get(key) {
                Some(true) if !self.forgets => Ok(Acquired::Replayed(4)),
                _ => {
                    complete.insert(key.to_owned(), false);
                    Ok(Acquired::Held(()))
                }
            }
        }
        async fn complete(&self, key: &str, (): ()) -> anyhow::Result<()> {
            sleep(Duration::from_millis(1)).await;
            self.complete.lock().unwrap().insert(key.to_owned(), true);
            Ok(())
        }
        async fn extend(&self, _key: &str, (): &mut ()) -> anyhow::Result<()> {
            sleep(Duration::from_millis(1)).await;
            Ok(())
        }
    }

    async fn windows(store: Memory, workload: Workload, payload: usize) -> Vec<Tally> {
        let load = Load { workload, clients: 4, payload };
        let running = Running::start(vec![Arc::new(store)], load).await.unwrap();
        sleep(Duration::from_millis(100)).await;
        running.open(1);
        sleep(Duration::from_millis(200)).await;
        running.open(0);
        sleep(Duration::from_millis(300)).await;
        running.open(2);
        sleep(Duration::from_millis(400)).await;
        running.stop().await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_has_the_calls_that_began_in_it() {
        for workload in Workload::ALL {
            let tallies = windows(Memory::default(), workload, 4).await;
            let [first, second] = &tallies[..] else { panic!("{tallies:?}") };
            assert_eq!((first.errors, second.errors), (0, 0), "{workload:?} {first:?}");
            assert!((700..=804).contains(&first.ops()), "{workload:?} {}", first.ops());
            assert!((1500..=1604).contains(&second.ops()), "{workload:?} {}", second.ops());
            assert!(first.quantile_ms(0.5) >= 1.0, "{}", first.quantile_ms(0.5));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_answer_is_an_error_and_no_operation() {
        let forgets = Memory { forgets: true, ..Memory::default() };
        let tallies = windows(forgets, Workload::Duplicates, 4).await;
        assert!(tallies[0].errors > 0);
        let error = tallies[0].first_error.as_deref();
        assert_eq!(error, Some("a completed key was granted again"));
        let tallies = windows(Memory::default(), Workload::Duplicates, 5).await;
        assert!(tallies[0].errors > 0, "the size of a result is not looked at");
    }

    #[tokio::test]
    async fn the_number_of_clients_is_bounded() {
        for clients in [0, CLIENTS_MAX + 1] {
            let load = Load { workload: Workload::Cycle, clients, payload: 0 };
            assert!(Running::start(vec![Arc::new(Memory::default())], load).await.is_err());
        }
    }
}
