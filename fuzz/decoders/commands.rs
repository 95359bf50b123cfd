//! The state machine against its oracle: the walk of its own tests, drawn from the bytes instead
//! of a seed, so that a change of one byte is a change of one choice.

use std::convert::Infallible;

use rand::TryRng;

#[path = "../../crates/state-machine/tests/walk/mod.rs"]
#[expect(dead_code, reason = "the table of cells and the seeds are for the random walk")]
mod walk;

/// Bytes of a choice, about: a walk has as many steps as there are bytes for.
const STEP_BYTES: usize = 6;
/// Longest walk.
const STEPS: usize = 200;

/// Each number takes one byte, its highest; zeros when there are no more.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }
}

impl TryRng for Bytes<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from(self.next()) << 24)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from(self.next()) << 56)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        bytes.fill_with(|| self.next());
        Ok(())
    }
}

/// Walks; the invariants are checked after every step.
pub(crate) fn walk(bytes: &[u8]) -> bool {
    let steps = (bytes.len() / STEP_BYTES).min(STEPS);
    match walk::walk_with(Bytes(bytes.iter()), steps) {
        Ok((walk, _)) => walk.commands > 0,
        Err(report) => panic!("{report}"),
    }
}
