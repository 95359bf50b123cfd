//! The monotonic clocks of all nodes: each with its own origin and its own speed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_network::clock::ManualClock;
use tokio::time::{Instant, interval};

/// How often clocks that follow time are moved.
const STEP: Duration = Duration::from_millis(2);

/// One manual clock a node. They stand still until they are moved, or follow real time.
#[derive(Debug, Clone, Default)]
pub struct Clocks(Arc<Mutex<BTreeMap<u64, Driven>>>);

#[derive(Debug)]
struct Driven {
    clock: ManualClock,
    /// Seconds that it moves in a real one, while clocks follow time.
    speed: f64,
}

impl Clocks {
    /// From now on all clocks follow real time, each at its speed.
    pub(crate) fn follow_time(&self) {
        let clocks = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let (mut steps, mut last) = (interval(STEP), Instant::now());
            loop {
                let now = steps.tick().await;
                let Some(clocks) = clocks.upgrade() else { return };
                let elapsed = now.saturating_duration_since(last);
                last = last.max(now);
                for driven in clocks.lock().unwrap_or_else(PoisonError::into_inner).values() {
                    driven.clock.advance(elapsed.mul_f64(driven.speed));
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Driven>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new clock for a node that starts. It begins at a moment of its own: only differences may
    /// count.
    pub(crate) fn renew(&self, id: u64) -> ManualClock {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(3600 * id));
        let mut clocks = self.lock();
        let speed = clocks.get(&id).map_or(1.0, |driven| driven.speed);
        clocks.insert(id, Driven { clock: clock.clone(), speed });
        clock
    }

    /// A node's clock.
    #[must_use]
    pub fn of(&self, id: u64) -> ManualClock {
        self.lock()[&id].clock.clone()
    }

    /// Moves all clocks together.
    pub fn advance(&self, by: Duration) {
        self.lock().values().for_each(|driven| driven.clock.advance(by));
    }

    /// How many seconds a node's clock moves in a real one; zero stops it.
    pub fn set_speed(&self, id: u64, speed: f64) {
        if let Some(driven) = self.lock().get_mut(&id) {
            driven.speed = speed;
        }
    }
}
