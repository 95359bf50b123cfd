//! What lies on disk: a large state on its way to a node that is far behind, and a disk that is
//! almost full.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tenure_jepsen::cluster::Cluster;
use tenure_jepsen::http::{self, post};
use tenure_jepsen::{eventually, seed};

const MIB: u64 = 1024 * 1024;
/// Completed records of a MiB each.
const LARGE: u64 = 110;

fn metric(node: &str, name: &str) -> u64 {
    let text = String::from_utf8(http::get(node, "/metrics").unwrap().body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("tenure_{name} ")));
    line.unwrap().parse().unwrap()
}

fn cycle(node: &str, key: &str, payload: &Value) -> Option<()> {
    let name = json!({ "scope": "large", "key": key });
    let token = post(node, "/v1/acquire", &name).body()["token"].clone();
    let complete = json!({ "scope": "large", "key": key, "token": token, "payload": payload });
    (post(node, "/v1/complete", &complete).status == 200).then_some(())
}

/// Ends the load, also when the test has failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The hash of a node's state, and the index that it is of.
fn state(node: &str) -> Value {
    post(node, "/v1/cluster/snapshot", &json!({})).body()
}

#[test]
fn a_node_far_behind_takes_in_a_snapshot_of_more_than_a_hundred_mib_under_load() {
    let mut cluster = Cluster::with(3, &[("TENURE_SNAPSHOT_ENTRIES", "1000")]);
    let mut rng = StdRng::seed_from_u64(seed("catch up"));
    let (behind, leader) = (cluster.follower(), cluster.leader());
    let node = cluster.node(leader).http.clone();
    cluster.kill(behind);
    for n in 0..LARGE {
        // Random, or it would be compressed away.
        let mut body = vec![0; usize::try_from(MIB).unwrap()];
        rng.fill_bytes(&mut body);
        cycle(&node, &format!("k{n}"), &json!({ "body": STANDARD.encode(body) })).unwrap();
    }
    let mut small = 0;
    eventually("the log that it lacks is purged", Duration::from_secs(60), || {
        for n in small..small + 100 {
            cycle(&node, &format!("small-{n}"), &json!({}))?;
        }
        small += 100;
        (metric(&node, "log_first_index") > 500).then_some(())
    });

    let (stop, cycles) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let n = cycles.fetch_add(1, Ordering::Relaxed);
                cycle(&node, &format!("load-{n}"), &json!({})).unwrap();
            }
        });
        cluster.restart(behind);
        let late = cluster.node(behind).http.clone();
        eventually("it has taken in a snapshot", Duration::from_secs(120), || {
            http::get(&late, "/livez").ok()?;
            (metric(&late, "snapshots_installed_total") > 0).then_some(())
        });
        eventually("it has caught up", Duration::from_secs(60), || {
            (metric(&late, "applied_index") + 50 > metric(&node, "applied_index")).then_some(())
        });
    });
    eprintln!("{} cycles meanwhile", cycles.load(Ordering::Relaxed));
    assert!(cycles.load(Ordering::Relaxed) > 10);

    let late = cluster.node(behind).http.clone();
    let (mine, theirs) = eventually("both are at one index", Duration::from_secs(30), || {
        let (mine, theirs) = (state(&late), state(&node));
        (mine["index"] == theirs["index"]).then_some((mine, theirs))
    });
    assert_eq!(mine["hash"], theirs["hash"]);
    assert!(mine["bytes"].as_u64().unwrap() > 100 * MIB, "{mine}");
    let read = http::get(&late, "/v1/scopes/large/keys/k7/payload?consistency=stale").unwrap();
    assert_eq!(u64::try_from(read.body.len()).unwrap(), MIB);
    cluster.assert_sound();
}

#[test]
fn an_almost_full_disk_takes_only_what_makes_room() {
    // No disk has so much room.
    let mut cluster = Cluster::with(3, &[("TENURE_MIN_FREE_DISK_MB", "1000000000")]);
    let node = cluster.node(cluster.follower()).http.clone();
    let name = json!({ "scope": "s", "key": "k" });
    let refused = eventually("the disk was looked at", Duration::from_secs(10), || {
        let answer = post(&node, "/v1/acquire", &name);
        (answer.status == 507).then_some(answer.body())
    });
    assert_eq!(refused["code"], "storage_full");
    assert_eq!((&refused["outcome"], &refused["retryable"]), (&json!("refused"), &json!(false)));
    let with = |more: Value| {
        let mut body = name.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let token = json!({ "token": 1 });
    assert_eq!(post(&node, "/v1/complete", &with(token.clone())).status, 507);
    let extend = with(json!({ "token": 1, "lease_ms": 1000 }));
    assert_eq!(post(&node, "/v1/extend", &extend).status, 507);
    assert_eq!(post(&node, "/v1/release", &with(token)).status, 412);
    assert_eq!(post(&node, "/v1/purge", &json!({})).status, 200);
    assert_eq!(http::get(&node, "/v1/scopes/s/keys/k").unwrap().status, 404);
    cluster.assert_sound();
}
