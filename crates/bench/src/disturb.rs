//! What disturbs a cluster while it is measured. Each runs until its window closes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use hyper::Method;
use tenure_client::{Client, Purgation};
use tenure_state_machine::Purge;
use tokio::time::sleep;

use crate::http::Connection;

/// How long a snapshot may take.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(120);
/// How often it is asked whether a backlog is gone. Each time is an entry of the log.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Asks the nodes at these addresses (host:port) in turn for a snapshot, back to back, for ever;
/// counts those that were taken.
///
/// # Errors
/// When a node does not take one.
pub async fn snapshots(nodes: &[String], taken: &AtomicU64) -> anyhow::Result<()> {
    ensure!(!nodes.is_empty(), "there is no node to ask");
    let connect = |node: &String| Connection::new(node.clone()).with_limit(SNAPSHOT_WITHIN);
    let connections: Vec<_> = nodes.iter().map(connect).collect();
    loop {
        for connection in &connections {
            let answer = connection.ask(Method::POST, "/v1/cluster/snapshot", Bytes::new()).await;
            let (status, body) = answer.context("no snapshot")?;
            if status != 200 {
                bail!("a snapshot was answered {status}: {}", String::from_utf8_lossy(&body));
            }
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Lets the nodes work off what is due. Ends when nothing is left.
///
/// # Errors
/// When the cluster does not say whether something is left.
pub async fn purges(client: &Client) -> anyhow::Result<()> {
    loop {
        sleep(LOOK_EVERY).await;
        let (purgation, _) = client.purge(Purge { limit: 1, not_after_ms: None }).await?;
        if let Purgation::Purged { more: false, .. } = purgation {
            return Ok(());
        }
    }
}
