//! Where time enters: the only module that may read a clock.
//!
//! Cluster time is built from elapsed monotonic time alone; the wall clock is read once, when a
//! cluster is bootstrapped, so that its deadlines look like dates.

use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

/// Elapsed time since a moment of the clock's own choice.
pub trait Clock: Debug + Send + Sync {
    /// Never goes back.
    fn now(&self) -> Duration;
    /// Returns once [`Clock::now`] has reached `at`.
    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()>;
    /// The wall clock, in milliseconds since 1970. For bootstrapping a cluster, and nothing else.
    fn unix_ms(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct RealClock {
    origin: Instant,
}

impl Default for RealClock {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep_until(self.origin + at).boxed()
    }

    fn unix_ms(&self) -> u64 {
        unix_ms()
    }
}

/// A clock that moves when it is told to. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct ManualClock(watch::Sender<Duration>);

impl Default for ManualClock {
    fn default() -> Self {
        Self(watch::Sender::new(Duration::ZERO))
    }
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now += by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.0.borrow()
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        let mut now = self.0.subscribe();
        async move {
            if now.wait_for(|now| *now >= at).await.is_err() {
                // The clock is gone: its time never comes.
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn unix_ms(&self) -> u64 {
        unix_ms()
    }
}

fn unix_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the one place where a wall clock is read")]
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}
