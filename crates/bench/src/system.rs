//! What the load loop asks of a store, whoever made it.

use std::future::Future;

/// The scope of all records that a run makes.
pub const SCOPE: &str = "bench";
/// The lease that a run asks for, in milliseconds.
pub const LEASE_MS: u64 = 30_000;
/// The ttl that a run asks for, in milliseconds.
pub const TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// What an acquire came to.
#[derive(Debug)]
pub enum Acquired<H> {
    /// The caller holds the record.
    Held(H),
    /// The record is COMPLETE; bytes of its result, which was read.
    Replayed(usize),
}

/// A store that can do the job: one connection to it, shared by some of the clients. The result
/// that it stores is its own, given when it is opened.
pub trait System: Send + Sync + 'static {
    /// What completes or extends a record that is held.
    type Held: Send;

    /// Records that one call is about. Each counts as an operation; they share its latency.
    const WIDTH: u64 = 1;

    /// Whether an acquire of a fresh key also completes it, so that a cycle is one call.
    const ACQUIRE_COMPLETES: bool = false;

    /// Takes a record, or reads its result. Whatever is answered is linearizable.
    fn acquire(
        &self,
        key: &str,
    ) -> impl Future<Output = anyhow::Result<Acquired<Self::Held>>> + Send;

    /// Stores the result. Durable when it returns, as far as the store promises that.
    fn complete(
        &self,
        key: &str,
        held: Self::Held,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The holder's heartbeat, as durable as a complete.
    fn extend(
        &self,
        key: &str,
        held: &mut Self::Held,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// A fresh key: 32 hex digits in random order, as UUIDs are.
#[must_use]
pub fn fresh_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}
