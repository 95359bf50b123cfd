//! The binary as people and scripts use it: exit codes, output, signals, data directories and the
//! membership of a cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_jepsen::cluster::{Cluster, Ports, dev, nodes_of, ready_line};
use tenure_jepsen::eventually;
use tenure_jepsen::http::{self, Connection, request};
use tenure_jepsen::problem::assert_members;
use tenure_jepsen::process::{self, Process, tenure};
use tokio::time::Instant;

/// For a node that cannot start to say so.
const STARTS: Duration = Duration::from_secs(30);

fn endpoints(cluster: &Cluster) -> String {
    let all: Vec<&str> = cluster.nodes().iter().map(|node| node.rpc.as_str()).collect();
    all.join(",")
}

fn addresses(cluster: &Cluster) -> String {
    let all: Vec<&str> = cluster.nodes().iter().map(|node| node.http.as_str()).collect();
    all.join(",")
}

/// What a command printed with `-o json`: one line on standard output, and its exit code.
fn json_of(output: &Output) -> (i32, Value) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "{text:?} {stderr}");
    (output.status.code().unwrap(), serde_json::from_str(&text).unwrap())
}

fn run(cluster: &Cluster, arguments: &[&str]) -> (i32, Value) {
    let mut command = tenure(arguments);
    command.args(["-o", "json"]).env("TENURE_ENDPOINTS", endpoints(cluster));
    json_of(&command.output().unwrap())
}

#[test]
fn record_commands_print_the_body_and_exit_by_the_outcome() {
    let mut cluster = Cluster::start();
    let run = |arguments: &[&str]| run(&cluster, arguments);
    let (code, first) = run(&[
        "acquire",
        "mail",
        "order-1",
        "--attempt",
        "a",
        "--holder",
        "h",
        "--lease",
        "60s",
        "--ttl",
        "1h",
        "--fingerprint",
        "0123456789abcdef",
    ]);
    assert_eq!((code, &first["outcome"]), (0, &json!("acquired")));
    let left = first["lease_until_ms"].as_u64().unwrap() - first["at"]["now_ms"].as_u64().unwrap();
    assert_eq!(left, 60_000);
    let token = first["token"].to_string();
    let held = ["--token", &token];
    let other = first["token"].as_u64().unwrap() + 1;
    let other = other.to_string();
    let big = "x".repeat(100_000);
    let cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["acquire", "mail", "order-1"], 4, "in_progress"),
        (vec!["acquire", "mail", "order-1", "--wait", "50ms"], 4, "in_progress"),
        (
            vec![
                "acquire",
                "mail",
                "order-1",
                "--attempt",
                "a",
                "--fingerprint",
                "ffffffffffffffff",
            ],
            6,
            "fingerprint_mismatch",
        ),
        (vec!["acquire", "mail", "new", "--not-after-ms", "1"], 7, "too_late"),
        (vec!["get", "mail", "order-1"], 0, "in_progress"),
        (vec!["get", "mail", "nothing"], 3, "absent"),
        (vec!["wait", "mail", "order-1", "--timeout", "20ms"], 10, "timeout"),
        (vec!["wait", "mail", "nothing"], 3, "absent"),
        (vec!["extend", "mail", "order-1", "--token", &token, "--lease", "2m"], 0, "extended"),
        (vec!["extend", "mail", "nothing", "--token", &token], 5, "lease_lost"),
        (vec!["complete", "mail", "order-1", "--token", &other, "--text", "late"], 5, "lease_lost"),
        (vec!["release", "mail", "order-1", "--token", &other], 5, "lease_lost"),
        (
            vec![
                "complete",
                "mail",
                "order-1",
                held[0],
                held[1],
                "--text",
                &big,
                "--type",
                "text/plain",
                "--attribute",
                "a=1",
            ],
            0,
            "completed",
        ),
        (vec!["complete", "mail", "order-1", held[0], held[1]], 0, "already_complete"),
        (vec!["acquire", "mail", "order-1"], 0, "replay"),
        (vec!["wait", "mail", "order-1"], 0, "complete"),
        (vec!["get", "mail", "order-1", "--stale"], 0, "complete"),
        (vec!["purge", "--limit", "5"], 0, "purged"),
        (vec!["acquire", "mail", "order-1", "--lease", "1ms"], 2, "invalid_argument"),
        (vec!["acquire", "ma:il", "order-1"], 2, "invalid_argument"),
    ];
    for (arguments, expected, word) in cases {
        let (code, body) = run(&arguments);
        let words = [&body["outcome"], &body["code"], &body["state"]];
        let shown: Vec<&str> = arguments.iter().map(|word| &word[..word.len().min(40)]).collect();
        assert_eq!(code, expected, "{shown:?}");
        assert!(words.contains(&&json!(word)), "{shown:?}: {words:?}");
    }
    let (code, short) = run(&["acquire", "mail", "short", "--lease", "2ms"]);
    assert_eq!(code, 0);
    assert_eq!(run(&["wait", "mail", "short"]).0, 5);
    assert_eq!(run(&["release", "mail", "short", "--token", &short["token"].to_string()]).0, 0);
    let (code, page) = run(&["list", "mail", "--prefix", "order", "--page-size", "7"]);
    assert_eq!((code, &page["records"][0]["key"]), (0, &json!("order-1")));

    // For people: the token is easy to find, and a problem is not on standard output.
    let endpoints = endpoints(&cluster);
    let table = tenure(&["acquire", "mail", "table", "--endpoints", &endpoints]).output().unwrap();
    assert_eq!(table.status.code(), Some(0));
    assert!(String::from_utf8(table.stdout).unwrap().lines().any(|line| line.contains("token")));
    let table = tenure(&["acquire", "mail", "table", "--endpoints", &endpoints]).output().unwrap();
    assert_eq!((table.status.code(), table.stdout.len()), (Some(4), 0));
    cluster.assert_sound();
}

