//! What is fuzzed: every decoder of bytes that come from outside, and the rules of a record
//! against their oracle.
//!
//! Each target takes any bytes and says whether they were *accepted*: whether anything was decoded
//! from them. It panics on what must not be: a decoder that panics, a value that does not survive
//! its own encoding, an accepted value out of bounds, a wrong answer. `fuzz/run` looks for bytes
//! that make one panic; `corpus.rs`, a plain test, feeds them what was found before, and the seeds
//! that `seeds.rs` writes, which must be accepted, so that a new format brings new seeds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a target says by a panic what must not be"
)]

mod bodies;
mod commands;
mod disk;
mod frames;

/// Takes any bytes, and says whether it accepts them.
pub type Target = fn(&[u8]) -> bool;

/// All targets, by name.
pub const TARGETS: [(&str, Target); 9] = [
    ("client_frame", frames::client),
    ("peer_frame", frames::peer),
    ("frame_stream", frames::stream),
    ("log_entry", disk::log_entry),
    ("record", disk::record),
    ("logical_snapshot", disk::logical_snapshot),
    ("received_snapshot", disk::received_snapshot),
    ("body", bodies::body),
    ("commands", commands::walk),
];

/// Feeds bytes to a target.
///
/// # Panics
/// When there is no such target, and when it finds something that must not be.
#[must_use]
pub fn run(target: &str, bytes: &[u8]) -> bool {
    let found = TARGETS.into_iter().find(|(name, _)| *name == target);
    let (_, target) = found.unwrap_or_else(|| panic!("no target {target}"));
    target(bytes)
}

pub use disk::Chunks;
