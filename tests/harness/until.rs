//! Waiting for conditions, and the seeds of random tests.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// After this, what a test waits for is taken never to come.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(3);

/// Looks again and again until `look` gives something.
///
/// # Panics
/// After [`LIMIT`], with what was waited for.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "waited {LIMIT:?} in vain: {what}");
        sleep(LOOK).await;
    }
}

/// Looks again and again for `time` whether something stays true: for what is to be seen not to
/// happen, where time itself is the condition.
///
/// # Panics
/// When it does not.
pub async fn holds_for(time: Duration, what: &str, mut look: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        assert!(look().await, "it did not stay so: {what}");
        sleep(LOOK).await;
    }
}

/// The output of `future`.
///
/// # Panics
/// When it takes longer than `limit`.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

/// One seed that is always the same and `fresh` new ones, printed, so that a failure can be run
/// again: `TENURE_SEED` takes the place of all of them.
#[must_use]
pub fn seeds(test: impl Debug, pinned: u64, fresh: usize) -> Vec<u64> {
    let given = std::env::var("TENURE_SEED").ok();
    let seeds = match given.map(|seed| seed.parse().expect("TENURE_SEED is a number")) {
        Some(seed) => vec![seed],
        None => std::iter::once(pinned)
            .chain(std::iter::repeat_with(|| u64::from(rand::random::<u32>())).take(fresh))
            .collect(),
    };
    eprintln!("{test:?}: seeds {seeds:?}");
    seeds
}
