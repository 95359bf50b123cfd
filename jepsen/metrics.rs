//! What a node counts, before and after a known walk.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_jepsen::cluster::Cluster;
use tenure_jepsen::eventually;
use tenure_jepsen::http::{self, Connection, request};

/// Values by name and labels.
type Metrics = BTreeMap<String, f64>;

fn scrape(address: &str) -> Metrics {
    let answer = http::get(address, "/metrics").unwrap();
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.ends_with("# EOF\n"));
    let mut found = Metrics::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tenure_"), "{line}");
        assert!(found.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line}");
    }
    found
}

fn of(metrics: &Metrics, name: &str) -> f64 {
    metrics.get(&format!("tenure_{name}")).copied().unwrap_or(0.0)
}

fn operation(operation: &str, outcome: &str) -> String {
    format!("operations_total{{operation=\"{operation}\",outcome=\"{outcome}\"}}")
}

/// What grew between two scrapes, counters of operations alone.
fn operations(before: &Metrics, after: &Metrics) -> BTreeMap<String, f64> {
    let counters = after.iter().filter(|(name, _)| name.starts_with("tenure_operations_total"));
    let grown = counters.map(|(name, value)| {
        let name = name.trim_start_matches("tenure_").to_owned();
        let was = of(before, &name);
        (name, value - was)
    });
    grown.filter(|(_, more)| *more != 0.0).collect()
}

