//! Tests of whole clusters, a theme a module. One binary: each would take its own half a minute to
//! build.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test says by a panic that it failed, and its seed on stderr"
)]

mod durability;
mod idempotency;
mod membership;
mod once;
mod outcomes;
mod purge;
mod reads;
mod shutdown;
mod time;
mod waiting;
