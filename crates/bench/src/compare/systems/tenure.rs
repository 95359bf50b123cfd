//! Three nodes as `tenure dev` starts them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use serde::Deserialize;
use tenure_bench::{Native, Payloads};
use tenure_client::{Client, Config};

use super::{Peer, Programs};
use crate::processes::{Processes, ports_are_free};

const BASE_PORT: u16 = 17_600;

#[derive(Debug)]
pub(crate) struct Tenure {
    _processes: Processes,
    ready: Ready,
}

/// The line that `tenure dev` prints once there is a leader.
#[derive(Debug, Deserialize)]
struct Ready {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    rpc: String,
    pid: u32,
}

impl Peer for Tenure {
    type Driver = Native;
    /// The client has its own connections.
    const CONNECTIONS: usize = 1;

    async fn start(programs: &Programs, directory: &Path) -> anyhow::Result<Self> {
        ports_are_free((1..=3).flat_map(|id| [BASE_PORT + id, BASE_PORT + 100 + id]))?;
        let mut processes = Processes::new(directory)?;
        let mut dev = Command::new(&programs.tenure);
        dev.args(["-o", "json", "dev", "--base-port", &BASE_PORT.to_string(), "--data-dir"]);
        dev.arg(directory.join("data"));
        processes.spawn("dev", &mut dev)?;
        let log = directory.join("dev.log");
        let ready = processes
            .until(async || {
                let lines = fs::read_to_string(&log).context("cannot read what it printed")?;
                let ready = lines.lines().find_map(|line| serde_json::from_str(line).ok());
                ready.context("there is no leader yet")
            })
            .await?;
        Ok(Self { _processes: processes, ready })
    }

    fn pids(&self) -> Vec<u32> {
        self.ready.nodes.iter().map(|node| node.pid).collect()
    }

    async fn connect(
        &self,
        connections: usize,
        _reads_first: bool,
        payload: &[u8],
    ) -> anyhow::Result<Vec<Arc<Native>>> {
        let payloads = Payloads::new(payload.len())?;
        let endpoints: Vec<_> = self.ready.nodes.iter().map(|node| node.rpc.clone()).collect();
        let connect = |_| {
            let client = Client::new(Config::new(endpoints.clone()));
            Arc::new(Native::new(client, payloads.clone()))
        };
        Ok((0..connections).map(connect).collect())
    }
}
