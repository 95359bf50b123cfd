//! When the next entry goes.
//!
//! An entry costs about as much as thirty commands, wherever it is written and applied, so it
//! should take many along, and nobody should wait for that.
//!
//! - While entries are on their way, the next one gathers: until they have landed, until it is
//!   full, or for [`GATHER`], so that a long way to the followers does not become two.
//! - When the last one has landed, its callers are about to ask again, as those do who work in a
//!   loop. An entry that went at once would leave them behind, and from then on two half crowds
//!   would wait for each other. So it waits for them, for [`COMPANY_WAIT`] at most, and no more for
//!   a while once they did not come.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_state_machine::limits::{ENTRY_BYTES, ENTRY_COMMANDS};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Entries on their way at once: at 50 ms to the nearer follower 40 000 commands a second. What is
/// on its way when a leader is cut off is unknown to its callers, so it is not more.
const IN_FLIGHT: usize = 8;
/// How long an entry gathers at most while another one is on its way.
const GATHER: Duration = Duration::from_millis(5);
/// Weight of the company that an entry waits for: of 64 commands. With more there is enough to do
/// for two entries by turns, one on its way and one gathering.
const COMPANY: usize = 64 * COMMAND_WEIGHT;
/// How long an entry waits for company after the last one has landed.
const COMPANY_WAIT: Duration = Duration::from_millis(1);
/// Most entries that do not wait for company after it did not come.
const PAUSE: u32 = 1024;

/// The least that a command weighs, in bytes: [`ENTRY_COMMANDS`] of them fill an entry.
pub(crate) const COMMAND_WEIGHT: usize = ENTRY_BYTES / ENTRY_COMMANDS;

/// What waits for an entry, and what is on its way. Weights are in bytes; [`ENTRY_BYTES`] fill an
/// entry.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    waiting: AtomicUsize,
    /// As much waiting is worth a look.
    wanted: AtomicUsize,
    in_flight: AtomicUsize,
    moved: Notify,
    company: Mutex<Company>,
}

/// Who is expected to ask soon.
#[derive(Debug, Default)]
struct Company {
    landed: Option<Instant>,
    /// What has landed last, and what waited then.
    expected: usize,
    /// Entries that do not wait for it.
    pause: u32,
    /// As many as that, and twice as many the next time, when it does not come.
    backoff: u32,
}

impl Company {
    fn landed(&mut self, weight: usize, waiting: usize) {
        self.landed = Some(Instant::now());
        self.expected = COMPANY.min(weight + waiting);
    }

    /// Until when it is waited for; none when it is there, or is not expected.
    fn awaited(&mut self, waiting: usize) -> Option<Instant> {
        let until = self.landed? + COMPANY_WAIT;
        if waiting >= self.expected || Instant::now() >= until {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        Some(until)
    }

    fn came(&mut self) {
        self.backoff = 0;
    }

    fn did_not_come(&mut self) {
        self.backoff = (2 * self.backoff).clamp(4, PAUSE);
        self.pause = self.backoff;
    }
}

impl Flow {
    /// Something waits from now on.
    pub(crate) fn arrive(&self, weight: usize) {
        let before = self.waiting.fetch_add(weight, Ordering::AcqRel);
        let wanted = self.wanted.load(Ordering::Acquire);
        if before < wanted && before + weight >= wanted {
            self.moved.notify_one();
        }
    }

    /// It does not wait any more.
    pub(crate) fn leave(&self, weight: usize) {
        self.waiting.fetch_sub(weight, Ordering::AcqRel);
    }

