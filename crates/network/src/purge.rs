//! Removes what has outlived its ttl, through the log, in small bites: under load about as many
//! records a second as a cluster under load stores, so that a backlog does not grow for ever.

use std::sync::Arc;
use std::time::Duration;

use tenure_state_machine::{Answer, Command, Purge};
use tenure_storage::StateStore;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::leader_time::LeaderTime;
use crate::propose::Proposer;

/// Records that one entry deletes: few enough that a command behind it hardly waits.
const BITE: u32 = 500;
/// Between two bites of a backlog, so that others come in between.
const PAUSE: Duration = Duration::from_millis(5);
/// For one bite to be applied.
const LIMIT: Duration = Duration::from_secs(10);

/// Purges while this node leads. An idle cluster with nothing due writes no entry.
pub(crate) async fn run(
    state: StateStore,
    time: Arc<LeaderTime>,
    proposer: Proposer,
    every: Duration,
) {
    if every.is_zero() {
        return;
    }
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !is_due(&state, &time).await {
            continue;
        }
        loop {
            let purge = Command::Purge(Purge { limit: BITE, not_after_ms: None });
            let bitten = proposer.propose(vec![purge], Instant::now() + LIMIT).await;
            match bitten.as_ref().map(|decided| decided.first().map(|first| &first.answer)) {
                Ok(Some(Answer::Purged { deleted, more: true })) => {
                    tracing::debug!(deleted, "purged, and there is more");
                    sleep(PAUSE).await;
                }
                Ok(_) | Err(_) => break,
            }
        }
    }
}

async fn is_due(state: &StateStore, time: &LeaderTime) -> bool {
    let Some(present) = time.present() else { return false };
    match state.blocking(StateStore::first_deadline_ms).await {
        Ok(first) => first.is_some_and(|first| first <= present.ms),
        Err(error) => {
            tracing::error!(%error, "the deadline index could not be read");
            false
        }
    }
}
