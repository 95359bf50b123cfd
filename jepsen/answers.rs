//! What a real cluster answers over HTTP: every member of every outcome, whichever node is asked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_jepsen::cluster::{Cluster, Ports};
use tenure_jepsen::eventually;
use tenure_jepsen::http::{self, Answer, Connection};
use tenure_jepsen::problem::{assert_at, assert_members, assert_problem};
use tenure_jepsen::process::{Process, tenure};

const ATTEMPT: &str = "0192d3a1-secret-attempt";
const PRINT: &str = "0123456789abcdef";

/// Asks the nodes in turn.
struct Asker<'a> {
    cluster: &'a Cluster,
    turn: Cell<usize>,
}

impl Asker<'_> {
    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let nodes = self.cluster.nodes();
        let node = &nodes[self.turn.get() % nodes.len()];
        self.turn.set(self.turn.get() + 1);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http::ask(&node.http, method, path, body.as_bytes()).unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert!(!text.contains(ATTEMPT), "an attempt is shown: {text}");
        let leader = answer.header("x-tenure-leader").expect("X-Tenure-Leader");
        assert!(nodes.iter().any(|node| node.http == leader), "{leader}");
        answer
    }

    fn post(&self, command: &str, body: &Value) -> Answer {
        self.send("POST", &format!("/v1/{command}"), body)
    }

    /// A 200 of a command, with exactly these members beside outcome and at.
    fn outcome(&self, command: &str, body: &Value, outcome: &str, more: &[&str]) -> Value {
        let answer = self.post(command, body);
        assert_eq!(answer.status, 200, "{command} {body}: {}", answer.body());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let said = answer.body();
        assert_members(&said, &[&["outcome", "at"], more].concat());
        assert_eq!(said["outcome"], outcome, "{said}");
        said
    }
}

