//! In-process clusters for tests: real sockets on loopback, disks in memory, clocks that are moved
//! by hand, and links that can be cut.
//!
//! A test starts a [`Cluster`], asks it through [`Caller`]s (one send, one outcome), a
//! `tenure_client::Client` (which sends again) or [`Http`], and waits for conditions with
//! [`eventually`]; it never sleeps for a while and hopes. Every node's RPC port stands behind a
//! proxy that the other nodes dial, so that [`Links`] can cut any pair of nodes in either direction.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says by a panic that it failed, and its seed on stderr"
)]

mod harness;

pub use harness::*;
