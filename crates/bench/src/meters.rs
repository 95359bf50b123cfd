//! What a run costs: processor time, the device's bytes and flushes, syncs of the log.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use tokio::time::Instant;

use crate::device::{Device, Written};
use crate::http::Connection;
use crate::procfs;
use crate::tally::rounded;

/// The counter of a node's metrics that says how often its log was synced.
const SYNCS: &str = "tenure_log_syncs_total";

/// What is read before and after a window.
#[derive(Debug, Clone, Default)]
pub struct Meters {
    /// Processes of the servers. What descends from them counts too.
    pub pids: Vec<u32>,
    /// The disk below the servers' data.
    pub device: Option<Device>,
    /// HTTP addresses (host:port) of nodes whose syncs are counted.
    pub nodes: Vec<String>,
}

/// One reading. All counters grow, those that are not known stay none.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    at: Instant,
    servers: Option<Duration>,
    client: Option<Duration>,
    machine: Option<Duration>,
    written: Option<Written>,
    syncs: Option<u64>,
}

impl Meters {
    /// Reads them all.
    ///
    /// # Errors
    /// When a process is gone or a node does not answer.
    pub async fn read(&self) -> anyhow::Result<Reading> {
        let mut syncs = (!self.nodes.is_empty()).then_some(0_u64);
        for address in &self.nodes {
            let node = Connection::new(address.clone());
            let (_, metrics) = node.ask(Method::GET, "/metrics", Bytes::new()).await?;
            let count = counter(&String::from_utf8_lossy(&metrics), SYNCS);
            let count = count.with_context(|| format!("{address} does not count {SYNCS}"))?;
            syncs = syncs.map(|sum| sum.saturating_add(count));
        }
        let mut servers = (!self.pids.is_empty()).then_some(Duration::ZERO);
        for pid in &self.pids {
            let time = procfs::family_time(*pid);
            let time = time.with_context(|| format!("there is no process {pid}"))?;
            servers = servers.map(|sum| sum.saturating_add(time));
        }
        Ok(Reading {
            at: Instant::now(),
            servers,
            client: procfs::own_time(),
            machine: procfs::machine_busy(),
            written: self.device.as_ref().and_then(Device::written),
            syncs,
        })
    }
}

/// A counter in the text format of Prometheus, the sum over its labels.
fn counter(metrics: &str, name: &str) -> Option<u64> {
    let mut sum = None;
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        if rest.starts_with([' ', '{'])
            && let Some(count) = rest.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok())
        {
            sum = Some(sum.unwrap_or(0_u64).saturating_add(count));
        }
    }
    sum
}

/// What a window cost. Members are null where they are not known.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Costs {
    /// Of all servers together, in microseconds for each operation.
    pub server_cpu_us_per_op: Option<f64>,
    /// Of this process.
    pub client_cpu_us_per_op: Option<f64>,
    /// Written to the device, by whomever.
    pub device_bytes_per_op: Option<f64>,
    /// Flushes of the device's cache, by whomever.
    pub device_flushes_per_op: Option<f64>,
    /// Processors that others kept busy meanwhile: noise.
    pub noise_cores: Option<f64>,
    /// Syncs of all nodes' logs. Only when their addresses are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_syncs: Option<u64>,
}

impl Reading {
    /// Time from an earlier reading to this one.
    #[must_use]
    pub fn elapsed_since(&self, before: &Self) -> Duration {
        self.at.saturating_duration_since(before.at)
    }

    /// What `ops` operations cost that ran since an earlier reading.
    #[must_use]
    pub fn costs_since(&self, before: &Self, ops: u64) -> Costs {
        let per_op = |amount: f64| (ops > 0).then(|| rounded(amount / ops as f64));
        let us_per_op = |spent: Option<Duration>| per_op(spent?.as_secs_f64() * 1e6);
        let spent =
            |now: Option<Duration>, before: Option<Duration>| Some(now?.saturating_sub(before?));
        let (servers, client) =
            (spent(self.servers, before.servers), spent(self.client, before.client));
        let written = self.written.zip(before.written).map(|(now, before)| Written {
            bytes: now.bytes.saturating_sub(before.bytes),
            flushes: now.flushes.saturating_sub(before.flushes),
        });
        let noise = || {
            let ours = servers?.saturating_add(client?);
            let others = spent(self.machine, before.machine)?.saturating_sub(ours);
            let elapsed = self.elapsed_since(before).as_secs_f64();
            (elapsed > 0.0).then(|| rounded(others.as_secs_f64() / elapsed))
        };
        Costs {
            server_cpu_us_per_op: us_per_op(servers),
            client_cpu_us_per_op: us_per_op(client),
            device_bytes_per_op: written.and_then(|written| per_op(written.bytes as f64)),
            device_flushes_per_op: written.and_then(|written| per_op(written.flushes as f64)),
            noise_cores: noise(),
            log_syncs: self.syncs.zip(before.syncs).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_their_labels_and_not_mixed_up() {
        let metrics = "# TYPE tenure_log_syncs_total counter\n\
            tenure_log_syncs_total{store=\"log\"} 40\n\
            tenure_log_syncs_total 2\n\
            tenure_log_syncs_total_seconds 9\n\
            tenure_other 5\n";
        assert_eq!(counter(metrics, SYNCS), Some(42));
        assert_eq!(counter("tenure_other 5\n", SYNCS), None);
    }

    #[test]
    fn costs_are_shared_by_the_operations_and_unknown_ones_stay_so() {
        let at = Instant::now();
        let reading = |seconds: u64| Reading {
            at: at + Duration::from_secs(seconds),
            servers: Some(Duration::from_secs(seconds)),
            client: Some(Duration::from_secs(2 * seconds)),
            machine: Some(Duration::from_secs(4 * seconds)),
            written: Some(Written { bytes: 1000 * seconds, flushes: 10 * seconds }),
            syncs: None,
        };
        let costs = reading(3).costs_since(&reading(1), 1000);
        assert_eq!(costs.server_cpu_us_per_op, Some(2000.0));
        assert_eq!(costs.client_cpu_us_per_op, Some(4000.0));
        assert_eq!(costs.device_bytes_per_op, Some(2.0));
        assert_eq!(costs.device_flushes_per_op, Some(0.02));
        assert_eq!(costs.noise_cores, Some(1.0));
        assert_eq!(costs.log_syncs, None);
        assert_eq!(reading(3).costs_since(&reading(1), 0).server_cpu_us_per_op, None);
        let unknown = Reading { servers: None, written: None, ..reading(3) };
        let costs = unknown.costs_since(&reading(1), 1);
        assert_eq!((costs.server_cpu_us_per_op, costs.device_bytes_per_op), (None, None));
    }
}