fn with(name: &Value, more: Value) -> Value {
    let mut body = name.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const ACQUIRED: [&str; 5] = ["token", "lease_until_ms", "ttl_until_ms", "resumed", "took_over"];
const RESULT: [&str; 4] = ["token", "payload", "completed_ms", "expires_ms"];
const COMPLETED: [&str; 3] = ["token", "completed_ms", "expires_ms"];
const HELD: [&str; 5] = ["retry_after_ms", "holder", "token", "fingerprint_differs", "at"];

#[test]
fn a_record_in_progress_answers_every_command_with_all_members() {
    let mut cluster = Cluster::start();
    let ask = Asker { cluster: &cluster, turn: Cell::new(0) };
    let name = json!({ "scope": "answers", "key": "k" });
    let mine = with(
        &name,
        json!({ "attempt": ATTEMPT, "holder": "host-1", "fingerprint": PRINT.to_uppercase() }),
    );

    let first = ask.outcome("acquire", &mine, "acquired", &ACQUIRED);
    assert_at(&first, false);
    let (now, token) = (first["at"]["now_ms"].as_u64().unwrap(), first["token"].clone());
    assert_eq!((&first["resumed"], &first["took_over"]), (&json!(false), &Value::Null));
    assert_eq!(first["lease_until_ms"], now + 30_000);
    assert_eq!(first["ttl_until_ms"], now + 24 * 60 * 60 * 1000);
    let again = ask.outcome("acquire", &mine, "acquired", &ACQUIRED);
    assert_eq!((&again["token"], &again["resumed"]), (&token, &json!(true)));

    let held = ask.post("acquire", &name);
    let retry_after = held.header("retry-after").unwrap().to_owned();
    let body = assert_problem(&held, 409, "in_progress", &HELD);
    assert_at(&body, true);
    assert_eq!((&body["holder"], &body["token"]), (&json!("host-1"), &token));
    assert_eq!(body["fingerprint_differs"], false);
    let left = body["retry_after_ms"].as_u64().unwrap();
    assert_eq!(retry_after, left.div_ceil(1000).to_string());
    let other = with(&name, json!({ "fingerprint": "f".repeat(16) }));
    let differs = assert_problem(&ask.post("acquire", &other), 409, "in_progress", &HELD);
    assert_eq!(differs["fingerprint_differs"], true);
    let mine_differs = with(&mine, json!({ "fingerprint": "f".repeat(16) }));
    let mismatch = ask.post("acquire", &mine_differs);
    let body =
        assert_problem(&mismatch, 422, "fingerprint_mismatch", &["stored", "received", "at"]);
    assert_eq!((&body["stored"], &body["received"]), (&json!(PRINT), &json!("f".repeat(16))));

    let read = ask.send("GET", "/v1/scopes/answers/keys/k", &Value::Null);
    assert_eq!(read.status, 200);
    let read = read.body();
    assert_members(
        &read,
        &[
            "state",
            "token",
            "holder",
            "acquired_ms",
            "lease_until_ms",
            "lease_left_ms",
            "ttl_until_ms",
            "fingerprint",
            "at",
        ],
    );
    assert_at(&read, true);
    assert_eq!((&read["state"], &read["fingerprint"]), (&json!("in_progress"), &json!(PRINT)));
    let payload = ask.send("GET", "/v1/scopes/answers/keys/k/payload", &Value::Null);
    assert_at(&assert_problem(&payload, 404, "absent", &["at"]), true);

    let timeout = ask.outcome(
        "wait",
        &with(&name, json!({ "timeout_ms": 20 })),
        "timeout",
        &["retry_after_ms"],
    );
    assert_at(&timeout, true);
    let lease = with(&name, json!({ "token": token, "lease_ms": 60_000 }));
    let extended = ask.outcome("extend", &lease, "extended", &["token", "lease_until_ms"]);
    assert_at(&extended, false);
    assert!(extended["lease_until_ms"].as_u64() > first["lease_until_ms"].as_u64());

    let wrong = with(&name, json!({ "token": token.as_u64().unwrap() + 1 }));
    for command in ["complete", "release", "extend"] {
        let lease = if command == "extend" { json!({ "lease_ms": 9 }) } else { json!({}) };
        let lost = ask.post(command, &with(&wrong, lease));
        let body = assert_problem(&lost, 412, "lease_lost", &["reason", "current_token", "at"]);
        assert_eq!((&body["reason"], &body["current_token"]), (&json!("stolen"), &token));
        assert_at(&body, false);
    }
    for command in ["acquire", "complete", "release", "purge"] {
        let body = match command {
            "purge" => json!({ "not_after_ms": 1 }),
            "acquire" => with(&name, json!({ "not_after_ms": 1 })),
            _ => with(&name, json!({ "token": token, "not_after_ms": 1 })),
        };
        assert_problem(&ask.post(command, &body), 409, "too_late", &["at"]);
    }
    assert_at(
        &ask.outcome("release", &with(&name, json!({ "token": token })), "released", &[]),
        false,
    );
    cluster.assert_sound();
}

#[test]
fn complete_stolen_and_absent_records_answer_with_all_members() {
    let mut cluster = Cluster::start();
    let ask = Asker { cluster: &cluster, turn: Cell::new(0) };
    let name = json!({ "scope": "answers", "key": "k" });
    let acquire = |key: &str, lease_ms: u64| {
        let body = json!({ "scope": "answers", "key": key, "holder": "h", "lease_ms": lease_ms });
        ask.outcome("acquire", &body, "acquired", &ACQUIRED)["token"].clone()
    };
    let token = acquire("k", 60_000);
    let payload = json!({ "type": "text/plain", "text": "done", "attributes": { "a": "1" } });
    let complete = with(&name, json!({ "token": token, "payload": payload, "ttl_ms": 5_000_000 }));
    let done = ask.outcome("complete", &complete, "completed", &COMPLETED);
    assert_at(&done, false);
    let now = done["at"]["now_ms"].as_u64().unwrap();
    assert_eq!(
        (&done["completed_ms"], &done["expires_ms"]),
        (&json!(now), &json!(now + 5_000_000))
    );
    let other = with(&complete, json!({ "payload": { "text": "other" }, "ttl_ms": 1 }));
    let already = ask.outcome("complete", &other, "already_complete", &COMPLETED);
    assert_eq!(already["expires_ms"], done["expires_ms"]);

    let stored = json!({ "type": "text/plain", "body": "ZG9uZQ==", "attributes": { "a": "1" } });
    let replay = ask.outcome("acquire", &name, "replay", &RESULT);
    assert_at(&replay, true);
    assert_eq!((&replay["payload"], &replay["token"]), (&stored, &token));
    let waited = ask.outcome("wait", &with(&name, json!({ "timeout_ms": 1 })), "complete", &RESULT);
    assert_eq!(waited["payload"], stored);
    let read = ask.send("GET", "/v1/scopes/answers/keys/k", &Value::Null).body();
    assert_members(
        &read,
        &["state", "token", "holder", "completed_ms", "expires_ms", "payload", "fingerprint", "at"],
    );
    assert_eq!((&read["state"], &read["payload"]), (&json!("complete"), &stored));
    assert_eq!(read["fingerprint"], Value::Null);
    for command in ["release", "extend"] {
        let lease = if command == "extend" { json!({ "lease_ms": 9 }) } else { json!({}) };
        let late = ask.post(command, &with(&with(&name, json!({ "token": token })), lease));
        let body = assert_problem(&late, 412, "lease_lost", &["reason", "current_token", "at"]);
        assert_eq!((&body["reason"], &body["current_token"]), (&json!("completed"), &token));
    }

    let completed = |key: &str, payload: Value| {
        let token = acquire(key, 60_000);
        let mut body = json!({ "scope": "answers", "key": key, "token": token });
        if !payload.is_null() {
            body["payload"] = payload;
        }
        ask.outcome("complete", &body, "completed", &COMPLETED);
        ask.send("GET", &format!("/v1/scopes/answers/keys/{key}"), &Value::Null).body()["payload"]
            .clone()
    };
    assert_eq!(completed("none", Value::Null), Value::Null);
    assert_eq!(
        completed("empty", json!({})),
        json!({ "type": null, "body": "", "attributes": {} })
    );
    completed("html", json!({ "type": "text/html; charset=utf-8", "text": "<script>" }));
    let raw = |key: &str| {
        ask.send("GET", &format!("/v1/scopes/answers/keys/{key}/payload"), &Value::Null)
    };
    assert_eq!((raw("none").status, raw("none").body.len()), (204, 0));
    for (key, kind, body) in [
        ("empty", "application/octet-stream", ""),
        ("html", "text/html; charset=utf-8", "<script>"),
        ("k", "text/plain", "done"),
    ] {
        let answer = raw(key);
        assert_eq!((answer.status, answer.body.as_slice()), (200, body.as_bytes()));
        assert_eq!(answer.header("content-type"), Some(kind));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("content-disposition"), Some("attachment"));
    }

    let nothing = json!({ "scope": "answers", "key": "nothing" });
    let missing = with(&nothing, json!({ "token": 1 }));
    let body = assert_problem(
        &ask.post("complete", &missing),
        412,
        "lease_lost",
        &["reason", "current_token", "at"],
    );
    assert_eq!((&body["reason"], &body["current_token"]), (&json!("absent"), &Value::Null));
    assert_at(
        &ask.outcome("wait", &with(&nothing, json!({ "timeout_ms": 1 })), "absent", &[]),
        true,
    );
    for path in ["/v1/scopes/answers/keys/nothing", "/v1/scopes/answers/keys/nothing/payload"] {
        assert_problem(&ask.send("GET", path, &Value::Null), 404, "absent", &["at"]);
    }

    let short = acquire("short", 2);
    let short_name = json!({ "scope": "answers", "key": "short" });
    ask.outcome("wait", &with(&short_name, json!({ "timeout_ms": 5000 })), "lease_expired", &[]);
    let thief = ask.outcome(
        "acquire",
        &with(&short_name, json!({ "wait_ms": 5000 })),
        "acquired",
        &ACQUIRED,
    );
    assert_members(&thief["took_over"], &["token", "holder", "acquired_ms"]);
    assert_eq!(
        (&thief["took_over"]["token"], &thief["took_over"]["holder"]),
        (&short, &json!("h"))
    );
    assert!(thief["token"].as_u64() > short.as_u64());

    assert_at(&ask.outcome("purge", &json!({}), "purged", &["deleted", "more"]), false);
    let batch =
        ask.post("batch", &json!({ "commands": [{ "acquire": name }, { "release": missing }] }));
    assert_eq!(batch.status, 200);
    let batch = batch.body();
    assert_members(&batch, &["results"]);
    let results = batch["results"].as_array().unwrap();
    for (slot, (result, status)) in results.iter().zip([200, 412]).enumerate() {
        assert_members(result, &["status", "body"]);
        assert_eq!(
            (&result["status"], &result["body"]["at"]["slot"]),
            (&json!(status), &json!(slot))
        );
    }
    assert_eq!(results[0]["body"]["payload"], stored);
    cluster.assert_sound();
}

