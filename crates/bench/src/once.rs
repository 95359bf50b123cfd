//! Tenure as most callers use it: an action that runs once, and guards that send their heartbeats
//! themselves.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::bail;
use tenure_client::{Client, CompleteError, Done, Lease, Leased};
use tokio::time::timeout;

use crate::payloads::Payloads;
use crate::system::{Acquired, LEASE_MS, SCOPE, System, TTL_MS};

const LEASE: Duration = Duration::from_millis(LEASE_MS);
const TTL: Duration = Duration::from_millis(TTL_MS);
/// A guard sends a heartbeat that often.
const BEAT: Duration = Duration::from_millis(LEASE_MS / 3);

/// An action that does nothing and returns the payload, run once for each key.
#[derive(Debug)]
pub(crate) struct Once {
    client: Client,
    payloads: Payloads,
}

impl Once {
    pub(crate) fn new(client: Client, payloads: Payloads) -> Self {
        Self { client, payloads }
    }
}

impl System for Once {
    type Held = ();

    const ACQUIRE_COMPLETES: bool = true;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<()>> {
        let result = self.payloads.any();
        let once = self.client.once(SCOPE, key).lease(LEASE).ttl(TTL);
        match once.run_payload(async |_| Ok::<_, Infallible>(Some(result))).await? {
            Done::Ran(_) => Ok(Acquired::Held(())),
            Done::Replayed(payload) => {
                Ok(Acquired::Replayed(payload.map_or(0, |payload| payload.body().len())))
            }
        }
    }

    async fn complete(&self, _key: &str, (): ()) -> anyhow::Result<()> {
        Ok(())
    }

    async fn extend(&self, _key: &str, (): &mut ()) -> anyhow::Result<()> {
        bail!("what is complete has no lease")
    }
}

/// Leases that keep themselves. To extend one is to let it do so, once.
#[derive(Debug)]
pub(crate) struct Guards {
    client: Client,
    payloads: Payloads,
}

impl Guards {
    pub(crate) fn new(client: Client, payloads: Payloads) -> Self {
        Self { client, payloads }
    }
}

impl System for Guards {
    type Held = Lease;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<Lease>> {
        match self.client.lease(SCOPE, key).lease(LEASE).ttl(TTL).acquire().await? {
            Leased::Held(lease) => Ok(Acquired::Held(lease)),
            Leased::Replay(replay) => {
                Ok(Acquired::Replayed(replay.payload.map_or(0, |payload| payload.body().len())))
            }
        }
    }

    async fn complete(&self, _key: &str, held: Lease) -> anyhow::Result<()> {
        match held.complete(Some(self.payloads.any())).await {
            Ok(_) => Ok(()),
            Err(CompleteError::Call(error)) => Err(error.into()),
            Err(error) => bail!("a complete came to {error}"),
        }
    }

    async fn extend(&self, _key: &str, held: &mut Lease) -> anyhow::Result<()> {
        match timeout(BEAT, held.lost()).await {
            Ok(lost) => bail!("a lease was lost: {lost}"),
            Err(_) => Ok(()),
        }
    }
}