#[test]
fn a_payload_that_is_too_large_exits_with_7_and_no_quorum_with_9_or_8() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let rpc = cluster.node(leader).rpc.clone();
    let arguments = [
        "complete",
        "s",
        "k",
        "--token",
        "1",
        "--body-file",
        "-",
        "--endpoints",
        &rpc,
        "-o",
        "json",
    ];
    let mut child = Process::start(tenure(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut stdin = child.0.stdin.take().unwrap();
    let _ = stdin.write_all(&vec![b'x'; 1024 * 1024 + 1]);
    drop(stdin);
    assert_eq!(child.ends_within(STARTS).code(), Some(7));

    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    for id in &followers {
        cluster.pause(*id);
    }
    // The leader still takes it, and cannot commit it: it may commit later.
    let arguments = ["acquire", "s", "k", "--endpoints", &rpc, "--deadline", "700ms", "-o", "json"];
    let (code, body) = json_of(&tenure(&arguments).output().unwrap());
    assert_eq!((code, &body["code"]), (9, &json!("outcome_unknown")));
    assert_eq!(body["outcome"], "unknown");
    let arguments = ["get", "s", "k", "--endpoints", &rpc, "--deadline", "700ms", "-o", "json"];
    let (code, body) = json_of(&tenure(&arguments).output().unwrap());
    assert_eq!((code, &body["code"]), (8, &json!("no_leader")));
    for id in followers {
        cluster.resume(id);
    }
    cluster.wait_ready();
    let status = ["cluster", "status", "-o", "json", "--http"];
    let nowhere = tenure(&[&status[..], &[&Ports::draw().http(1)]].concat()).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(8));
    cluster.assert_sound();
}