#[test]
fn a_listing_of_many_keys_comes_in_pages() {
    const KEYS: usize = 2500;
    let mut cluster = Cluster::start();
    let node = cluster.nodes()[0].http.clone();
    let key = |n: usize| format!("key-{n:04}/\u{fc}");
    let mut connection = Connection::open(&node).unwrap();
    let mut last = 0;
    for first in (0..KEYS).step_by(125) {
        let commands: Vec<Value> = (first..first + 125)
            .map(|n| json!({ "acquire": { "scope": "list", "key": key(n), "holder": "h" } }))
            .collect();
        let body = json!({ "commands": commands }).to_string();
        let answer = connection.ask("POST", "/v1/batch", &[], body.as_bytes()).unwrap().body();
        let results = answer["results"].as_array().unwrap();
        last = results[0]["body"]["at"]["index"].as_u64().unwrap();
        // One in five is complete.
        let done = results.iter().zip(first..).filter(|(_, n)| n % 5 == 0).map(|(result, n)| {
            json!({ "complete": { "scope": "list", "key": key(n), "token": result["body"]["token"],
                "payload": { "text": "not shown" } } })
        });
        let body = json!({ "commands": done.collect::<Vec<_>>() }).to_string();
        let answer = connection.ask("POST", "/v1/batch", &[], body.as_bytes()).unwrap().body();
        last = answer["results"][0]["body"]["at"]["index"].as_u64().unwrap().max(last);
    }
    for node in cluster.nodes() {
        let pages = |query: &str| {
            let (mut keys, mut sizes, mut token) = (Vec::new(), Vec::new(), None::<String>);
            loop {
                let more = token.map(|token| format!("&page_token={token}")).unwrap_or_default();
                let path = format!("/v1/scopes/list/keys?{query}{more}");
                let page = http::get(&node.http, &path).unwrap().body();
                assert_members(&page, &["records", "next_page_token", "at"]);
                assert_at(&page, true);
                let records = page["records"].as_array().unwrap();
                sizes.push(records.len());
                for record in records {
                    let more: &[&str] = if record["state"] == "complete" {
                        &["completed_ms", "expires_ms"]
                    } else {
                        &["acquired_ms", "lease_until_ms", "lease_left_ms", "ttl_until_ms"]
                    };
                    let all = ["scope", "key", "state", "token", "holder", "fingerprint"];
                    assert_members(record, &[&all, more].concat());
                    keys.push(record["key"].as_str().unwrap().to_owned());
                }
                token = page["next_page_token"].as_str().map(str::to_owned);
                if token.is_none() {
                    return (keys, sizes);
                }
            }
        };
        // Stale: as far as this node is.
        eventually("the node has applied everything", Duration::from_secs(10), || {
            let page = http::get(&node.http, "/v1/scopes/list/keys?page_size=1").ok()?.body();
            (page["at"]["index"].as_u64()? >= last).then_some(())
        });
        let (keys, sizes) = pages("page_size=1000");
        assert_eq!(keys, (0..KEYS).map(key).collect::<Vec<_>>());
        assert_eq!(sizes[..2], [1000, 1000]);
        assert_eq!(pages("").1[0], 100);
        assert_eq!(pages("prefix=key-01&page_size=7").0.len(), 100);
        assert_eq!(pages("prefix=key-0100/%C3%BC").0, [key(100)]);
        assert_eq!(pages("prefix=nothing").0.len(), 0);
        let complete = pages("state=complete&page_size=99").0;
        assert_eq!(complete, (0..KEYS).step_by(5).map(key).collect::<Vec<_>>());
        assert_eq!(pages("state=in_progress&page_size=1000").0.len(), KEYS - KEYS / 5);
    }
    let empty = http::get(&node, "/v1/scopes/lis/keys").unwrap().body();
    assert_eq!((&empty["records"], &empty["next_page_token"]), (&json!([]), &Value::Null));
    cluster.assert_sound();
}