    /// An entry is on its way.
    pub(crate) fn depart(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// An entry is applied, or lost.
    pub(crate) fn land(&self, weight: usize) {
        self.company().landed(weight, self.waiting());
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.moved.notify_one();
    }

    /// Returns when the next entry should go; something waits for it.
    pub(crate) async fn ready(&self) {
        let full_by = Instant::now() + GATHER;
        while self.in_flight.load(Ordering::Acquire) > 0 {
            let crowded = self.in_flight.load(Ordering::Acquire) >= IN_FLIGHT;
            if !crowded && (self.waiting() >= ENTRY_BYTES || Instant::now() >= full_by) {
                return;
            }
            if !crowded {
                self.want(ENTRY_BYTES);
            }
            tokio::select! {
                () = self.moved.notified() => {}
                () = sleep_until(full_by), if !crowded => {}
            }
        }
        let Some(until) = self.company().awaited(self.waiting()) else { return };
        let expected = self.company().expected;
        self.want(expected);
        while self.waiting() < expected {
            tokio::select! {
                () = self.moved.notified() => {}
                () = sleep_until(until) => return self.company().did_not_come(),
            }
        }
        self.company().came();
    }

    /// Asks to be told when so much waits; at once, if it does by now.
    fn want(&self, weight: usize) {
        self.wanted.store(weight, Ordering::Release);
        if self.waiting() >= weight {
            self.moved.notify_one();
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn company(&self) -> MutexGuard<'_, Company> {
        self.company.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    /// Whether the next entry goes now.
    struct Next(Arc<Flow>, tokio::task::JoinHandle<()>);

    impl Next {
        fn new(flow: &Arc<Flow>) -> Self {
            let ready = Arc::clone(flow);
            Self(Arc::clone(flow), tokio::spawn(async move { ready.ready().await }))
        }

        async fn goes(&self) -> bool {
            for _ in 0..8 {
                yield_now().await;
            }
            self.1.is_finished()
        }

        fn depart(self, commands: usize) {
            self.0.leave(commands * COMMAND_WEIGHT);
            self.0.depart();
        }
    }

    fn arrive(flow: &Flow, commands: usize) {
        (0..commands).for_each(|_| flow.arrive(COMMAND_WEIGHT));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_goes_at_once_and_the_next_gathers_for_a_while() {
        let flow = Arc::new(Flow::default());
        arrive(&flow, 1);
        let first = Next::new(&flow);
        assert!(first.goes().await);
        first.depart(1);
        arrive(&flow, 1);
        let second = Next::new(&flow);
        assert!(!second.goes().await);
        advance(GATHER).await;
        assert!(second.goes().await, "a long way does not become two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_entry_goes_while_others_are_on_their_way_but_not_too_many() {
        let flow = Arc::new(Flow::default());
        for _ in 0..IN_FLIGHT {
            arrive(&flow, ENTRY_COMMANDS);
            let next = Next::new(&flow);
            assert!(next.goes().await);
            next.depart(ENTRY_COMMANDS);
        }
        arrive(&flow, ENTRY_COMMANDS);
        let next = Next::new(&flow);
        advance(GATHER * 2).await;
        assert!(!next.goes().await);
        flow.land(ENTRY_BYTES);
        assert!(next.goes().await);
    }

    #[tokio::test(start_paused = true)]
    async fn two_half_crowds_become_one() {
        let flow = Arc::new(Flow::default());
        flow.depart();
        arrive(&flow, 10);
        let next = Next::new(&flow);
        assert!(!next.goes().await);
        flow.land(10 * COMMAND_WEIGHT);
        assert!(!next.goes().await, "those of the first entry are about to ask again");
        arrive(&flow, 9);
        assert!(!next.goes().await);
        arrive(&flow, 1);
        assert!(next.goes().await);
    }

    #[tokio::test(start_paused = true)]
    async fn company_that_does_not_come_is_not_waited_for_for_a_while() {
        let flow = Arc::new(Flow::default());
        let mut waited = 0;
        for _ in 0..100 {
            flow.depart();
            flow.land(10 * COMMAND_WEIGHT);
            arrive(&flow, 1);
            let next = Next::new(&flow);
            if !next.goes().await {
                waited += 1;
                advance(COMPANY_WAIT).await;
            }
            assert!(next.goes().await);
            flow.leave(COMMAND_WEIGHT);
        }
        assert!((3..=6).contains(&waited), "{waited} of 100");
        flow.depart();
        flow.land(10 * COMMAND_WEIGHT);
        advance(COMPANY_WAIT).await;
        arrive(&flow, 1);
        assert!(Next::new(&flow).goes().await, "it is too late for company");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_alone_waits_for_nobody() {
        let flow = Arc::new(Flow::default());
        for _ in 0..10 {
            arrive(&flow, 1);
            let next = Next::new(&flow);
            assert!(next.goes().await);
            next.depart(1);
            flow.land(COMMAND_WEIGHT);
        }
    }
}
