//! The leader's time: what stamps are made of.
//!
//! - **T1** A leader has a time only once it is *anchored*: after the first entry of its own term
//!   is applied, at the larger of its estimate and the cluster clock. Until then it serves nothing
//!   and tells its followers nothing.
//! - **T2** From then on it runs on its own monotonic clock, and is not anchored again in the term.
//! - **T3** A follower's *estimate* is a leader's last reading plus the time since it arrived. A
//!   later reading replaces it, down as well as up, but never one of a later term; an applied
//!   stamp only raises an estimate that exists. What a leader knew stays its own estimate.
//! - **T4** A node that has just started has no estimate, and one that follows a leader that is not
//!   anchored has none from before that leader's term.
//!
//! So a change of leaders may stretch leases by the gap, never shrink them, and an outage of the
//! whole cluster counts as no time at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_state_machine::seeded::{SeededBug, seeded};

use crate::clock::Clock;

/// What one node knows of the leader's time.
#[derive(Debug)]
pub(crate) struct LeaderTime {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    estimate: Option<Reading>,
    anchor: Option<Reading>,
    /// When a message of a leader was accepted last.
    heard: Option<Duration>,
}

/// Cluster time at a moment of the monotonic clock, as the leader of a term knew it.
#[derive(Debug, Clone, Copy)]
struct Reading {
    term: u64,
    ms: u64,
    at: Duration,
}

