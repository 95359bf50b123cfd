//! How a command reaches a cluster over the native protocol.

use tenure_client::{Client, Config};

use super::durations::Millis;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connect {
    /// RPC addresses of some nodes; the leader's is learned from them
    #[arg(
        long,
        env = "TENURE_ENDPOINTS",
        value_name = "HOST:PORT,..",
        value_delimiter = ',',
        default_value = "127.0.0.1:7701,127.0.0.1:7702,127.0.0.1:7703"
    )]
    pub(crate) endpoints: Vec<String>,
    /// How long a call may take, all its sends together; a wait comes on top
    #[arg(long, env = "TENURE_DEADLINE", value_name = "DURATION", default_value = "10s")]
    deadline: Millis,
}

impl Connect {
    pub(crate) fn client(&self) -> Client {
        Client::new(self.config())
    }

    pub(crate) fn config(&self) -> Config {
        let timeout = self.deadline.duration();
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.trim().to_owned()).collect();
        Config { timeout, ..Config::new(endpoints) }
    }
}
