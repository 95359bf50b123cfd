//! The clock of leases: the only module of the crate that reads one.
//!
//! A lease runs on while its holder's machine is suspended, and so must the holder's own count.
//! `CLOCK_MONOTONIC`, which tokio's timers use, stands still then; `CLOCK_BOOTTIME` does not.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::sleep;

/// Between two looks at the clock where the kernel has no timer to give.
const LOOK: Duration = Duration::from_millis(100);

/// A future that ends at some moment.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Time elapsed since a moment of the clock's own choice, suspension included.
pub trait BootTime: Debug + Send + Sync {
    /// Never goes back.
    fn now(&self) -> Duration;
    /// Returns once [`BootTime::now`] has reached `moment`; after a suspension, at once if it has.
    fn sleep_until(&self, moment: Duration) -> Sleep;
}

/// The machine's `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealBootTime;

impl BootTime for RealBootTime {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // It counts from boot, so neither part is ever negative.
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn sleep_until(&self, moment: Duration) -> Sleep {
        Box::pin(async move {
            if let Ok(timer) = timer_at(moment) {
                // It can be read once it has expired; an error is looked into below.
                let _ = timer.readable().await;
            }
            loop {
                let left = moment.saturating_sub(Self.now());
                if left.is_zero() {
                    return;
                }
                sleep(left.min(LOOK)).await;
            }
        })
    }
}

/// A timer of the kernel's that expires at `moment`, or at once if that has passed.
fn timer_at(moment: Duration) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A timer that is set to zero is not set at all.
    let moment = moment.max(Duration::from_nanos(1));
    let seconds = i64::try_from(moment.as_secs()).unwrap_or(i64::MAX);
    let it_value = Timespec { tv_sec: seconds, tv_nsec: moment.subsec_nanos().into() };
    let setting = Itimerspec { it_interval: zero, it_value };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &setting)?;
    #[expect(
        deprecated,
        reason = "unsound for a type that lies about its descriptor, which OwnedFd does not; what \
                  takes its place is an unsafe function"
    )]
    AsyncFd::with_interest(timer, Interest::READABLE)
}

/// A clock that moves when a test moves it. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct ManualBootTime(watch::Sender<Duration>);

impl Default for ManualBootTime {
    fn default() -> Self {
        Self(watch::Sender::new(Duration::ZERO))
    }
}

impl ManualBootTime {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now = now.saturating_add(by));
    }
}

impl BootTime for ManualBootTime {
    fn now(&self) -> Duration {
        *self.0.borrow()
    }

    fn sleep_until(&self, moment: Duration) -> Sleep {
        let mut now = self.0.subscribe();
        Box::pin(async move {
            if now.wait_for(|now| *now >= moment).await.is_err() {
                // The clock is gone: it never gets there.
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_real_clock_wakes_no_sooner_than_told() {
        let clock = RealBootTime;
        for wait in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(20)] {
            let moment = clock.now() + wait;
            clock.sleep_until(moment).await;
            assert!(clock.now() >= moment, "{wait:?}");
        }
        clock.sleep_until(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn the_manual_clock_wakes_when_it_is_moved() {
        let clock = ManualBootTime::default();
        let sleep = clock.sleep_until(Duration::from_secs(2));
        let moved = clock.clone();
        let mut sleep = tokio::spawn(sleep);
        moved.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        moved.advance(Duration::from_secs(1));
        (&mut sleep).await.unwrap();
    }
}
