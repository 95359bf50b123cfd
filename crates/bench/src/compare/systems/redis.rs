//! One Redis that syncs its file before each answer. It is not replicated.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{bail, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, Value};
use tenure_bench::{Acquired, LEASE_MS, System, TTL_MS};

use super::{CALL_WITHIN, Peer, Programs, complete, in_path, replayed};
use crate::processes::{Processes, ports_are_free};

const PORT: u16 = 16_379;

/// Takes an absent key under a fresh token, or reads it.
const ACQUIRE: &str = "\
local found = redis.call('GET', KEYS[1])
if found then return found end
local token = redis.call('INCR', 'token')
redis.call('SET', KEYS[1], 'P' .. token, 'PX', ARGV[1])
return token";
const COMPLETE: &str = "\
if redis.call('GET', KEYS[1]) ~= 'P' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";
const EXTEND: &str = "\
if redis.call('GET', KEYS[1]) ~= 'P' .. ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

#[derive(Debug)]
pub(crate) struct Redis {
    processes: Processes,
}

impl Peer for Redis {
    type Driver = Connection;
    const CONNECTIONS: usize = 16;

    async fn start(_programs: &Programs, directory: &Path) -> anyhow::Result<Self> {
        ports_are_free([PORT])?;
        let mut processes = Processes::new(directory)?;
        let mut server = Command::new(in_path("redis-server")?);
        server.args(["--bind", "127.0.0.1", "--port", &PORT.to_string(), "--save", ""]);
        server.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(directory);
        processes.spawn("redis", &mut server)?;
        processes.until(async || connect().await).await?;
        Ok(Self { processes })
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.pids()
    }

    async fn connect(
        &self,
        connections: usize,
        _reads_first: bool,
        payload: &[u8],
    ) -> anyhow::Result<Vec<Arc<Connection>>> {
        let mut connected = Vec::new();
        for _ in 0..connections {
            let connection = Connection {
                redis: connect().await?,
                acquire: Script::new(ACQUIRE),
                complete: Script::new(COMPLETE),
                extend: Script::new(EXTEND),
                payload: payload.to_vec(),
            };
            connected.push(Arc::new(connection));
        }
        Ok(connected)
    }
}

async fn connect() -> anyhow::Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(CALL_WITHIN))
        .set_connection_timeout(Some(CALL_WITHIN));
    let client = Client::open(format!("redis://127.0.0.1:{PORT}/"))?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

pub(crate) struct Connection {
    redis: MultiplexedConnection,
    acquire: Script,
    complete: Script,
    extend: Script,
    payload: Vec<u8>,
}

impl System for Connection {
    type Held = i64;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<i64>> {
        let call = self.acquire.key(key).arg(LEASE_MS).invoke_async(&mut self.redis.clone()).await;
        let found: Value = call?;
        if let Value::Int(token) = found {
            return Ok(Acquired::Held(token));
        }
        let Value::BulkString(value) = found else { bail!("an acquire came to {found:?}") };
        Ok(Acquired::Replayed(replayed(&value)?))
    }

    async fn complete(&self, key: &str, token: i64) -> anyhow::Result<()> {
        let mut call = self.complete.key(key);
        call.arg(token).arg(complete(&self.payload)).arg(TTL_MS);
        let done: i64 = call.invoke_async(&mut self.redis.clone()).await?;
        ensure!(done == 1, "the lease is lost");
        Ok(())
    }

    async fn extend(&self, key: &str, token: &mut i64) -> anyhow::Result<()> {
        let mut call = self.extend.key(key);
        let done: i64 =
            call.arg(*token).arg(LEASE_MS).invoke_async(&mut self.redis.clone()).await?;
        ensure!(done == 1, "the lease is lost");
        Ok(())
    }
}
