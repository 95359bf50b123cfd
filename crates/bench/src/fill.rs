//! Stores many COMPLETE records before a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tenure_client::{Client, new_acquire};
use tenure_state_machine::{Acquire, Answer, Command, Complete, Name, Token, limits};
use tokio::time::Instant;

use crate::payloads::Payloads;
use crate::progress;
use crate::system::{LEASE_MS, SCOPE, TTL_MS, fresh_key};

/// Records of a batch, unless their results are so large that fewer fit.
const BATCH: u64 = 64;
/// Batches in flight.
const IN_FLIGHT: u32 = 16;

/// Stores `records` COMPLETE records of fresh keys with these results, in batches, and shows how it
/// goes on. With `due` their ttl passes then, if that is still ahead; without, after a day. Gives
/// how long it took.
///
/// # Errors
/// When the cluster does not take one of them; some are stored then.
pub async fn fill(
    client: &Client,
    records: u64,
    payloads: &Payloads,
    due: Option<Instant>,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let bar = progress::records(records);
    let size = payloads.bytes().max(1);
    let fit = u64::try_from(limits::BATCH_BYTES / size).unwrap_or(u64::MAX);
    let batch = BATCH.min(fit.max(1));
    let left = Arc::new(AtomicU64::new(records));
    let fillers = (0..IN_FLIGHT).map(|_| {
        let (client, payloads) = (client.clone(), payloads.clone());
        let (left, bar) = (Arc::clone(&left), bar.clone());
        tokio::spawn(async move {
            loop {
                let take = |left: u64| (left > 0).then(|| left.saturating_sub(batch));
                let took = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
                let Ok(before) = took else { return anyhow::Ok(()) };
                store(&client, before.min(batch), &payloads, due).await?;
                bar.inc(before.min(batch));
            }
        })
    });
    let fillers: Vec<_> = fillers.collect();
    for filler in fillers {
        filler.await.context("a filler failed")?.context("the records are not all stored")?;
    }
    bar.finish_and_clear();
    Ok(began.elapsed())
}

/// One batch of acquires, one of completes.
async fn store(
    client: &Client,
    records: u64,
    payloads: &Payloads,
    due: Option<Instant>,
) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for _ in 0..records {
        names.push(Name::new(SCOPE, &fresh_key())?);
    }
    let acquires = names.iter().map(|name| {
        let (lease_ms, ttl_ms) = (LEASE_MS, TTL_MS);
        Command::Acquire(Acquire { lease_ms, ttl_ms, ..new_acquire(name.clone()) })
    });
    let mut tokens: Vec<Token> = Vec::new();
    for decided in client.batch(acquires.collect()).await? {
        let answer = decided?.answer;
        let Answer::Acquired { token, .. } = answer else {
            bail!("an acquire of a fresh key came to {answer:?}");
        };
        tokens.push(token);
    }
    let ttl_ms = due.map(|due| {
        let left = due.saturating_duration_since(Instant::now()).as_millis();
        u64::try_from(left).unwrap_or(u64::MAX).clamp(limits::TTL_MIN_MS, limits::TTL_MAX_MS)
    });
    let completes = names.into_iter().zip(tokens).map(|(name, token)| {
        let payload = Some(payloads.any());
        Command::Complete(Complete { name, token, ttl_ms, payload, not_after_ms: None })
    });
    for decided in client.batch(completes.collect()).await? {
        let answer = decided?.answer;
        let stored = matches!(answer, Answer::Completed(_) | Answer::AlreadyComplete(_));
        ensure!(stored, "a complete came to {answer:?}");
    }
    Ok(())
}
