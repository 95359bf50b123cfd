//! Puts a client together, a setting at a time.

use std::sync::Arc;
use std::time::Duration;

use tenure_state_machine::{Holder, Invalid};

use crate::boottime::{BootTime, RealBootTime};
use crate::client::{Client, Config, Retry};
use crate::connection::DialTimeouts;

/// Settings of a client; those that are not made are the defaults of [`Config::new`].
#[derive(Debug)]
#[must_use = "it is not a client yet"]
pub struct ClientBuilder {
    config: Config,
    holder: Result<Holder, Invalid>,
    clock: Arc<dyn BootTime>,
}

impl Client {
    /// A client, a setting at a time.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tenure_client::Client;
    ///
    /// let client = Client::builder()
    ///     .endpoints(["10.0.0.1:7701", "10.0.0.2:7701"])
    ///     .holder("worker-3")
    ///     .timeout(Duration::from_secs(20))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            config: Config::new(Vec::new()),
            holder: Ok(Holder::default()),
            clock: Arc::new(RealBootTime),
        }
    }
}

impl ClientBuilder {
    /// RPC addresses (host:port) of some nodes, tried in this order. The leader's is learned.
    pub fn endpoints<E: Into<String>>(mut self, endpoints: impl IntoIterator<Item = E>) -> Self {
        self.config.endpoints = endpoints.into_iter().map(Into::into).collect();
        self
    }

    /// The cluster that is meant. Without it, the cluster of the first node reached.
    pub fn cluster_id(mut self, id: impl Into<String>) -> Self {
        self.config.cluster_id = Some(id.into());
        self
    }

    /// Who acquires, for people: host, pod, worker; at most 128 characters.
    pub fn holder(mut self, holder: impl Into<Box<str>>) -> Self {
        self.holder = Holder::new(holder);
        self
    }

    /// How long a call may take, all sends and pauses included; a wait comes on top.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = timeout;
        self
    }

    /// How long one send may go unanswered before its node is taken for dead.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.config.send_timeout = timeout;
        self
    }

    /// How long a dial may take.
    pub fn dial(mut self, timeouts: DialTimeouts) -> Self {
        self.config.dial = timeouts;
        self
    }

    /// Pauses between the sends of a call.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.config.retry = retry;
        self
    }

    /// The clock that leases are counted on, for tests.
    pub fn clock(mut self, clock: Arc<dyn BootTime>) -> Self {
        self.clock = clock;
        self
    }

    /// The client. It connects when it is first asked something.
    ///
    /// # Errors
    /// [`Invalid`] on the holder, or without endpoints.
    pub fn build(self) -> Result<Client, Invalid> {
        if self.config.endpoints.is_empty() {
            return Err(Invalid::argument("endpoints", "must name at least one node"));
        }
        let config = Config { holder: self.holder?, ..self.config };
        Ok(Client::with_clock(config, self.clock))
    }
}