const STATUS: [&str; 11] = [
    "cluster_id",
    "id",
    "role",
    "leader",
    "term",
    "members",
    "last_index",
    "committed_index",
    "applied_index",
    "snapshot_index",
    "clock_ms",
];

#[test]
fn every_node_shows_the_cluster_and_equal_states_have_equal_hashes() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let name = json!({ "scope": "s", "key": "k" });
    let first = http::post(&cluster.node(1).http, "/v1/acquire", &name).body();
    let index = first["at"]["index"].as_u64().unwrap();
    let hashes: BTreeSet<String> = cluster
        .nodes()
        .iter()
        .map(|node| {
            let status = eventually("the node has applied it", Duration::from_secs(10), || {
                let status = http::get(&node.http, "/v1/cluster").ok()?.body();
                (status["applied_index"].as_u64()? >= index).then_some(status)
            });
            assert_members(&status, &STATUS);
            let leads = node.id == leader;
            assert_eq!(status["id"], node.id);
            assert_eq!(status["role"], if leads { "leader" } else { "follower" });
            assert_eq!(status["clock_ms"], first["at"]["now_ms"]);
            let known = cluster.node(leader);
            let wanted = json!({ "id": leader, "http": known.http, "rpc": known.rpc });
            assert_eq!(status["leader"], wanted);
            for (member, known) in status["members"].as_array().unwrap().iter().zip(cluster.nodes())
            {
                assert_members(member, &["id", "http", "rpc", "role", "matched_index"]);
                assert_eq!(
                    (&member["id"], &member["http"]),
                    (&json!(known.id), &json!(known.http))
                );
                assert_eq!(member["role"], if known.id == leader { "leader" } else { "voter" });
                assert_eq!(member["matched_index"].is_u64(), leads, "{status}");
            }
            assert_eq!(http::get(&node.http, "/livez").unwrap().status, 200);
            assert_eq!(http::get(&node.http, "/readyz").unwrap().status, 200);
            let taken = http::post(&node.http, "/v1/cluster/snapshot", &Value::Null);
            assert_eq!(taken.status, 200, "{taken:?}");
            let taken = taken.body();
            assert_members(&taken, &["index", "term", "bytes", "hash"]);
            assert_eq!(
                (&taken["index"], &taken["term"]),
                (&first["at"]["index"], &first["at"]["term"])
            );
            assert!(taken["bytes"].as_u64().unwrap() > 0);
            let again = http::get(&node.http, "/v1/cluster").unwrap().body();
            assert_eq!(again["last_index"], taken["index"]);
            taken["hash"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(hashes.len(), 1, "{hashes:?}");
    let node = &cluster.node(1).http;
    for (path, body, field) in [
        ("/v1/cluster/members/9/promote", Value::Null, "id"),
        ("/v1/cluster/transfer", json!({ "to": 9 }), "to"),
        (
            "/v1/cluster/members",
            json!({ "id": 1, "http": "127.0.0.1:1", "rpc": "127.0.0.1:2" }),
            "id",
        ),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http::ask(node, "POST", path, body.as_bytes()).unwrap();
        assert_eq!(assert_problem(&answer, 400, "invalid_argument", &["field"])["field"], field);
    }
    cluster.assert_sound();
}

#[test]
fn a_node_alone_lives_is_not_ready_and_refuses_until_the_others_come() {
    let ports = Ports::draw();
    let directory = tempfile::tempdir().unwrap();
    let start = |id: u16| {
        let (id_text, http, rpc) = (id.to_string(), ports.http(id), ports.rpc(id));
        let data = directory.path().join(&id_text);
        let mut command = tenure(&["server", "--id", &id_text, "--http", &http, "--rpc", &rpc]);
        command.arg("--data-dir").arg(data).arg("--exit-with-parent").stdin(Stdio::piped());
        for id in 1..=3 {
            command.arg("--bootstrap").arg(format!("{id}={},{}", ports.http(id), ports.rpc(id)));
        }
        Process::start(command.stderr(Stdio::null()))
    };
    let _first = start(1);
    let node = ports.http(1);
    eventually("the node lives", Duration::from_secs(20), || {
        (http::get(&node, "/livez").ok()?.status == 200).then_some(())
    });
    let unready = http::get(&node, "/readyz").unwrap();
    assert_eq!(unready.status, 503);
    assert_eq!(unready.header("x-tenure-leader"), None);
    let status = http::get(&node, "/v1/cluster").unwrap().body();
    assert_members(&status, &STATUS);
    assert_eq!((&status["leader"], &status["snapshot_index"]), (&Value::Null, &Value::Null));

    let name = json!({ "scope": "s", "key": "k" });
    // All at once: each is held for as long as a request may take.
    let asks = [
        ("POST", "/v1/acquire", name.to_string()),
        ("POST", "/v1/release", with(&name, json!({ "token": 1 })).to_string()),
        ("POST", "/v1/wait", with(&name, json!({ "timeout_ms": 100 })).to_string()),
        ("POST", "/v1/batch", json!({ "commands": [{ "acquire": name }] }).to_string()),
        ("POST", "/v1/cluster/members/2/promote", String::new()),
        ("GET", "/v1/scopes/s/keys/k", String::new()),
    ];
    let mut asked: Vec<Connection> = asks
        .iter()
        .map(|(method, path, body)| {
            let mut connection = Connection::open(&node).unwrap();
            connection.send(&http::request(method, path, &[], body.as_bytes())).unwrap();
            connection
        })
        .collect();
    for (connection, ask) in asked.iter_mut().zip(&asks) {
        let answer = connection.answer().unwrap();
        assert_eq!(answer.status, 503, "{ask:?}");
        assert_problem(&answer, 503, "no_leader", &[]);
        assert_eq!(answer.header("retry-after"), Some("1"), "{ask:?}");
    }
    let stale = http::get(&node, "/v1/scopes/s/keys/k?consistency=stale").unwrap();
    assert_eq!(assert_problem(&stale, 404, "absent", &["at"])["at"]["index"], 0);
    assert_eq!(http::get(&node, "/v1/scopes/s/keys").unwrap().body()["records"], json!([]));
    assert_eq!(http::get(&node, "/metrics").unwrap().status, 200);
    let body = json!({ "scope": "s", "key": "k", "lease_ms": 1 }).to_string();
    assert_eq!(http::ask(&node, "POST", "/v1/acquire", body.as_bytes()).unwrap().status, 400);

    let _others = [start(2), start(3)];
    eventually("the node is ready", Duration::from_secs(30), || {
        (http::get(&node, "/readyz").ok()?.status == 200).then_some(())
    });
    assert_eq!(http::post(&node, "/v1/acquire", &name).body()["outcome"], "acquired");
}

#[test]
fn a_node_without_a_majority_lives_but_is_not_ready() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let rest: Vec<u64> =
        cluster.nodes().iter().map(|node| node.id).filter(|id| *id != leader).collect();
    // A leader that nobody follows, and then a follower whose leader is gone.
    for (down, left) in [([rest[0], rest[1]], leader), ([leader, rest[0]], rest[1])] {
        down.iter().for_each(|id| cluster.kill(*id));
        let node = cluster.node(left).http.clone();
        eventually("it is not ready", Duration::from_secs(20), || {
            (http::get(&node, "/readyz").unwrap().status == 503).then_some(())
        });
        assert_eq!(http::get(&node, "/livez").unwrap().status, 200);
        down.iter().for_each(|id| cluster.restart(*id));
        cluster.wait_ready();
    }
    cluster.assert_sound();
}

#[test]
fn a_cluster_of_one_node_is_ready_and_serves() {
    let mut cluster = Cluster::of(1);
    let node = cluster.node(1).http.clone();
    let name = json!({ "scope": "s", "key": "k" });
    assert_eq!(http::post(&node, "/v1/acquire", &name).status, 200);
    assert_eq!(http::get(&node, "/readyz").unwrap().status, 200);
    cluster.assert_sound();
}
