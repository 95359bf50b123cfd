//! The systems that are compared: how each is started, and how it does the job.
//!
//! | system | acquire | complete | extend |
//! |---|---|---|---|
//! | tenure | acquire | complete | extend |
//! | etcd | Txn: absent, then put, else get | Txn: revision, then put | the same |
//! | zookeeper | create | setData with version | the same |
//! | nats | KV create | KV update with revision | the same |
//! | redis-always | script: GET, INCR, SET PX | script: compare, SET PX | script: compare, PEXPIRE |
//! | postgres | INSERT ON CONFLICT | UPDATE with token | the same |
//!
//! Where a linearizable read is cheaper than the attempt to acquire, `duplicates` reads first. No
//! other system expires or purges during the load; their deadlines are written and left alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tenure_bench::{LEASE_MS, System, TTL_MS};

pub(crate) mod etcd;
pub(crate) mod nats;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod tenure;
pub(crate) mod zookeeper;

/// How long one call may take, and a connection to stand.
pub(crate) const CALL_WITHIN: Duration = Duration::from_secs(30);

/// One system, started. Dropping it ends it.
pub(crate) trait Peer: Sized {
    type Driver: System;

    /// Most connections that its clients share.
    const CONNECTIONS: usize;

    /// Starts it in an empty directory, with fsync on and on loopback. When this returns it
    /// answers.
    fn start(programs: &Programs, directory: &Path) -> impl Future<Output = anyhow::Result<Self>>;

    /// Processes whose time counts.
    fn pids(&self) -> Vec<u32>;

    /// So many connections that read first if `reads_first`, and store `payload`.
    fn connect(
        &self,
        connections: usize,
        reads_first: bool,
        payload: &[u8],
    ) -> impl Future<Output = anyhow::Result<Vec<Arc<Self::Driver>>>>;
}

/// Where the programs of the systems are.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) tenure: PathBuf,
    /// Holds `etcd` and `nats-server`.
    pub(crate) peers: PathBuf,
}

impl Programs {
    /// A program that no package of the distribution has, or that it has in the path.
    pub(crate) fn peer(&self, name: &str) -> anyhow::Result<PathBuf> {
        let own = self.peers.join(name);
        if own.exists() { Ok(own) } else { in_path(name) }
    }
}

/// A program in the search path.
pub(crate) fn in_path(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    let found = found.find(|program| program.is_file());
    found.ok_or_else(|| anyhow::anyhow!("{name} is not installed"))
}

/// Bytes before the result in what the other stores keep of a COMPLETE record.
const HEADER: usize = 17;

/// A record that is IN_PROGRESS, as users of such a store would write it: who, and until when.
pub(crate) fn in_progress(holder: u64) -> Vec<u8> {
    format!("P{holder:016x}{:016x}", deadline_ms(LEASE_MS)).into_bytes()
}

/// A COMPLETE record: until when it is kept, and the result.
pub(crate) fn complete(payload: &[u8]) -> Vec<u8> {
    let mut value = format!("C{:016x}", deadline_ms(TTL_MS)).into_bytes();
    value.extend_from_slice(payload);
    value
}

/// The size of the result in a stored value, if that is COMPLETE.
pub(crate) fn replayed(value: &[u8]) -> anyhow::Result<usize> {
    match value.strip_prefix(b"C") {
        Some(rest) => Ok(rest.len().saturating_sub(HEADER - 1)),
        None => anyhow::bail!("a key of the load is IN_PROGRESS by another client"),
    }
}

#[expect(clippy::disallowed_methods, reason = "these stores have no time but their users' clocks")]
fn deadline_ms(from_now_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add(from_now_ms)
}
