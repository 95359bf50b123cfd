//! A node's monotonic clock, which may run a little too fast or too slow.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure_network::clock::Clock;
use tokio::time::{Instant, sleep_until};

/// The wall clock at a cluster's birth.
pub(crate) const BIRTH_MS: u64 = 1_700_000_000_000;

/// Runs from when its node was started.
#[derive(Debug)]
pub(crate) struct DriftingClock {
    origin: Instant,
    /// Seconds that it shows for a real one.
    speed: f64,
}

impl DriftingClock {
    pub(crate) fn new(speed: f64) -> Self {
        Self { origin: Instant::now(), speed }
    }
}

impl Clock for DriftingClock {
    fn now(&self) -> Duration {
        self.origin.elapsed().mul_f64(self.speed)
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        sleep_until(self.origin + at.div_f64(self.speed)).boxed()
    }

    fn unix_ms(&self) -> u64 {
        BIRTH_MS
    }
}
