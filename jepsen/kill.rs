//! Processes are killed and paused under load. What was acknowledged stays, what was refused never
//! happened, and a node that slept through its own deposition does not lie.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tenure_jepsen::check::Seen;
use tenure_jepsen::cluster::Cluster;
use tenure_jepsen::http::{self, Connection};
use tenure_jepsen::load::Load;
use tenure_jepsen::problem::assert_problem;
use tenure_jepsen::{eventually, seed};

/// Workers of a run.
const WORKERS: u64 = 8;
/// Acknowledged completions between two faults.
const BETWEEN: u64 = 15;
/// How long a leader is paused: several times the longest election timeout.
const PAUSE: Duration = Duration::from_secs(3);

/// A run that saw less than this has tested nothing.
fn assert_tested(seen: Seen, completions: usize, terms: usize) {
    assert!(
        seen.completions >= completions
            && seen.terms >= terms
            && seen.unknown + seen.refused >= 1
            && seen.replays >= 2 * completions
            && seen.steals >= 1
            && seen.lost >= 1,
        "not tested: {seen:?}"
    );
}

#[test]
fn killed_leaders_and_a_killed_cluster_lose_nothing_and_lie_about_nothing() {
    let seed = seed("kill");
    let mut cluster = Cluster::start();
    let load = Load::start(&cluster, WORKERS, seed);
    for _ in 0..3 {
        load.goes_on(BETWEEN);
        let leader = cluster.leader();
        cluster.kill(leader);
        load.goes_on(BETWEEN);
        cluster.restart(leader);
        cluster.wait_ready();
    }
    load.goes_on(BETWEEN);
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.restart(id);
    }
    load.goes_on(BETWEEN);
    cluster.wait_ready();
    assert_tested(load.finish(&mut cluster), 100, 4);
}

#[test]
fn a_leader_that_is_paused_under_load_does_not_lie_when_it_wakes() {
    let seed = seed("pause");
    let mut cluster = Cluster::start();
    let load = Load::start(&cluster, WORKERS, seed);
    for _ in 0..2 {
        load.goes_on(BETWEEN);
        let leader = cluster.leader();
        cluster.pause(leader);
        // The scenario itself: long enough that the others elect one of themselves.
        std::thread::sleep(PAUSE);
        load.goes_on(3);
        cluster.resume(leader);
        cluster.wait_ready();
        load.goes_on(BETWEEN);
    }
    assert_tested(load.finish(&mut cluster), 70, 3);
}

/// Kills random nodes, the leader every other time, and lets each come back before the next one.
fn random_kills(kills: usize) -> (Cluster, Seen) {
    let seed = seed("random kills");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::start();
    let load = Load::start(&cluster, WORKERS, seed);
    for kill in 1..=kills {
        load.goes_on(rng.random_range(1..=BETWEEN));
        let victim = if kill.is_multiple_of(2) {
            cluster.leader()
        } else {
            *[1, 2, 3].choose(&mut rng).unwrap()
        };
        cluster.kill(victim);
        if rng.random() {
            load.goes_on(rng.random_range(1..=BETWEEN));
        }
        cluster.restart(victim);
        cluster.wait_ready();
        if kill.is_multiple_of(20) {
            eprintln!("{kill} kills");
        }
    }
    load.goes_on(BETWEEN);
    let seen = load.finish(&mut cluster);
    (cluster, seen)
}

#[test]
fn random_kills_lose_nothing_and_lie_about_nothing() {
    let given = std::env::var("TENURE_JEPSEN_KILLS").ok().and_then(|kills| kills.parse().ok());
    let kills = given.unwrap_or(10);
    let (_cluster, seen) = random_kills(kills);
    assert_tested(seen, 5 * kills, 1 + kills / 4);
}

