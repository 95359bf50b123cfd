//! Three members of etcd with their default of an fsync before each answer. Clients ask the
//! leader.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, KvClient, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tenure_bench::{Acquired, System};

use super::{CALL_WITHIN, Peer, Programs, complete, in_progress, replayed};
use crate::processes::{Processes, ports_are_free};

/// Ports of the members' clients, and of their peers.
const PORTS: [(u16, u16); 3] = [(12_379, 12_380), (22_379, 22_380), (32_379, 32_380)];

#[derive(Debug)]
pub(crate) struct Etcd {
    processes: Processes,
    leader: String,
}

impl Peer for Etcd {
    type Driver = Connection;
    const CONNECTIONS: usize = 16;

    async fn start(programs: &Programs, directory: &Path) -> anyhow::Result<Self> {
        let program = programs.peer("etcd")?;
        ports_are_free(PORTS.iter().flat_map(|(client, peer)| [*client, *peer]))?;
        let mut processes = Processes::new(directory)?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let members: Vec<_> =
            PORTS.iter().map(|(client, peer)| format!("m{client}={}", url(*peer))).collect();
        for (client, peer) in PORTS {
            let name = format!("m{client}");
            let mut member = Command::new(&program);
            member.args(["--name", &name, "--log-level", "error"]);
            member.arg("--data-dir").arg(directory.join(&name));
            for flag in ["--listen-client-urls", "--advertise-client-urls"] {
                member.args([flag, &url(client)]);
            }
            for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
                member.args([flag, &url(peer)]);
            }
            member.args(["--initial-cluster", &members.join(",")]);
            member.args(["--initial-cluster-state", "new"]);
            processes.spawn(&name, &mut member)?;
        }
        let leader = processes.until(async || leader(&PORTS.map(|(client, _)| url(client))).await);
        let leader = leader.await?;
        Ok(Self { processes, leader })
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.pids()
    }

    async fn connect(
        &self,
        connections: usize,
        reads_first: bool,
        payload: &[u8],
    ) -> anyhow::Result<Vec<Arc<Connection>>> {
        let mut connected = Vec::new();
        for _ in 0..connections {
            let kv = connect(&self.leader).await?.kv_client();
            connected.push(Arc::new(Connection { kv, reads_first, payload: payload.to_vec() }));
        }
        Ok(connected)
    }
}

async fn connect(endpoint: &str) -> anyhow::Result<Client> {
    let options = ConnectOptions::new().with_timeout(CALL_WITHIN);
    Ok(Client::connect([endpoint], Some(options)).await?)
}

/// The endpoint of the leader, once all members answer.
async fn leader(endpoints: &[String]) -> anyhow::Result<String> {
    let mut leader = None;
    for endpoint in endpoints {
        let status = connect(endpoint).await?.status().await?;
        let member = status.header().context("a status without a header")?.member_id();
        if status.leader() == member {
            leader = Some(endpoint.clone());
        }
    }
    leader.context("there is no leader yet")
}

pub(crate) struct Connection {
    kv: KvClient,
    reads_first: bool,
    payload: Vec<u8>,
}

impl Connection {
    /// Writes a held record if nobody else has since. Gives its new revision.
    async fn put(&self, key: &str, revision: i64, value: Vec<u8>) -> anyhow::Result<i64> {
        let txn = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, revision)])
            .and_then([TxnOp::put(key, value, None)]);
        let response = self.kv.clone().txn(txn).await?;
        ensure!(response.succeeded(), "the lease is lost");
        revision_of(&response)
    }
}

fn revision_of(response: &TxnResponse) -> anyhow::Result<i64> {
    Ok(response.header().context("a response without a header")?.revision())
}

impl System for Connection {
    /// The revision of the last write.
    type Held = i64;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<i64>> {
        if self.reads_first {
            let found = self.kv.clone().get(key, None).await?;
            if let Some(record) = found.kvs().first() {
                return Ok(Acquired::Replayed(replayed(record.value())?));
            }
        }
        let txn = Txn::new()
            .when([Compare::create_revision(key, CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key, in_progress(0), None)])
            .or_else([TxnOp::get(key, None)]);
        let response = self.kv.clone().txn(txn).await?;
        if response.succeeded() {
            return Ok(Acquired::Held(revision_of(&response)?));
        }
        for done in response.op_responses() {
            if let TxnOpResponse::Get(found) = done
                && let Some(record) = found.kvs().first()
            {
                return Ok(Acquired::Replayed(replayed(record.value())?));
            }
        }
        bail!("a transaction found neither nothing nor a record")
    }

    async fn complete(&self, key: &str, revision: i64) -> anyhow::Result<()> {
        self.put(key, revision, complete(&self.payload)).await.map(drop)
    }

    async fn extend(&self, key: &str, revision: &mut i64) -> anyhow::Result<()> {
        *revision = self.put(key, *revision, in_progress(0)).await?;
        Ok(())
    }
}
