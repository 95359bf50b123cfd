//! The client against nodes that a test plays itself, over real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails should say where"
)]

mod calls;
mod connection;
mod lease;
mod node;
mod once;