impl Reading {
    fn ms_at(self, now: Duration) -> u64 {
        let elapsed = now.saturating_sub(self.at).as_millis();
        self.ms.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

impl State {
    /// T3: takes a reading, unless a later term's is there.
    fn learn(&mut self, reading: Reading) {
        if self.estimate.is_none_or(|estimate| estimate.term <= reading.term) {
            self.estimate = Some(reading);
        }
    }
}

/// The present, as an anchored leader knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Present {
    /// The term in which it leads.
    pub(crate) term: u64,
    /// Cluster time, in milliseconds.
    pub(crate) ms: u64,
}

impl LeaderTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The monotonic clock, for pairing a reading with the moment it arrived.
    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.now()
    }

    /// The wall clock, for the birth of a cluster.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }

    /// The estimate that a cluster is born with, before any term.
    pub(crate) fn bootstrap(&self, unix_ms: u64) {
        let at = self.clock.now();
        let mut state = self.state();
        if state.anchor.is_none() && state.estimate.is_none() {
            state.estimate = Some(Reading { term: 0, ms: unix_ms, at });
        }
    }

    /// T3, T4: what the leader of `term` said, in a message that was accepted and arrived at `at`;
    /// no reading, if it is not anchored.
    pub(crate) fn hear(&self, term: u64, ms: Option<u64>, at: Duration) {
        let mut state = self.state();
        state.heard = Some(at);
        match ms {
            Some(ms) => state.learn(Reading { term, ms, at }),
            // The estimate that a cluster is born with is of no term, and no leader's to revoke.
            None => {
                if state.estimate.is_some_and(|old| 0 < old.term && old.term < term) {
                    state.estimate = None;
                }
            }
        }
    }

    /// How long no message of a leader was accepted; none if there never was one.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let heard = self.state().heard?;
        Some(self.clock.now().saturating_sub(heard))
    }

    /// T3: a stamp was applied.
    pub(crate) fn applied(&self, clock_ms: u64) {
        let now = self.clock.now();
        if let Some(estimate) = &mut self.state().estimate
            && estimate.ms_at(now) < clock_ms
        {
            *estimate = Reading { ms: clock_ms, at: now, ..*estimate };
        }
    }

    /// T1, T2: this node leads in `term` and has applied an entry of it.
    pub(crate) fn anchor(&self, term: u64, clock_ms: u64) {
        let now = self.clock.now();
        let mut state = self.state();
        if state.anchor.is_some_and(|anchor| anchor.term == term) {
            return;
        }
        // It may have led before, in a term whose end nobody saw.
        if let Some(before) = state.anchor.take() {
            state.learn(before);
        }
        let estimate = state.estimate.map_or(0, |estimate| estimate.ms_at(now));
        let mut ms = estimate.max(clock_ms);
        if seeded(SeededBug::StampNotClamped) {
            ms = self.clock.unix_ms();
        }
        state.anchor = Some(Reading { term, ms, at: now });
    }

    /// This node does not lead any more.
    pub(crate) fn step_down(&self) {
        let mut state = self.state();
        if let Some(anchor) = state.anchor.take() {
            state.learn(anchor);
        }
    }

    /// The present, if this node leads and is anchored.
    pub(crate) fn present(&self) -> Option<Present> {
        let now = self.clock.now();
        self.state().anchor.map(|anchor| Present { term: anchor.term, ms: anchor.ms_at(now) })
    }

    /// Returns once the present has reached `ms`; never, if this node is not anchored.
    pub(crate) async fn sleep_until_ms(&self, ms: u64) {
        let now = self.clock.now();
        let anchor = self.state().anchor;
        let Some(anchor) = anchor else { return std::future::pending().await };
        let left = Duration::from_millis(ms.saturating_sub(anchor.ms_at(now)));
        self.clock.sleep_until(now + left).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn manual() -> (ManualClock, LeaderTime) {
        let clock = ManualClock::default();
        (clock.clone(), LeaderTime::new(Arc::new(clock)))
    }

    fn advance(clock: &ManualClock, ms: u64) {
        clock.advance(Duration::from_millis(ms));
    }

    fn present_ms(time: &LeaderTime) -> Option<u64> {
        time.present().map(|present| present.ms)
    }

    #[test]
    fn a_node_that_just_started_anchors_at_the_clock() {
        let (clock, time) = manual();
        advance(&clock, 3_600_000);
        time.applied(500);
        assert_eq!(present_ms(&time), None);
        time.anchor(1, 500);
        assert_eq!(present_ms(&time), Some(500));
    }

    #[test]
    fn a_follower_counts_on_from_the_last_reading_down_as_well_as_up() {
        let (clock, time) = manual();
        time.hear(1, Some(10_000), clock.now());
        advance(&clock, 70);
        time.hear(1, Some(9_000), clock.now());
        advance(&clock, 30);
        time.anchor(2, 100);
        assert_eq!(present_ms(&time), Some(9_030));
    }

    #[test]
    fn an_applied_stamp_raises_an_estimate_but_never_lowers_it() {
        let (clock, time) = manual();
        time.hear(1, Some(1_000), clock.now());
        time.applied(900);
        time.applied(2_000);
        time.anchor(2, 2_000);
        assert_eq!(present_ms(&time), Some(2_000));
        advance(&clock, 1);
        assert_eq!(present_ms(&time), Some(2_001));
    }

    #[test]
    fn a_leader_is_anchored_once_a_term() {
        let (clock, time) = manual();
        time.anchor(3, 1_000);
        advance(&clock, 10);
        time.anchor(3, 5_000);
        assert_eq!(time.present(), Some(Present { term: 3, ms: 1_010 }));
        time.step_down();
        assert_eq!(time.present(), None);
        advance(&clock, 10);
        time.anchor(5, 0);
        assert_eq!(time.present(), Some(Present { term: 5, ms: 1_020 }));
    }

    #[test]
    fn a_leader_that_is_elected_again_unseen_keeps_the_time_it_had() {
        let (clock, time) = manual();
        time.anchor(3, 1_000);
        advance(&clock, 86_400_000);
        time.anchor(4, 1_000);
        assert_eq!(present_ms(&time), Some(86_401_000));
    }

    #[test]
    fn a_deposed_leader_does_not_put_its_own_time_over_its_successors() {
        let (clock, time) = manual();
        time.anchor(3, 1_000);
        time.hear(4, Some(400), clock.now());
        time.step_down();
        time.anchor(5, 0);
        assert_eq!(present_ms(&time), Some(400));
    }

    #[test]
    fn an_old_estimate_ends_with_a_leader_that_has_no_time_yet() {
        // Cut off for an hour, while the others restarted and lost that hour.
        let (clock, time) = manual();
        time.hear(3, Some(1_000), clock.now());
        advance(&clock, 3_600_000);
        time.hear(5, None, clock.now());
        time.anchor(6, 1_200);
        assert_eq!(present_ms(&time), Some(1_200));
    }

    #[test]
    fn the_time_of_birth_gives_way_to_any_leaders() {
        let (clock, time) = manual();
        time.bootstrap(50_000);
        time.hear(1, None, clock.now());
        time.bootstrap(99_000);
        advance(&clock, 5);
        time.anchor(2, 0);
        assert_eq!(present_ms(&time), Some(50_005));

        let (clock, time) = manual();
        time.hear(1, Some(70), clock.now());
        time.bootstrap(50_000);
        time.anchor(2, 0);
        assert_eq!(present_ms(&time), Some(70));
    }
}
