//! Bugs that can be planted on purpose, to see whether the tests find them.
//!
//! They exist only in a build with the feature `seeded-bugs`, which no other build has, and there
//! in a process whose environment names one: `TENURE_SEEDED_BUG=stamp-not-clamped`. Each is one
//! mistake that a store like this one could have made; [`seeded`] stands where it would be.

/// A mistake, numbered as in the matrix of `jepsen/README.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeededBug {
    /// 1: a get is answered from the state of whoever believes to lead, without a read index.
    GetWithoutReadIndex,
    /// 2: a leader that a majority answered within a request's time, by its own clock, reads
    /// without asking it again; an election takes less.
    ReadOnClockLease,
    /// 3: apply takes the time from the node's own clock and not from the stamp.
    ApplyReadsClock,
    /// 4: a new leader stamps with its wall clock, and apply does not hold stamps to the clock.
    StampNotClamped,
    /// 5: an extend is committed and answered, but a steal goes by the lease of before.
    StealIgnoresExtend,
    /// 6: whoever has any token may complete, release and extend.
    TokenNotChecked,
    /// 7: tokens are counted for each record alone: a release or a purge starts them again.
    TokenPerRecord,
    /// 8: an installed snapshot starts the tokens again.
    TokenNotInSnapshot,
    /// 9: a snapshot has what was written behind, and not the last records, which were not.
    SnapshotOmitsLastKeys,
    /// 10: the log reports a group when it is written; nobody syncs it.
    AcknowledgedBeforeFsync,
    /// 11: `save_vote` returns when the vote is written; nobody syncs it.
    VoteNotFsynced,
    /// 12: a log with damage inside opens without what was damaged, over the hole.
    HoleSkipped,
    /// 13: a group that could not be written or synced is reported like one that was.
    FsyncErrorIgnored,
    /// 14: a forwarded command without a quick answer is sent, and proposed, again.
    RetryAppliedTwice,
    /// 15: what may have committed is said to be refused.
    UnknownSaidRefused,
    /// 16: an installed snapshot leaves the membership of before.
    MembershipNotInSnapshot,
    /// 17: nobody asks whether a node was here before, nor remembers those that were removed.
    WipedNodeRejoins,
    /// 18: a purge goes by the deadlines of the purge before, and does not look again.
    PurgeByStaleIndex,
    /// 19: a generation of the state is written in two halves.
    HalfBatchApplied,
    /// 20: checksums are not looked at.
    DamageServed,
    /// 21: a waiter stays in its queue when its connection has closed, and is granted the record.
    DeadWaiterGranted,
}

/// Whether this build can have a bug.
pub const BUILT_IN: bool = cfg!(feature = "seeded-bugs");

/// A name that no bug has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TENURE_SEEDED_BUG names no bug: {0}")]
pub struct UnknownBug(String);

/// Without the feature there is none, and the compiler leaves the mistake out.
#[cfg(not(feature = "seeded-bugs"))]
mod planting {
    use super::{SeededBug, UnknownBug};

    /// Whether this process has the bug.
    #[inline(always)]
    #[must_use]
    pub const fn seeded(_bug: SeededBug) -> bool {
        false
    }

    /// The bug that this process has, by its name.
    ///
    /// # Errors
    /// [`UnknownBug`], in a build with the feature.
    pub const fn planted() -> Result<Option<&'static str>, UnknownBug> {
        Ok(None)
    }

    pub(crate) const fn own_clock_ms() -> u64 {
        0
    }
}

#[cfg(feature = "seeded-bugs")]
mod planting {
    use std::sync::OnceLock;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::{SeededBug, UnknownBug};

    /// All of them, in order, by the names that the environment has for them.
    const NAMES: [(SeededBug, &str); 21] = [
        (SeededBug::GetWithoutReadIndex, "get-without-read-index"),
        (SeededBug::ReadOnClockLease, "read-on-clock-lease"),
        (SeededBug::ApplyReadsClock, "apply-reads-clock"),
        (SeededBug::StampNotClamped, "stamp-not-clamped"),
        (SeededBug::StealIgnoresExtend, "steal-ignores-extend"),
        (SeededBug::TokenNotChecked, "token-not-checked"),
        (SeededBug::TokenPerRecord, "token-per-record"),
        (SeededBug::TokenNotInSnapshot, "token-not-in-snapshot"),
        (SeededBug::SnapshotOmitsLastKeys, "snapshot-omits-last-keys"),
        (SeededBug::AcknowledgedBeforeFsync, "acknowledged-before-fsync"),
        (SeededBug::VoteNotFsynced, "vote-not-fsynced"),
        (SeededBug::HoleSkipped, "hole-skipped"),
        (SeededBug::FsyncErrorIgnored, "fsync-error-ignored"),
        (SeededBug::RetryAppliedTwice, "retry-applied-twice"),
        (SeededBug::UnknownSaidRefused, "unknown-said-refused"),
        (SeededBug::MembershipNotInSnapshot, "membership-not-in-snapshot"),
        (SeededBug::WipedNodeRejoins, "wiped-node-rejoins"),
        (SeededBug::PurgeByStaleIndex, "purge-by-stale-index"),
        (SeededBug::HalfBatchApplied, "half-batch-applied"),
        (SeededBug::DamageServed, "damage-served"),
        (SeededBug::DeadWaiterGranted, "dead-waiter-granted"),
    ];

    type Planted = Result<Option<(SeededBug, &'static str)>, UnknownBug>;

    fn named(name: &str) -> Planted {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|bug| Some(*bug)).ok_or_else(|| UnknownBug(name.to_owned()))
    }

    /// The environment is read once: it decides which program this is, not what apply does next.
    fn of_this_process() -> &'static Planted {
        static PLANTED: OnceLock<Planted> = OnceLock::new();
        #[expect(clippy::disallowed_methods, reason = "a seeded bug is a mistake on purpose")]
        PLANTED.get_or_init(|| std::env::var("TENURE_SEEDED_BUG").map_or(Ok(None), |n| named(&n)))
    }

    /// Whether this process has the bug.
    #[must_use]
    pub fn seeded(bug: SeededBug) -> bool {
        matches!(of_this_process(), Ok(Some((planted, _))) if *planted == bug)
    }

    /// The bug that this process has, by its name.
    ///
    /// # Errors
    /// [`UnknownBug`].
    pub fn planted() -> Result<Option<&'static str>, UnknownBug> {
        of_this_process().clone().map(|bug| bug.map(|(_, name)| name))
    }

    /// Bug 3: what apply must never read.
    pub(crate) fn own_clock_ms() -> u64 {
        #[expect(clippy::disallowed_methods, reason = "a seeded bug is a mistake on purpose")]
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn each_bug_has_a_name_and_no_other_name_has_one() {
            for (place, (bug, name)) in NAMES.iter().enumerate() {
                assert_eq!(*bug as usize, place, "they are numbered in order");
                assert_eq!(named(name), Ok(Some((*bug, *name))));
            }
            assert_eq!(named("no-bug"), Err(UnknownBug("no-bug".to_owned())));
            assert_eq!(named(""), Err(UnknownBug(String::new())));
        }
    }
}

pub(crate) use planting::own_clock_ms;
pub use planting::{planted, seeded};
