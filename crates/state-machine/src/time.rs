//! Cluster time: absolute milliseconds, known only through stamps in the log.

/// Rule R1, the one test of every deadline: it has passed iff `clock_ms >= deadline_ms`.
#[must_use]
pub fn has_passed(deadline_ms: u64, clock_ms: u64) -> bool {
    clock_ms >= deadline_ms
}

/// The deadline `span_ms` after `clock_ms`; sums saturate.
#[must_use]
pub fn after(clock_ms: u64, span_ms: u64) -> u64 {
    clock_ms.saturating_add(span_ms)
}

/// What is left until `deadline_ms`, zero once it has passed.
#[must_use]
pub fn left(deadline_ms: u64, clock_ms: u64) -> u64 {
    deadline_ms.saturating_sub(clock_ms)
}

/// Rule R10: whether a request that must not run after `not_after_ms` comes too late.
#[must_use]
pub fn is_too_late(not_after_ms: Option<u64>, clock_ms: u64) -> bool {
    not_after_ms.is_some_and(|not_after_ms| clock_ms > not_after_ms)
}