/// What was asked of a leader while it was paused is answered by a node that leads no more.
#[test]
fn what_a_paused_leader_was_asked_is_not_answered_from_its_past() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let old = cluster.node(leader).http.clone();
    let name = json!({ "scope": "pause", "key": "k" });
    let with = |more: serde_json::Value| {
        let mut body = name.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let held = http::post(&old, "/v1/acquire", &with(json!({ "lease_ms": 500 }))).body();
    assert_eq!(held["outcome"], "acquired");
    let token = held["token"].as_u64().unwrap();
    let path = "/v1/scopes/pause/keys/k";
    let asks = [
        ("GET", path, json!(null)),
        ("GET", "/v1/scopes/pause/keys/k/payload", json!(null)),
        ("POST", "/v1/acquire", with(json!({}))),
        ("POST", "/v1/complete", with(json!({ "token": token, "payload": { "text": "old" } }))),
        ("POST", "/v1/extend", with(json!({ "token": token, "lease_ms": 60_000 }))),
        ("POST", "/v1/release", with(json!({ "token": token }))),
        ("POST", "/v1/wait", with(json!({ "timeout_ms": 1000 }))),
    ];
    // A waiter that was there before, and connections that the kernel holds for the sleeper.
    let mut waiter = Connection::open(&old).unwrap();
    let wait = with(json!({ "timeout_ms": 30_000 })).to_string();
    waiter.send(&http::request("POST", "/v1/wait", &[], wait.as_bytes())).unwrap();
    let mut asked: Vec<Connection> = asks.iter().map(|_| Connection::open(&old).unwrap()).collect();

    cluster.pause(leader);
    for (connection, (method, path, body)) in asked.iter_mut().zip(&asks) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        connection.send(&http::request(method, path, &[], body.as_bytes())).unwrap();
    }
    let other = cluster.node(cluster.one_up()).http.clone();
    let stolen = eventually("another node takes over", Duration::from_secs(20), || {
        let body = with(json!({ "attempt": "thief", "wait_ms": 2000 })).to_string();
        let answer = http::ask(&other, "POST", "/v1/acquire", body.as_bytes()).ok()?.json()?;
        assert_ne!(answer["outcome"], "replay", "it was not paused when it was asked");
        (answer["outcome"] == "acquired").then_some(answer)
    });
    assert_eq!(stolen["took_over"]["token"], token);
    let done = with(json!({ "token": stolen["token"], "payload": { "text": "new" } }));
    assert_eq!(http::post(&other, "/v1/complete", &done).body()["outcome"], "completed");
    cluster.resume(leader);

    let answers: Vec<_> = asked.iter_mut().map(|asked| asked.answer().unwrap()).collect();
    for (answer, ask) in answers.iter().zip(&asks) {
        let (status, text) = (answer.status, String::from_utf8_lossy(&answer.body));
        // Refused before anything was proposed, or unknown, is no lie.
        if [503, 504].contains(&status) {
            continue;
        }
        let truth = match ask.1 {
            "/v1/acquire" => text.contains("\"replay\""),
            "/v1/wait" => text.contains("\"complete\""),
            "/v1/complete" | "/v1/extend" | "/v1/release" => {
                status == 412 && text.contains("\"completed\"")
            }
            "/v1/scopes/pause/keys/k" => text.contains("\"complete\""),
            _ => text == "new",
        };
        assert!(truth, "{ask:?} was answered {status} {text}");
    }
    let waited = waiter.answer().unwrap();
    let truth = ["complete", "lease_expired"].map(serde_json::Value::from);
    let waited = waited.body();
    assert!(truth.contains(&waited["outcome"]) || waited["status"] == 503, "{waited}");
    let last = http::get(&other, path).unwrap().body();
    assert_eq!((&last["state"], &last["token"]), (&json!("complete"), &stolen["token"]));
    cluster.assert_sound();
}

/// A leader without a majority takes commands, cannot commit them, and must not call that refused.
#[test]
fn what_was_proposed_and_not_committed_in_time_is_unknown_and_may_commit_later() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let node = cluster.node(leader).http.clone();
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let name = |key: &str| json!({ "scope": "quorum", "key": key });
    let with = |key: &str, more: serde_json::Value| {
        let mut body = name(key);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let token = http::post(&node, "/v1/acquire", &name("held")).body()["token"].clone();
    let writes = [
        ("acquire", with("free", json!({ "holder": "unknown" }))),
        ("extend", with("held", json!({ "token": token, "lease_ms": 60_000 }))),
        ("complete", with("held", json!({ "token": token, "payload": { "text": "unknown" } }))),
        ("batch", json!({ "commands": [{ "acquire": name("batched") }] })),
    ];
    // No more than a leader has on their way at once: what still queues is refused, rightly.
    for id in &followers {
        cluster.pause(*id);
    }
    let asked = writes.iter().map(|(command, body)| {
        let mut connection = Connection::open(&node).unwrap();
        let (path, body) = (format!("/v1/{command}"), body.to_string());
        connection.send(&http::request("POST", &path, &[], body.as_bytes())).unwrap();
        connection
    });
    let mut asked: Vec<Connection> = asked.collect();
    let mut read = Connection::open(&node).unwrap();
    read.send(&http::request("GET", "/v1/scopes/quorum/keys/held", &[], b"")).unwrap();
    for (connection, (command, _)) in asked.iter_mut().zip(&writes) {
        let answer = connection.answer().unwrap();
        assert_eq!(answer.status, 504, "{command}: {}", answer.body());
        assert_problem(&answer, 504, "outcome_unknown", &[]);
    }
    assert_problem(&read.answer().unwrap(), 503, "no_leader", &[]);
    for id in followers {
        cluster.resume(id);
    }
    cluster.wait_ready();
    // Whatever became of them, sending them again settles it.
    let settled = |command: &str, body: &serde_json::Value| {
        eventually("a command sent again is settled", Duration::from_secs(20), || {
            let answer = http::post(&node, &format!("/v1/{command}"), body).body();
            answer["outcome"].as_str().filter(|word| *word != "unknown").map(str::to_owned)
        })
    };
    let completed = settled("complete", &writes[2].1);
    assert!(["completed", "already_complete"].contains(&completed.as_str()), "{completed}");
    let held = http::get(&node, "/v1/scopes/quorum/keys/free").unwrap().body();
    assert!(held["holder"] == "unknown" || held["code"] == "absent", "{held}");
    cluster.assert_sound();
}