/// Every outcome once, and what each is counted as.
fn walk(node: &str) -> BTreeMap<String, f64> {
    let name = |key: &str| json!({ "scope": "metrics", "key": key });
    let with = |key: &str, more: Value| {
        let mut body = name(key);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let post =
        |command: &str, body: Value| http::post(node, &format!("/v1/{command}"), &body).body();
    let print = |digit: &str| json!({ "attempt": "a", "fingerprint": digit.repeat(16) });
    let token = post("acquire", with("k", print("a")))["token"].clone();
    post("acquire", with("k", print("a")));
    post("acquire", with("k", print("b")));
    post("acquire", name("k"));
    post("acquire", with("k", json!({ "not_after_ms": 1 })));
    http::get(node, "/v1/scopes/metrics/keys/k").unwrap();
    http::get(node, "/v1/scopes/metrics/keys/none").unwrap();
    http::get(node, "/v1/scopes/metrics/keys").unwrap();
    post("wait", with("k", json!({ "timeout_ms": 1 })));
    post("wait", with("none", json!({ "timeout_ms": 1 })));
    post("extend", with("k", json!({ "token": token, "lease_ms": 60_000 })));
    post("complete", with("k", json!({ "token": token })));
    post("complete", with("k", json!({ "token": token })));
    post("acquire", name("k"));
    post("wait", with("k", json!({ "timeout_ms": 1 })));
    post("release", with("k", json!({ "token": token })));
    post("extend", with("none", json!({ "token": token, "lease_ms": 9 })));
    post("acquire", with("short", json!({ "lease_ms": 2 })));
    post("wait", with("short", json!({ "timeout_ms": 5000 })));
    let thief = post("acquire", with("short", json!({ "wait_ms": 5000 })))["token"].clone();
    post("release", with("short", json!({ "token": thief })));
    post("purge", json!({}));
    let batch: Vec<Value> =
        (0..10).map(|n| json!({ "acquire": name(&format!("batch-{n}")) })).collect();
    post("batch", json!({ "commands": batch }));
    let counted = [
        ("acquire", "acquired", 12.0),
        ("acquire", "resumed", 1.0),
        ("acquire", "fingerprint_mismatch", 1.0),
        ("acquire", "in_progress", 1.0),
        ("acquire", "too_late", 1.0),
        ("acquire", "replay", 1.0),
        ("acquire", "stolen", 1.0),
        ("complete", "completed", 1.0),
        ("complete", "already_complete", 1.0),
        ("release", "lease_lost", 1.0),
        ("release", "released", 1.0),
        ("extend", "extended", 1.0),
        ("extend", "lease_lost", 1.0),
        ("get", "found", 1.0),
        ("get", "absent", 1.0),
        ("list", "ok", 1.0),
        ("wait", "timeout", 1.0),
        ("wait", "absent", 1.0),
        ("wait", "complete", 1.0),
        ("wait", "lease_expired", 1.0),
        ("purge", "purged", 1.0),
    ];
    counted.into_iter().map(|(op, outcome, count)| (operation(op, outcome), count)).collect()
}

#[test]
fn a_known_walk_is_counted_on_the_node_that_was_asked() {
    let mut cluster = Cluster::start();
    let leader = cluster.node(cluster.leader()).http.clone();
    let follower = cluster.node(cluster.follower()).http.clone();

    let before = scrape(&leader);
    let walked = walk(&leader);
    let after = scrape(&leader);
    assert_eq!(operations(&before, &after), walked);
    let grew = |name: &str| of(&after, name) - of(&before, name);
    assert_eq!(grew("steals_total"), 1.0);
    assert_eq!(grew("leases_lost_total"), 2.0);
    assert_eq!(grew("forwarded_total"), 0.0);
    // 21 commands went through the log: 10 of them in one entry, and each other in its own.
    // Ticks came with some of the reads.
    assert_eq!(grew("commands_per_entry_sum"), 21.0);
    let ticks = grew("commands_per_entry_bucket{le=\"1.0\"}") - 11.0;
    assert!((0.0..20.0).contains(&ticks), "{ticks} ticks");
    assert_eq!(grew("commands_per_entry_count"), 12.0 + ticks);
    assert_eq!(grew("commands_per_entry_bucket{le=\"16.0\"}"), 12.0 + ticks);
    assert_eq!(grew("apply_commands_total"), 21.0);
    assert_eq!(grew("apply_entries_total"), 12.0 + ticks);
    assert_eq!(grew("log_entries_total"), 12.0 + ticks);
    let syncs = grew("log_syncs_total");
    assert!(syncs >= 1.0 && syncs == grew("log_sync_seconds_count"), "{syncs} syncs");
    assert!(grew("log_bytes_total") > 500.0 && grew("log_sync_seconds_sum") > 0.0);
    assert!(grew("apply_seconds_count") >= 1.0 && grew("apply_seconds_sum") > 0.0);
    assert_eq!((of(&after, "leads"), of(&scrape(&follower), "leads")), (1.0, 0.0));

    // Positions are those that the node tells otherwise.
    let status = http::get(&leader, "/v1/cluster").unwrap().body();
    let now = scrape(&leader);
    for (metric, member) in [
        ("log_last_index", "last_index"),
        ("committed_index", "committed_index"),
        ("applied_index", "applied_index"),
        ("term", "term"),
        ("clock_ms", "clock_ms"),
    ] {
        assert_eq!(of(&now, metric), status[member].as_f64().unwrap(), "{metric}");
    }
    let taken = http::post(&leader, "/v1/cluster/snapshot", &Value::Null).body();
    let snapped = scrape(&leader);
    assert_eq!(of(&snapped, "snapshots_built_total"), of(&now, "snapshots_built_total") + 1.0);
    assert!(taken["index"].as_f64().unwrap() >= of(&now, "applied_index"));

    // A follower counts what its clients asked; the leader does not count it a second time.
    let name = json!({ "scope": "metrics", "key": "forwarded" });
    let (f_before, l_before) = (scrape(&follower), scrape(&leader));
    assert_eq!(http::post(&follower, "/v1/acquire", &name).body()["outcome"], "acquired");
    let (f_after, l_after) = (scrape(&follower), scrape(&leader));
    let one = BTreeMap::from([(operation("acquire", "acquired"), 1.0)]);
    assert_eq!(operations(&f_before, &f_after), one);
    assert_eq!(of(&f_after, "forwarded_total"), of(&f_before, "forwarded_total") + 1.0);
    assert_eq!(operations(&l_before, &l_after), BTreeMap::new());
    cluster.assert_sound();
}

#[test]
fn waiters_the_purge_backlog_and_leader_changes_are_shown() {
    let mut cluster = Cluster::start();
    let leader = cluster.node(cluster.leader()).clone();
    let limit = Duration::from_secs(20);
    let name = json!({ "scope": "metrics", "key": "k" });
    let token = http::post(&leader.http, "/v1/acquire", &name).body()["token"].clone();
    let wait = json!({ "scope": "metrics", "key": "k", "wait_ms": 30_000 }).to_string();
    let mut waiters: Vec<Connection> = (0..3)
        .map(|_| {
            let mut connection = Connection::open(&leader.http).unwrap();
            connection.send(&request("POST", "/v1/acquire", &[], wait.as_bytes())).unwrap();
            connection
        })
        .collect();
    let shows = |name: &str, value: f64| {
        eventually(&format!("{name} is {value}"), limit, || {
            (of(&scrape(&leader.http), name) == value).then_some(())
        });
    };
    shows("waiters", 3.0);
    let complete = json!({ "scope": "metrics", "key": "k", "token": token });
    assert_eq!(http::post(&leader.http, "/v1/complete", &complete).status, 200);
    for waiter in &mut waiters {
        assert_eq!(waiter.answer().unwrap().body()["outcome"], "replay");
    }
    shows("waiters", 0.0);

    // Records fall due, are seen as a backlog, and go; the purger may be quicker than a look.
    let mut round = 0;
    eventually("a purge backlog is shown", Duration::from_secs(40), || {
        round += 1;
        let commands: Vec<Value> = (0..100)
            .map(|n| {
                json!({ "acquire": { "scope": "metrics", "key": format!("due-{round}-{n}"),
                    "lease_ms": 2, "ttl_ms": 1 } })
            })
            .collect();
        let made = http::post(&leader.http, "/v1/batch", &json!({ "commands": commands }));
        assert_eq!(made.status, 200);
        (0..5).any(|_| of(&scrape(&leader.http), "purge_backlog") >= 100.0).then_some(())
    });
    shows("purge_backlog", 0.0);

    let follower = cluster.node(cluster.follower()).clone();
    let before = scrape(&follower.http);
    cluster.kill(leader.id);
    eventually("the change of the leader is counted", limit, || {
        let now = scrape(&follower.http);
        (of(&now, "leader_changes_total") == of(&before, "leader_changes_total") + 1.0
            && of(&now, "term") > of(&before, "term"))
        .then_some(())
    });
    cluster.restart(leader.id);
    cluster.wait_ready();
    cluster.assert_sound();
}