#[test]
fn replay_answers_line_by_line() {
    let mut child =
        Process::start(tenure(&["replay"]).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut input = child.0.stdin.take().unwrap();
    let mut output = BufReader::new(child.0.stdout.take().unwrap());
    // Each line is answered before the next one is sent.
    let mut ask = |line: &str| -> Value {
        writeln!(input, "{line}").unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    let name = r#""scope":"s","key":"k""#;
    let first = ask(&format!(r#"{{"at":1000,"acquire":{{{name},"lease_ms":500}}}}"#));
    assert_eq!((&first["status"], &first["at"]["index"]), (&json!(200), &json!(1)));
    let bad = ask("nonsense");
    assert_eq!((&bad["status"], &bad["at"]), (&json!(400), &Value::Null));
    let thief = ask(&format!(r#"{{"at":1500,"acquire":{{{name},"attempt":"b"}}}}"#));
    assert_eq!((&thief["took_over"]["token"], &thief["at"]["index"]), (&json!(1), &json!(3)));
    assert_eq!(ask(r#"{"hash":true}"#)["hash"], {
        ask(r#"{"snapshot":true}"#);
        ask(r#"{"hash":true}"#)["hash"].clone()
    });
    drop(input);
    assert_eq!(child.ends_within(STARTS).code(), Some(0));
}

#[test]
fn dev_says_what_it_runs_reports_a_dead_child_and_starts_again_as_it_was() {
    let ports = Ports::draw();
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("kept");
    let (base, data) = (ports.base.to_string(), data_dir.to_str().unwrap());
    let errors = directory.path().join("errors");
    let errors_file = std::fs::File::create(&errors).unwrap();
    let mut first =
        Process::start(dev(&["--base-port", &base, "--data-dir", data]).stderr(errors_file));
    let ready = ready_line(&mut first);
    assert_members(&ready, &["ready", "leader", "nodes"]);
    assert_eq!(ready["ready"], true);
    let nodes = nodes_of(&ready);
    assert!(nodes.iter().any(|node| ready["leader"] == node.id), "{ready}");
    for (node, id) in ready["nodes"].as_array().unwrap().iter().zip(1..) {
        assert_members(node, &["id", "http", "rpc", "pid", "data_dir", "command"]);
        assert_eq!(node["id"], id);
        assert_eq!(node["http"], ports.http(id));
        assert_eq!(node["rpc"], ports.rpc(id));
        assert!(Path::new(node["data_dir"].as_str().unwrap()).starts_with(&data_dir));
    }
    let name = json!({ "scope": "kept", "key": "k" });
    let token = http::post(&nodes[0].http, "/v1/acquire", &name).body()["token"].clone();

    assert_eq!(process::parent(nodes[2].pid), Some(first.0.id()));
    process::kill(nodes[2].pid);
    let command = nodes[2].command.join(" ");
    eventually("the dead child is reported with its command", STARTS, || {
        let said = std::fs::read_to_string(&errors).unwrap();
        (said.contains("node 3") && said.contains(&command)).then_some(())
    });
    let (program, arguments) = nodes[2].command.split_first().unwrap();
    let mut again = Process::start(Command::new(program).args(arguments).stderr(Stdio::null()));
    eventually("the restarted node is ready", STARTS, || {
        (http::get(&nodes[2].http, "/readyz").ok()?.status == 200).then_some(())
    });
    again.signal(Signal::TERM);
    assert_eq!(again.ends_within(STARTS).code(), Some(0));

    first.signal(Signal::INT);
    assert_eq!(first.ends_within(STARTS).code(), Some(0));
    for node in &nodes {
        assert_eq!(process::parent(node.pid), None, "node {} outlives dev", node.id);
    }

    let mut second = Process::start(dev(&["--data-dir", data]).stderr(Stdio::null()));
    let as_it_was = nodes_of(&ready_line(&mut second));
    for (now, before) in as_it_was.iter().zip(&nodes) {
        assert_eq!((&now.http, &now.command), (&before.http, &before.command));
    }
    let kept = http::get(&nodes[0].http, "/v1/scopes/kept/keys/k").unwrap().body();
    assert_eq!(kept["token"], token);
    let other = json!({ "scope": "kept", "key": "other" });
    let next = http::post(&nodes[0].http, "/v1/acquire", &other).body()["token"].clone();
    assert!(next.as_u64() > token.as_u64());

    let refused = process::output(&["dev", "--nodes", "5", "--data-dir", data]);
    assert_eq!(refused.status.code(), Some(1));
    second.signal(Signal::TERM);
    assert_eq!(second.ends_within(STARTS).code(), Some(0));
    for node in &as_it_was {
        assert_eq!(process::parent(node.pid), None, "node {} outlives dev", node.id);
    }
}

/// Starts a node that must not start: it exits with 1, says why, and prints nothing else.
fn refuses(command: &mut Command, why: &str) {
    let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert_eq!(process.ends_within(STARTS).code(), Some(1), "{why}");
    let mut said = String::new();
    let mut lines = BufReader::new(process.0.stderr.take().unwrap());
    while lines.read_line(&mut said).unwrap() > 0 {}
    assert!(said.contains(why), "{why}: {said}");
    assert!(!said.contains("panicked") && !said.contains("has a defect"), "{said}");
}

#[test]
fn a_node_on_foreign_used_or_lost_data_does_not_start() {
    let mut cluster = Cluster::start();
    let victim = cluster.follower();
    let node = cluster.node(victim).clone();
    let other = cluster.node(cluster.leader()).clone();
    let ports = Ports::draw();
    let server = |id: u64, data_dir: &Path| {
        let (id, http, rpc) = (id.to_string(), ports.http(1), ports.rpc(1));
        let mut command = tenure(&["server", "--id", &id, "--http", &http, "--rpc", &rpc]);
        command.arg("--data-dir").arg(data_dir);
        command
    };
    refuses(&mut server(victim, &node.data_dir), "in use by another process");
    cluster.kill(victim);
    let foreign = ["--cluster-id", "another"];
    refuses(server(victim, &node.data_dir).args(foreign), "belongs to cluster");
    refuses(&mut server(other.id, &node.data_dir), &format!("belongs to node {victim}"));
    let empty = tempfile::tempdir().unwrap();
    refuses(&mut server(9, empty.path()), "no cluster was named");

    let mut taken = tenure(&["server", "--id", "9", "--http", &other.http, "--rpc", &ports.rpc(2)]);
    refuses(taken.args(foreign).arg("--data-dir").arg(empty.path()), "cannot listen");
    for (http, rpc) in
        [("0.0.0.0:1", "127.0.0.1:2"), ("127.0.0.1:1", "[::]:2"), ("192.0.2.1:1", "127.0.0.1:2")]
    {
        let mut open = tenure(&["server", "--id", "9", "--http", http, "--rpc", rpc]);
        refuses(open.args(foreign).arg("--data-dir").arg(empty.path()), "--insecure");
    }

    let file = empty.path().join("tenure.toml");
    for (text, why) in [
        ("heartbeat_ms = 'often'", "tenure.toml"),
        ("hartbeat_ms = 100", "hartbeat_ms"),
        ("heartbeat_ms = 900", "election_min_ms"),
        ("id = 1", "--http"),
        ("= =", "tenure.toml"),
    ] {
        let least = "http = '127.0.0.1:1'\nrpc = '127.0.0.1:2'\ndata_dir = '/nonexistent'\nid = 1";
        let least = if text == "id = 1" { "" } else { least };
        std::fs::write(&file, format!("{least}\n{text}\n")).unwrap();
        refuses(tenure(&["server", "--config"]).arg(&file), why);
    }
    refuses(&mut tenure(&["server", "--config", "/nonexistent.toml"]), "/nonexistent.toml");

    // It was a voter here, and its disk is gone: it could vote a second time.
    std::fs::remove_dir_all(&node.data_dir).unwrap();
    let (program, arguments) = node.command.split_first().unwrap();
    let lost = format!("node {victim} was here before and lost its data");
    refuses(Command::new(program).args(arguments).stdin(Stdio::null()), &lost);
    let join = ["--join", &other.http];
    let mut rejoins = tenure(&["server", "--id", &victim.to_string()]);
    rejoins.args(["--http", &node.http, "--rpc", &node.rpc, "--data-dir"]).arg(&node.data_dir);
    refuses(rejoins.args(join), &lost);
    cluster.assert_sound();
}

#[test]
fn nodes_join_are_promoted_lead_and_leave_for_good() {
    let mut cluster = Cluster::start();
    let all = addresses(&cluster);
    let admin = |arguments: &[&str]| {
        let mut command = tenure(&["cluster"]);
        command.args(arguments).args(["-o", "json", "--http", &all]);
        let output = command.output().unwrap();
        json_of(&output)
    };
    let directory = tempfile::tempdir().unwrap();
    let (http, rpc) = (cluster.ports.http(4), cluster.ports.rpc(4));
    let sponsor = format!("http://{}", cluster.node(cluster.follower()).http);
    let start = |id: &str, http: &str, rpc: &str, entrance: [&str; 2]| {
        let mut command = tenure(&["server", "--id", id, "--http", http, "--rpc", rpc]);
        command.arg("--data-dir").arg(directory.path().join(id)).args(entrance);
        command.arg("--exit-with-parent").stdin(Stdio::piped());
        Process::start(command.stderr(Stdio::null()))
    };
    let role = |id: u64| {
        let (code, status) = admin(&["status"]);
        assert_eq!(code, 0);
        let members = status["members"].as_array().unwrap().clone();
        members.iter().find(|member| member["id"] == id).map(|member| member["role"].clone())
    };
    let becomes = |id: u64, wanted: Option<&str>| {
        let what = format!("node {id} is {wanted:?}");
        eventually(&what, STARTS, || (role(id) == wanted.map(Value::from)).then_some(()));
    };
    let name = json!({ "scope": "members", "key": "k" });
    assert_eq!(http::post(&cluster.node(1).http, "/v1/acquire", &name).status, 200);

    let mut fourth = start("4", &http, &rpc, ["--join", &sponsor]);
    becomes(4, Some("learner"));
    eventually("the learner has the record", STARTS, || {
        let read = http::get(&http, "/v1/scopes/members/keys/k?consistency=stale").ok()?;
        (read.status == 200).then_some(())
    });
    let (code, status) = admin(&["promote", "4"]);
    assert_eq!(code, 0);
    assert_eq!(status["members"].as_array().unwrap().len(), 4);
    becomes(4, Some("voter"));

    // It starts again by the same command.
    fourth.signal(Signal::KILL);
    fourth.ends_within(STARTS);
    let mut fourth = start("4", &http, &rpc, ["--join", &sponsor]);
    eventually("the joined node is ready again", STARTS, || {
        (http::get(&http, "/readyz").ok()?.status == 200).then_some(())
    });
    assert_eq!(admin(&["transfer", "4"]).0, 0);
    becomes(4, Some("leader"));
    let read = http::get(&cluster.node(2).http, "/v1/scopes/members/keys/k").unwrap();
    assert_eq!(read.header("x-tenure-leader"), Some(http.as_str()));
    let (code, problem) = admin(&["transfer", "9"]);
    assert_eq!((code, &problem["field"]), (2, &json!("to")));
    assert_eq!(admin(&["transfer", "1"]).0, 0);
    becomes(1, Some("leader"));

    let (code, taken) = admin(&["snapshot"]);
    assert_eq!(code, 0);
    assert_members(&taken, &["index", "term", "bytes", "hash"]);

    assert_eq!(admin(&["remove", "4"]).0, 0);
    becomes(4, None);
    fourth.signal(Signal::KILL);
    fourth.ends_within(STARTS);
    let (code, problem) = admin(&["add", "4", &http, &rpc]);
    assert_eq!((code, &problem["field"]), (2, &json!("id")), "{problem}");

    // One can be added before it runs, and it is the same node when it joins.
    let (http, rpc) = (cluster.ports.http(5), cluster.ports.rpc(5));
    assert_eq!(admin(&["add", "5", &http, &rpc]).0, 0);
    becomes(5, Some("learner"));
    let _fifth = start("5", &http, &rpc, ["--join", &sponsor]);
    eventually("the added node has the record", STARTS, || {
        let read = http::get(&http, "/v1/scopes/members/keys/k?consistency=stale").ok()?;
        (read.status == 200).then_some(())
    });
    assert_eq!(admin(&["remove", "5"]).0, 0);
    becomes(5, None);
    cluster.assert_sound();
}

#[test]
fn a_signal_drains_a_node_and_a_second_one_ends_it_at_once() {
    let mut cluster = Cluster::start();
    // Nodes that were started by their command are ours to watch.
    for id in 1..=3 {
        cluster.kill(id);
        cluster.restart(id);
        cluster.wait_ready();
    }
    let name = json!({ "scope": "stop", "key": "k" });
    let token = http::post(&cluster.node(1).http, "/v1/acquire", &name).body()["token"].clone();

    // The leader, with a waiter at it: it hands over, and the waiter is told.
    let leader = cluster.leader();
    let mut waiter = Connection::open(&cluster.node(leader).http).unwrap();
    let wait = json!({ "scope": "stop", "key": "k", "wait_ms": 30_000 }).to_string();
    waiter.send(&request("POST", "/v1/acquire", &[], wait.as_bytes())).unwrap();
    let started = Instant::now();
    let mut process = cluster.take(leader);
    process.signal(Signal::TERM);
    assert_eq!(process.ends_within(STARTS).code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let told = waiter.answer().unwrap();
    assert_eq!((told.status, &told.body()["code"]), (503, &json!("shutting_down")));
    cluster.restart(leader);
    cluster.wait_ready();

    // One that still sends its body is waited for, but not longer than ten seconds; the second
    // signal does not wait.
    let next = cluster.leader();
    let node = cluster.node(next).clone();
    let mut stuck = Connection::open(&node.http).unwrap();
    stuck.send(b"POST /v1/acquire HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 99\r\n\r\n{").unwrap();
    // The node has read that head once it answers a later connection.
    assert_eq!(http::get(&node.http, "/livez").unwrap().status, 200);
    let mut process = cluster.take(next);
    process.signal(Signal::INT);
    eventually("the node stops listening", STARTS, || http::get(&node.http, "/livez").err());
    assert!(process.0.try_wait().unwrap().is_none(), "it did not wait for the request");
    let started = Instant::now();
    process.signal(Signal::INT);
    assert_eq!(process.ends_within(STARTS).code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    cluster.restart(next);
    cluster.wait_ready();
    let held = http::get(&cluster.node(next).http, "/v1/scopes/stop/keys/k").unwrap().body();
    assert_eq!(held["token"], token);
    cluster.assert_sound();
}
