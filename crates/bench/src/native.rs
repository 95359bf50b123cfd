//! Tenure over its native protocol, as Rust callers use it.

use std::time::Duration;

use anyhow::bail;
use tenure_client::{Acquisition, Client, Conclusion, Extension, new_acquire};
use tenure_state_machine::{Acquire, Complete, Extend, Name, Token};

use crate::payloads::Payloads;
use crate::system::{Acquired, LEASE_MS, SCOPE, System, TTL_MS};

/// Tenure over its native protocol. One is enough: a client shares its connections itself.
#[derive(Debug)]
pub struct Native {
    client: Client,
    payloads: Payloads,
}

impl Native {
    /// Asks through `client`, and stores one of `payloads`.
    #[must_use]
    pub fn new(client: Client, payloads: Payloads) -> Self {
        Self { client, payloads }
    }
}

impl System for Native {
    type Held = Token;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<Token>> {
        let name = Name::new(SCOPE, key)?;
        let acquire = Acquire { lease_ms: LEASE_MS, ttl_ms: TTL_MS, ..new_acquire(name) };
        match self.client.acquire(acquire, Duration::ZERO).await? {
            (Acquisition::Acquired { token, .. }, _) => Ok(Acquired::Held(token)),
            (Acquisition::Replay(replay), _) => {
                Ok(Acquired::Replayed(replay.payload.map_or(0, |payload| payload.body().len())))
            }
            (other, _) => bail!("an acquire came to {other:?}"),
        }
    }

    async fn complete(&self, key: &str, token: Token) -> anyhow::Result<()> {
        let (name, payload) = (Name::new(SCOPE, key)?, Some(self.payloads.any()));
        let complete = Complete { name, token, ttl_ms: None, payload, not_after_ms: None };
        match self.client.complete(complete).await? {
            (Conclusion::Completed(_) | Conclusion::AlreadyComplete(_), _) => Ok(()),
            (other, _) => bail!("a complete came to {other:?}"),
        }
    }

    async fn extend(&self, key: &str, token: &mut Token) -> anyhow::Result<()> {
        let name = Name::new(SCOPE, key)?;
        let extend = Extend { name, token: *token, lease_ms: LEASE_MS, not_after_ms: None };
        match self.client.extend(extend).await? {
            (Extension::Extended { .. }, _) => Ok(()),
            (other, _) => bail!("an extend came to {other:?}"),
        }
    }
}
