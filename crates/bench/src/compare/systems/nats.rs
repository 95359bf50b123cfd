//! Three NATS servers with a replicated key-value bucket on disk, synced before each answer (their
//! default is every two minutes).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use async_nats::ConnectOptions;
use async_nats::jetstream::{self, kv, stream::StorageType};
use tenure_bench::{Acquired, System};

use super::{CALL_WITHIN, Peer, Programs, complete, in_progress, replayed};
use crate::processes::{Processes, ports_are_free};

/// Ports of the servers' clients, and of their cluster.
const PORTS: [(u16, u16); 3] = [(14_222, 16_222), (24_222, 26_222), (30_222, 30_622)];
const BUCKET: &str = "bench";

#[derive(Debug)]
pub(crate) struct Nats {
    processes: Processes,
}

impl Peer for Nats {
    type Driver = Connection;
    const CONNECTIONS: usize = 16;

    async fn start(programs: &Programs, directory: &Path) -> anyhow::Result<Self> {
        let program = programs.peer("nats-server")?;
        ports_are_free(PORTS.iter().flat_map(|(client, cluster)| [*client, *cluster]))?;
        let mut processes = Processes::new(directory)?;
        let routes = PORTS.map(|(_, cluster)| format!("nats://127.0.0.1:{cluster}")).join(", ");
        for (client, cluster) in PORTS {
            let name = format!("server-{client}");
            let store = directory.join(&name);
            let settings = format!(
                "server_name: {name}\nhost: 127.0.0.1\nport: {client}\n\
                 jetstream {{ store_dir: {store:?}, sync_interval: always }}\n\
                 cluster {{ name: bench, host: 127.0.0.1, port: {cluster}, routes: [{routes}] }}\n"
            );
            let file = directory.join(format!("{name}.conf"));
            fs::write(&file, settings).context("cannot write its settings")?;
            processes.spawn(&name, Command::new(&program).arg("-c").arg(&file))?;
        }
        processes.until(async || make_bucket().await).await?;
        Ok(Self { processes })
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
        for (client, _) in PORTS.iter().cycle().take(connections) {
            let bucket = context(*client).await?.get_key_value(BUCKET).await?;
            connected.push(Arc::new(Connection { bucket, reads_first, payload: payload.to_vec() }));
        }
        Ok(connected)
    }
}

async fn context(port: u16) -> anyhow::Result<jetstream::Context> {
    let options = ConnectOptions::new().request_timeout(Some(CALL_WITHIN));
    let client = options.connect(format!("nats://127.0.0.1:{port}")).await?;
    let mut context = jetstream::new(client);
    context.set_timeout(CALL_WITHIN);
    Ok(context)
}

/// Makes the bucket if it is not there, and writes to it. Its reads go to the stream's leader.
async fn make_bucket() -> anyhow::Result<()> {
    let [(first, _), ..] = PORTS;
    let context = context(first).await?;
    if context.get_key_value(BUCKET).await.is_err() {
        let config = kv::Config {
            bucket: BUCKET.to_owned(),
            history: 1,
            num_replicas: PORTS.len(),
            storage: StorageType::File,
            ..kv::Config::default()
        };
        context.create_key_value(config).await?;
    }
    let stream = context.get_stream(format!("KV_{BUCKET}")).await?;
    let mut config = stream.cached_info().config.clone();
    config.allow_direct = false;
    context.update_stream(config).await?;
    context.get_key_value(BUCKET).await?.put("ready", "".into()).await?;
    Ok(())
}

pub(crate) struct Connection {
    bucket: kv::Store,
    reads_first: bool,
    payload: Vec<u8>,
}

impl Connection {
    async fn read(&self, key: &str) -> anyhow::Result<Option<usize>> {
        self.bucket.get(key).await?.map(|value| replayed(&value)).transpose()
    }
}

impl System for Connection {
    /// The revision of the last write.
    type Held = u64;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<u64>> {
        if self.reads_first
            && let Some(bytes) = self.read(key).await?
        {
            return Ok(Acquired::Replayed(bytes));
        }
        match self.bucket.create(key, in_progress(0).into()).await {
            Ok(revision) => Ok(Acquired::Held(revision)),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => {
                Ok(Acquired::Replayed(self.read(key).await?.context("a record went away")?))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn complete(&self, key: &str, revision: u64) -> anyhow::Result<()> {
        self.bucket.update(key, complete(&self.payload).into(), revision).await?;
        Ok(())
    }

    async fn extend(&self, key: &str, revision: &mut u64) -> anyhow::Result<()> {
        *revision = self.bucket.update(key, in_progress(0).into(), *revision).await?;
        Ok(())
    }
}
