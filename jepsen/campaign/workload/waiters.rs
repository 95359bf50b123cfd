//! The workload `hang-ups`: a record is held while others wait for it and hang up; once it is
//! released nobody has it.

use std::time::Duration;

use rand::RngExt as _;
use tenure_jepsen::door::Send;
use tenure_jepsen::history::Op;
use tokio::time::Instant;

use super::{HOUR_MS, LONG_MS, Worker};

/// Who waits for one record and hangs up.
const WAITERS: usize = 2;
/// How long the record is held after that: long enough for a leader to know that they are gone.
const HELD: Duration = Duration::from_millis(1300);
/// Looks at the record once it is released.
const LOOKS: usize = 8;

impl Worker {
    /// One record, held and released.
    pub(super) fn keep_waiting(&mut self) {
        let number = self.shared.keys.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let key = format!("key-{number}");
        let holder = format!("holder of {key}");
        let op = self.acquire(&holder, LONG_MS..LONG_MS + 1, HOUR_MS..HOUR_MS + 1);
        let outcome = self.send(&key, op, 0);
        let Some(token) = outcome.body().and_then(|body| body["token"].as_u64()) else { return };
        for waiter in 0..WAITERS {
            self.wait_and_hang_up(&key, &format!("waiter {waiter} for {key}"));
        }
        let released = Instant::now() + HELD;
        while Instant::now() < released && !self.stops() {
            self.send(&key, Op::Get, 0);
            self.pause();
        }
        self.again(&key, |_| Op::Release { token });
        for _ in 0..LOOKS {
            self.send(&key, Op::Get, 0);
            self.pause();
        }
    }

    fn wait_and_hang_up(&mut self, key: &str, attempt: &str) {
        let op = self.acquire(attempt, 2000..3000, HOUR_MS..HOUR_MS + 1);
        let after = Duration::from_millis(self.rng.random_range(30..150));
        self.send_as(key, op, |door, rng, send| {
            door.hang_up(&Send { wait_ms: 10_000, ..send }, after, rng)
        });
    }
}
