//! Black-box tests of the binary: real processes on loopback, real signals, the client API only.
//!
//! # What is judged
//!
//! A *send* is one request. It ends in one of three ways, and the checkers in [`check`] hold the
//! cluster to what it said:
//!
//! - *answered*: by the log or by a linearizable read; the answer has an `at`.
//! - *refused*: nothing changed and nothing will. A send that could not be connected counts as
//!   refused; so does a problem whose `outcome` is `refused`.
//! - *unknown*: it may have committed, or still will. A lost connection counts as unknown.
//!
//! Each send carries a *mark* of its own (its holder, or its payload), so that whatever a later
//! answer shows of a record names the one send that made it so. A send that was refused must never
//! show up.
//!
//! # What fails a run
//!
//! A violation, a node that ends on its own, a cluster that does not go on after its faults have
//! healed; and a run that tested too little, which fails as *not tested*. The seed of a run is
//! printed; a failed run leaves its history as JSON lines, and prints where.
//!
//! # Faults
//!
//! A node is killed with SIGKILL or paused with SIGSTOP. Both are certain when they are reported:
//! a signal is sent only to a process that is a child of ours, or of a `tenure dev` of ours.
//! `TENURE_JEPSEN_KILLS` is the number of kills of the long run, 10 by default.
//!
//! # Caveats
//!
//! Killing a process loses nothing that the kernel has taken: that a write is *synced* before it
//! is acknowledged is for the simulated disk to show. Links are not cut here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::time::Duration;

use tokio::time::Instant;

pub mod check;
pub mod cluster;
pub mod door;
pub mod hang_ups;
pub mod history;
pub mod http;
pub mod load;
pub mod problem;
pub mod process;
pub mod sink;
pub mod verify;

/// Between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until there is something to see.
///
/// # Panics
/// After `limit`, naming `what` did not come.
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The seed of a run: `TENURE_JEPSEN_SEED`, else drawn. It is printed.
#[must_use]
pub fn seed(run: &str) -> u64 {
    let given = std::env::var("TENURE_JEPSEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    eprintln!("{run}: TENURE_JEPSEN_SEED={seed}");
    seed
}
