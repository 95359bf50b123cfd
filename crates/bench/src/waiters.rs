//! Acquires that wait for one record while something else is measured.

use std::time::Duration;

use anyhow::bail;
use tenure_api::frame::IN_FLIGHT;
use tenure_client::{Acquisition, Client, Config, new_acquire};
use tenure_state_machine::{Acquire, Name, Release, Token, limits};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::system::{SCOPE, fresh_key};

/// Waiters that share a client: half of what a connection carries.
const EACH: usize = IN_FLIGHT / 2;
/// Between an error and the next wait.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Waiters of a record that is held, until [`Waiters::stop`] or until this is dropped.
#[derive(Debug)]
pub struct Waiters {
    holder: Client,
    name: Name,
    token: Token,
    waiting: JoinSet<()>,
}

impl Waiters {
    /// Acquires a record and lets `number` others wait for it, each again after its wait is over.
    /// When this returns, their first requests are under way.
    ///
    /// # Errors
    /// When the record cannot be acquired.
    pub async fn start(config: &Config, number: u32) -> anyhow::Result<Self> {
        let holder = Client::new(config.clone());
        let name = Name::new(SCOPE, &fresh_key())?;
        let lease_ms = limits::LEASE_MAX_MS;
        let acquire = Acquire { lease_ms, ..new_acquire(name.clone()) };
        let acquired = holder.acquire(acquire, Duration::ZERO).await?.0;
        let Acquisition::Acquired { token, .. } = acquired else {
            bail!("an acquire of a fresh key came to {acquired:?}");
        };
        let mut waiting = JoinSet::new();
        let mut client = holder.clone();
        for place in 0..usize::try_from(number)? {
            if place % EACH == 0 {
                client = Client::new(config.clone());
            }
            waiting.spawn(wait(client.clone(), name.clone()));
        }
        Ok(Self { holder, name, token, waiting })
    }

    /// Ends the waits, then releases the record.
    ///
    /// # Errors
    /// When the release is not answered.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.waiting.shutdown().await;
        let release = Release { name: self.name, token: self.token, not_after_ms: None };
        self.holder.release(release).await?;
        Ok(())
    }
}

/// Waits for ever. A wait that fails shows as errors of the load, if at all.
async fn wait(client: Client, name: Name) {
    let longest = Duration::from_millis(limits::WAIT_MAX_MS);
    let acquire = new_acquire(name);
    loop {
        if client.acquire(acquire.clone(), longest).await.is_err() {
            sleep(ERROR_PAUSE).await;
        }
    }
}
