//! Whatever anybody sends, a node answers or hangs up: it does not fall over, hang or grow.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::frame::{Hello, MAGIC, PROTOCOL, Role, Welcome};
use tenure_client::wire;
use tenure_jepsen::cluster::{Cluster, Node};
use tenure_jepsen::http::{self, Answer, Connection, request};
use tenure_jepsen::problem::assert_problem;
use tenure_jepsen::{eventually, process};
use tokio::time::Instant;

/// Memory that a node may take on while it is sent rubbish.
const GROWTH: u64 = 192 * 1024 * 1024;
/// A node gives a head, a body and a frame thirty seconds to arrive.
const SLOW: Duration = Duration::from_secs(40);
const MIB: usize = 1024 * 1024;

const COMMANDS: [&str; 7] = ["acquire", "complete", "release", "extend", "wait", "purge", "batch"];

fn post(node: &Node, path: &str, body: &[u8]) -> Answer {
    http::ask(&node.http, "POST", path, body).unwrap()
}

fn invalid(answer: &Answer) -> Value {
    assert_problem(answer, 400, "invalid_argument", &["field"])["field"].clone()
}

fn resident(node: &Node) -> u64 {
    process::resident_bytes(node.pid).unwrap()
}

/// The node answers as if nothing had happened, and has not grown.
fn assert_unharmed(cluster: &mut Cluster, before: u64) {
    let node = cluster.nodes()[0].clone();
    let name = json!({ "scope": "after", "key": format!("{:x}", rand::random::<u64>()) });
    assert_eq!(http::post(&node.http, "/v1/acquire", &name).body()["outcome"], "acquired");
    let after = resident(&node);
    assert!(after < before + GROWTH, "from {before} to {after} bytes");
    cluster.assert_sound();
}

fn last_index(node: &Node) -> u64 {
    http::get(&node.http, "/v1/cluster").unwrap().body()["last_index"].as_u64().unwrap()
}

/// A body of a route with everything that it needs, and `more`.
fn body_of(route: &str, more: &str) -> String {
    let needs = match route {
        "acquire" => r#""scope":"s","key":"k""#,
        "complete" | "release" => r#""scope":"s","key":"k","token":1"#,
        "extend" => r#""scope":"s","key":"k","token":1,"lease_ms":1000"#,
        "wait" => r#""scope":"s","key":"k","timeout_ms":0"#,
        "purge" => r#""limit":1"#,
        _ => r#""commands":[{"release":{"scope":"s","key":"k","token":1}}]"#,
    };
    format!("{{{needs}{more}}}")
}

#[test]
fn malformed_bodies_are_refused_by_the_field_and_nothing_is_proposed() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let (memory, index) = (resident(&node), last_index(&node));
    let deep = |open: &str, close: &str| open.repeat(200_000) + &close.repeat(200_000);
    let (arrays, objects) = (deep("[", "]"), deep("{\"a\":", "}"));
    let unclosed = "[".repeat(1_000_000);
    for route in COMMANDS
        .iter()
        .map(|command| format!("/v1/{command}"))
        .chain(["/v1/cluster/members".to_owned(), "/v1/cluster/transfer".to_owned()])
    {
        let no_objects: [&[u8]; 14] = [
            b"",
            b" \r\n\t",
            b"nonsense",
            b"null",
            b"true",
            b"7",
            b"\"text\"",
            b"[]",
            b"{",
            b"{}}",
            b"{} {}",
            b"{\"a\":}",
            b"{'a':1}",
            b"\xff\xfe{}",
        ];
        for body in no_objects {
            assert_eq!(invalid(&post(&node, &route, body)), Value::Null, "{route} {body:?}");
        }
        for deep in [&arrays, &objects[..], &unclosed] {
            let field = invalid(&post(&node, &route, deep.as_bytes()));
            assert!(field.is_null() || !deep.starts_with('['), "{route}: {field}");
        }
        assert!(!invalid(&post(&node, &route, b"{\"scope\":\"\xff\"}")).is_string());
    }
    for route in COMMANDS {
        let path = format!("/v1/{route}");
        let refused = |more: &str| invalid(&post(&node, &path, body_of(route, more).as_bytes()));
        assert_eq!(refused(r#","unknown":1"#), "unknown", "{route}");
        assert_eq!(refused(r#","Scope":"s""#), "Scope", "{route}");
        assert_eq!(refused(&format!(r#","unknown":{arrays}"#)), "unknown", "{route}");
        let first = body_of(route, "");
        let (name, rest) = first[1..].split_once(':').unwrap();
        let twice = format!("{{{name}:null,{name}:{rest}");
        assert_eq!(invalid(&post(&node, &path, twice.as_bytes())), name.trim_matches('"'));
    }
    assert_eq!(last_index(&node), index, "something was proposed");
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn values_out_of_bounds_are_refused_by_the_field_and_nothing_is_proposed() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let (memory, index) = (resident(&node), last_index(&node));
    let long = "x".repeat(300);
    let attributes: String = (0..65).map(|n| format!(r#""a{n}":"","#)).collect();
    let attributes = format!(r#"{{"attributes":{{{}}}}}"#, attributes.trim_end_matches(','));
    let heavy = format!(r#"{{"attributes":{{"a":"{}"}}}}"#, "x".repeat(17 * 1024));
    let whole = ["0", "-1", "1.5", "1e30", "18446744073709551616", "\"1\"", "true", "[1]"];
    let mut cases: Vec<(&str, String, &str)> = Vec::new();
    let mut add = |route: &'static str, field: &'static str, value: &str| {
        let (top, _) = field.split_once('.').unwrap_or((field, ""));
        let needs = body_of(route, "");
        let mut body: Value = serde_json::from_str(&needs).unwrap();
        body.as_object_mut().unwrap().remove(top);
        let rest = body.to_string();
        let comma = if rest == "{}" { "" } else { "," };
        cases.push((
            route,
            format!("{}{comma}\"{top}\":{value}}}", &rest[..rest.len() - 1]),
            field,
        ));
    };
    for value in [r#""""#, r#"" ""#, r#""\t""#, r#""a\u007f""#, "[]", "1", "null", r#""\ud800""#] {
        for route in ["acquire", "complete", "release", "extend", "wait"] {
            add(route, "scope", value);
            add(route, "key", value);
        }
    }
    add("acquire", "scope", r#""a:b""#);
    add("acquire", "scope", &format!(r#""{}""#, &long[..129]));
    add("acquire", "key", &format!(r#""{long}""#));
    for value in whole {
        add("acquire", "lease_ms", value);
        add("acquire", "ttl_ms", value);
        add("complete", "token", value);
        add("complete", "ttl_ms", value);
        add("extend", "lease_ms", value);
        add("purge", "limit", value);
    }
    add("acquire", "lease_ms", "1");
    add("acquire", "lease_ms", "86400001");
    add("acquire", "ttl_ms", "315360000001");
    add("acquire", "wait_ms", "60001");
    add("acquire", "wait_ms", "-0.5");
    add("acquire", "not_after_ms", "\"soon\"");
    add("acquire", "attempt", "\"\"");
    add("acquire", "attempt", &format!("\"{long}\""));
    add("acquire", "holder", &format!("\"{long}\""));
    for value in
        ["\"0123456789abcde\"", "\"0123456789abcdeg\"", &format!("\"{}\"", "a".repeat(129)), "7"]
    {
        add("acquire", "fingerprint", value);
    }
    add("complete", "token", "9007199254740992");
    add("wait", "timeout_ms", "60001");
    add("purge", "limit", "10001");
    add("complete", "payload", "\"text\"");
    add("complete", "payload.body", r#"{"body":"?"}"#);
    add("complete", "payload.body", r#"{"body":"YQ"}"#);
    add("complete", "payload.text", r#"{"body":"YQ==","text":"a"}"#);
    add("complete", "payload.text", r#"{"text":1}"#);
    add("complete", "payload.type", r#"{"type":"a\nb"}"#);
    add("complete", "payload.type", r#"{"type":""}"#);
    add("complete", "payload.type", &format!(r#"{{"type":"{}"}}"#, "x".repeat(256)));
    add("complete", "payload.unknown", r#"{"unknown":1}"#);
    add("complete", "payload.attributes", r#"{"attributes":[]}"#);
    add("complete", "payload.attributes.a", r#"{"attributes":{"a":1}}"#);
    add("complete", "payload.attributes.a", r#"{"attributes":{"a":"1","a":"2"}}"#);
    add("complete", "payload.attributes", &attributes);
    add("complete", "payload.attributes", &heavy);
    add("batch", "commands", "[]");
    add("batch", "commands", "{}");
    for (route, body, field) in &cases {
        let answer = post(&node, &format!("/v1/{route}"), body.as_bytes());
        let found = invalid(&answer);
        let text: String = body.chars().take(200).collect();
        assert!(found == **field, "{route} {text}: field {found}, not {field}");
    }
    assert_eq!(last_index(&node), index, "something was proposed");
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn what_is_too_large_is_refused_and_the_lease_stays() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    let acquire = |key: &str| {
        let name = json!({ "scope": "large", "key": key });
        http::post(&node.http, "/v1/acquire", &name).body()["token"].clone()
    };
    let complete = |key: &str, token: &Value, size: usize| {
        let payload = json!({ "text": "x".repeat(size) });
        let body = json!({ "scope": "large", "key": key, "token": token, "payload": payload });
        http::post(&node.http, "/v1/complete", &body)
    };
    let token = acquire("k");
    let refused = complete("k", &token, MIB + 1);
    let body = assert_problem(&refused, 413, "payload_too_large", &["limit", "size"]);
    assert_eq!((&body["limit"], &body["size"]), (&json!(MIB), &json!(MIB + 1)));
    let held = http::get(&node.http, "/v1/scopes/large/keys/k").unwrap().body();
    assert_eq!((&held["state"], &held["token"]), (&json!("in_progress"), &token));
    assert_eq!(complete("k", &token, MIB).body()["outcome"], "completed");
    let payload = http::get(&node.http, "/v1/scopes/large/keys/k/payload").unwrap();
    assert_eq!((payload.status, payload.body.len()), (200, MIB));

    // A whole body over its limit, with its length told, told by chunks, or only promised.
    let limit = 8 * MIB;
    for size in [limit + 1, 5 * limit] {
        let body = vec![b' '; size];
        let mut connection = Connection::open(&node.http).unwrap();
        // The node may hang up before it has read what it will not take.
        let _ = connection.send(&request("POST", "/v1/acquire", &[], &body));
        let answer = connection.answer().unwrap();
        let body = assert_problem(&answer, 413, "payload_too_large", &["limit", "size"]);
        assert_eq!(body["limit"], limit);
    }
    let mut connection = Connection::open(&node.http).unwrap();
    connection
        .send(b"POST /v1/acquire HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; MIB], b"\r\n"].concat();
    for _ in 0..9 {
        let _ = connection.send(&chunk);
    }
    assert_eq!(connection.answer().unwrap().status, 413);
    let at_the_limit = format!("{}{}", body_of("acquire", ""), " ".repeat(limit));
    let fits = post(&node, "/v1/acquire", &at_the_limit.as_bytes()[..limit]);
    assert_eq!(fits.body()["outcome"], "acquired");

    let keep = |key: &str| (key.to_owned(), acquire(key));
    let parts: Vec<(String, Value)> = ["a", "b"].map(keep).into();
    let batch = |size: usize| {
        let commands = parts.iter().map(|(key, token)| {
            let payload = json!({ "text": "x".repeat(size) });
            json!({ "complete": { "scope": "large", "key": key, "token": token, "payload": payload } })
        });
        let body = json!({ "commands": commands.collect::<Vec<_>>() });
        http::post(&node.http, "/v1/batch", &body)
    };
    assert_problem(&batch(MIB / 2 + 1), 413, "payload_too_large", &["limit", "size"]);
    assert_eq!(batch(MIB / 2).body()["results"][1]["body"]["outcome"], "completed");
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn a_batch_takes_128_commands_and_refuses_in_place() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    let batch =
        |commands: &[Value]| http::post(&node.http, "/v1/batch", &json!({ "commands": commands }));
    let acquires = |count: usize| -> Vec<Value> {
        let one = |n| json!({ "acquire": { "scope": "batch", "key": format!("{n}") } });
        (0..count).map(one).collect()
    };
    assert_eq!(invalid(&batch(&acquires(129))), "commands");
    let taken = batch(&acquires(128)).body();
    let results = taken["results"].as_array().unwrap();
    assert_eq!(results.len(), 128);
    for (slot, result) in results.iter().enumerate() {
        assert_eq!((&result["status"], &result["body"]["at"]["slot"]), (&json!(200), &json!(slot)));
    }
    let name = json!({ "scope": "batch", "key": "x" });
    let mixed = batch(&[
        json!({ "acquire": { "scope": "batch", "key": "y", "wait_ms": 5 } }),
        json!({ "acquire": name }),
        json!({ "purge": {} }),
        json!({ "get": name }),
        json!({ "release": { "scope": "batch", "key": "x", "token": 0 } }),
        json!({ "acquire": name, "release": name }),
        json!([]),
        json!({ "release": { "scope": "batch", "key": "0", "token": results[0]["body"]["token"] } }),
    ]);
    assert_eq!(mixed.status, 200);
    let mixed = mixed.body();
    let expected = [
        (400, "commands.0.acquire.wait_ms"),
        (200, ""),
        (400, "commands.2.purge"),
        (400, "commands.3.get"),
        (400, "commands.4.release.token"),
        (400, "commands.5"),
        (400, "commands.6"),
        (200, ""),
    ];
    for (result, (status, field)) in mixed["results"].as_array().unwrap().iter().zip(expected) {
        assert_eq!(result["status"], status, "{result}");
        if status == 400 {
            assert_eq!(result["body"]["field"], field, "{result}");
        }
    }
    assert_eq!(mixed["results"][7]["body"]["outcome"], "released");
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn paths_and_queries_are_decoded_strictly() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    for (key, path) in [
        ("a/b", "a%2Fb"),
        ("a/../b", "a%2f..%2fb"),
        ("100%", "100%25"),
        ("?&=#", "%3F&=%23"),
        ("a+b c", "a+b%20c"),
        ("..", "%2e%2e"),
        ("größe\u{1f980}", "gr%C3%B6%C3%9Fe%F0%9F%A6%80"),
        ("%2F", "%252F"),
        ("payload", "payload"),
    ] {
        let name = json!({ "scope": "a/b", "key": key });
        let token = http::post(&node.http, "/v1/acquire", &name).body()["token"].clone();
        let read = http::get(&node.http, &format!("/v1/scopes/a%2Fb/keys/{path}")).unwrap();
        assert_eq!((read.status, &read.body()["token"]), (200, &token), "{key}");
    }
    let records = ["/v1/scopes/s/keys/{}", "/v1/scopes/{}/keys/k", "/v1/scopes/s/keys/{}/payload"];
    let lists = ["/v1/scopes/{}/keys", "/v1/scopes/s/keys?prefix={}"];
    for bad in ["%FF", "a%C3", "%ED%A0%80", "%", "%2", "a%zz", "%%41", "100%"] {
        for path in records.iter().chain(&lists) {
            let answer = http::get(&node.http, &path.replace("{}", bad)).unwrap();
            assert_eq!(invalid(&answer), Value::Null, "{path} {bad}");
        }
    }
    for raw in [b"\xff".as_slice(), b"\xc3\xb6"] {
        let request =
            [b"GET /v1/scopes/s/keys/", raw, b" HTTP/1.1\r\nHost: [::1]\r\n\r\n"].concat();
        let mut connection = Connection::open(&node.http).unwrap();
        connection.send(&request).unwrap();
        // Not percent-encoded: no HTTP for some parsers, decoded as it is by others.
        let status = connection.answer().unwrap().status;
        assert!([400, 404].contains(&status), "{raw:?}: {status}");
    }
    for (path, field) in [
        ("/v1/scopes/a:b/keys/k", "scope"),
        ("/v1/scopes/s/keys/%20", "key"),
        ("/v1/scopes/s/keys/a%00", "key"),
        ("/v1/scopes/s/keys/k?consistency=eventual", "consistency"),
        ("/v1/scopes/s/keys/k?consistency=stale&consistency=stale", "consistency"),
        ("/v1/scopes/s/keys/k?fresh=1", "fresh"),
        ("/v1/scopes/s/keys?page_size=0", "page_size"),
        ("/v1/scopes/s/keys?page_size=1001", "page_size"),
        ("/v1/scopes/s/keys?page_size=4294967396", "page_size"),
        ("/v1/scopes/s/keys?page_size=99999999999999999999999999", "page_size"),
        ("/v1/scopes/s/keys?page_size=-1", "page_size"),
        ("/v1/scopes/s/keys?page_token=%2e", "page_token"),
        ("/v1/scopes/s/keys?state=done", "state"),
    ] {
        assert_eq!(invalid(&http::get(&node.http, path).unwrap()), field, "{path}");
    }
    let long = format!("/v1/scopes/s/keys/{}", "x".repeat(256));
    assert_eq!(invalid(&http::get(&node.http, &long).unwrap()), "key");
    for id in ["0", "-1", "1.5", "x", "%FF", "%zz", "9007199254740992", "1%2F2"] {
        let promote = format!("/v1/cluster/members/{id}/promote");
        let field = invalid(&post(&node, &promote, b""));
        assert!(field == "id" || field.is_null() && id.contains('%'), "{id}: {field}");
        let remove = http::ask(&node.http, "DELETE", &format!("/v1/cluster/members/{id}"), b"");
        assert!(["id", ""].contains(&invalid(&remove.unwrap()).as_str().unwrap_or("")), "{id}");
    }
    for nowhere in ["/", "/v1", "/v1/acquire/", "/v1/scopes/s/keys/", "/v1//acquire", "/V1/acquire"]
    {
        let answer = post(&node, nowhere, b"{}");
        assert_problem(&answer, 404, "not_found", &[]);
    }
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn methods_origins_hosts_and_hops_are_held_to() {
    let mut cluster = Cluster::start();
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut connection = Connection::open(&node.http).unwrap();
        connection.ask(method, path, headers, b"").unwrap()
    };
    for (method, path, allow) in [
        ("GET", "/v1/acquire", "POST"),
        ("PUT", "/v1/complete", "POST"),
        ("OPTIONS", "/v1/acquire", "POST"),
        ("PATCH", "/v1/batch", "POST"),
        ("TRACE", "/v1/purge", "POST"),
        ("BREW", "/v1/wait", "POST"),
        ("POST", "/v1/scopes/s/keys/k", "GET,HEAD"),
        ("DELETE", "/v1/scopes/s/keys", "GET,HEAD"),
        ("POST", "/v1/cluster", "GET,HEAD"),
        ("GET", "/v1/cluster/members/1", "DELETE"),
        ("POST", "/metrics", "GET,HEAD"),
    ] {
        let answer = ask(method, path, &[]);
        assert_problem(&answer, 405, "method_not_allowed", &["request_id"]);
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    let head = ask("HEAD", "/v1/acquire", &[]);
    assert_eq!((head.status, head.header("allow")), (405, Some("POST")));
    let head = ask("HEAD", "/v1/cluster", &[]);
    assert_eq!((head.status, head.body.len()), (200, 0));

    let own = format!("http://{}", node.http);
    for (headers, allowed) in [
        (vec![("Host", "localhost")], true),
        (vec![("Host", "[::1]:9")], true),
        (vec![("Host", node.http.as_str()), ("Origin", own.as_str())], true),
        (vec![("Host", "evil.example")], false),
        (vec![("Host", "127.0.0.1.evil.example")], false),
        (vec![("Host", "localhost.")], false),
        (vec![("Host", "")], false),
        (vec![("Origin", "https://evil.example")], false),
        (vec![("Origin", "null")], false),
        (vec![("Host", "localhost"), ("Origin", own.as_str())], false),
    ] {
        for path in ["/v1/cluster", "/metrics", "/nowhere"] {
            let answer = ask("GET", path, &headers);
            assert_eq!(answer.status == 403, !allowed, "{headers:?}: {answer:?}");
            if !allowed {
                assert_problem(&answer, 403, "forbidden", &[]);
            }
        }
    }

    let leader = cluster.leader();
    let no_forward = [("X-No-Forward", "1")];
    for id in 1..=3 {
        let node = cluster.node(id);
        let path = &format!("/v1/scopes/s/keys/of-{id}");
        let mut connection = Connection::open(&node.http).unwrap();
        let answer = connection.ask("GET", path, &no_forward, b"").unwrap();
        if id == leader {
            assert_problem(&answer, 404, "absent", &["at"]);
        } else {
            let body = assert_problem(&answer, 421, "not_leader", &["leader"]);
            let known = cluster.node(leader);
            let wanted = json!({ "id": leader, "http": known.http, "rpc": known.rpc });
            assert_eq!(body["leader"], wanted);
        }
        // The connection is as good as before.
        let name = json!({ "scope": "s", "key": format!("of-{id}") }).to_string();
        let acquire = connection.ask("POST", "/v1/acquire", &[], name.as_bytes()).unwrap();
        assert_eq!(acquire.body()["outcome"], "acquired");
        let stale = format!("{path}?consistency=stale");
        // Whatever this node has applied.
        let answer = connection.ask("GET", &stale, &no_forward, b"").unwrap();
        assert!([200, 404].contains(&answer.status), "{answer:?}");
    }
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn what_is_no_http_is_hung_up_on_and_pipelines_are_answered_in_order() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(MIB));
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(1000));
    let mut both =
        b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n".to_vec();
    both.extend_from_slice(b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n");
    for garbage in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n\x00\x00\x00\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  /  HTTP/1.1\r\n\r\n",
        b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        &MAGIC,
        &both,
        long.as_bytes(),
        many.as_bytes(),
        &[0; 64 * 1024],
    ] {
        let mut connection = Connection::open(&node.http).unwrap();
        let _ = connection.send(garbage);
        // It may have been hung up on already.
        let _ = connection.stream().shutdown(Shutdown::Write);
        let said = connection.read_to_end().unwrap();
        let said = String::from_utf8_lossy(&said);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }

    let mut connection = Connection::open(&node.http).unwrap();
    let mut pipeline = Vec::new();
    for n in 0..200 {
        let body = json!({ "scope": "pipeline", "key": format!("{n}") }).to_string();
        pipeline.extend(request("POST", "/v1/acquire", &[], body.as_bytes()));
        pipeline.extend(request("GET", &format!("/v1/scopes/pipeline/keys/{n}"), &[], b""));
    }
    connection.send(&pipeline).unwrap();
    for n in 0..200 {
        let token = connection.answer().unwrap().body()["token"].clone();
        assert!(token.is_u64());
        assert_eq!(connection.answer().unwrap().body()["token"], token, "answer {n}");
    }
    assert_unharmed(&mut cluster, memory);
}

fn greet(node: &Node, protocol: u16, cluster_id: Option<&str>, role: Role) -> (TcpStream, Welcome) {
    let hello = Hello { protocol, cluster_id: cluster_id.map(str::to_owned), role };
    let mut stream = dial(&node.rpc);
    let mut bytes = MAGIC.to_vec();
    wire::push(&mut bytes, &hello).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap()];
    stream.read_exact(&mut frame).unwrap();
    (stream, wire::decode(&frame).unwrap())
}

fn dial(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SLOW)).unwrap();
    stream.set_write_timeout(Some(SLOW)).unwrap();
    stream
}

/// Waits until the node closes the connection, and says how long that took.
fn closes(mut stream: TcpStream) -> Duration {
    let started = Instant::now();
    let mut sink = [0; 1024];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return started.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return started.elapsed();
            }
            Err(error) => panic!("not closed: {error}"),
        }
    }
}

#[test]
fn the_rpc_port_hangs_up_on_whoever_does_not_speak_its_protocol() {
    let mut cluster = Cluster::start();
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    let cluster_id = cluster.ready["nodes"][0]["command"].as_array().unwrap().clone();
    let place = cluster_id.iter().position(|word| word == "--cluster-id").unwrap();
    let cluster_id = cluster_id[place + 1].as_str().unwrap().to_owned();

    let refused = |protocol, cluster_id: Option<&str>, role| {
        let (stream, welcome) = greet(&node, protocol, cluster_id, role);
        let Welcome::Refused { reason } = welcome else { panic!("{welcome:?}") };
        closes(stream);
        reason
    };
    assert!(refused(PROTOCOL + 1, None, Role::Client).contains("protocol"));
    assert!(refused(PROTOCOL, Some("another"), Role::Client).contains(&cluster_id));
    assert!(refused(PROTOCOL, Some("another"), Role::Peer { node_id: 2 }).contains(&cluster_id));
    assert!(refused(PROTOCOL, Some(&cluster_id), Role::Peer { node_id: 1 }).contains("itself"));
    let (_open, welcome) = greet(&node, PROTOCOL, Some(&cluster_id), Role::Client);
    assert!(matches!(welcome, Welcome::Accepted { node_id: 1, .. }), "{welcome:?}");

    let huge = u32::MAX.to_le_bytes();
    let nonsense = [64_u32.to_le_bytes().as_slice(), &[0xff; 64]].concat();
    let endless = [&12_000_000_u32.to_le_bytes()[..], &[0; 100_000]].concat();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 4096], &[0xff; 4096]] {
        let mut stream = dial(&node.rpc);
        stream.write_all(garbage).unwrap();
        assert!(closes(stream) < Duration::from_secs(4), "{garbage:?}");
    }
    for after_magic in [huge.as_slice(), &nonsense, &0_u32.to_le_bytes()] {
        let mut stream = dial(&node.rpc);
        stream.write_all(&[MAGIC.as_slice(), after_magic].concat()).unwrap();
        assert!(closes(stream) < Duration::from_secs(4), "{after_magic:?}");
    }
    for role in [Role::Client, Role::Peer { node_id: 2 }, Role::Peer { node_id: 77 }] {
        for after_hello in [huge.as_slice(), &nonsense, &0_u32.to_le_bytes()] {
            let (mut stream, _) = greet(&node, PROTOCOL, Some(&cluster_id), role);
            stream.write_all(after_hello).unwrap();
            assert!(closes(stream) < Duration::from_secs(4), "{role:?} {after_hello:?}");
        }
        // A frame that is announced, begun and never ended; the client goes away.
        let (mut stream, _) = greet(&node, PROTOCOL, Some(&cluster_id), role);
        stream.write_all(&endless).unwrap();
    }
    assert_unharmed(&mut cluster, memory);
}

/// A client that sends a byte a second.
fn drip(mut stream: TcpStream, bytes: Vec<u8>) -> TcpStream {
    let mut dripping = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        for byte in bytes {
            if dripping.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    stream.flush().unwrap();
    stream
}

#[test]
fn promised_bodies_do_not_keep_others_out() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);
    let promise = |size: usize| {
        let mut stream = dial(&node.http);
        let host = "Host: [::1]";
        let head =
            format!("POST /v1/acquire HTTP/1.1\r\n{host}\r\nContent-Length: {size}\r\n\r\n{{");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    // Large ones first, then whatever may still fit beside them.
    let sizes = [8 * MIB, MIB, MIB / 16, MIB / 512, 2].into_iter();
    let promising: Vec<TcpStream> =
        sizes.flat_map(|size| (0..70).map(move |_| size)).map(promise).collect();
    let mut next = Connection::open(&node.http).unwrap();
    for n in 0..50 {
        let name = json!({ "scope": "promise", "key": format!("{n}") }).to_string();
        let answer = next.ask("POST", "/v1/acquire", &[], name.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body());
    }
    drop(promising);
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn slow_and_idle_connections_cost_little_and_end() {
    let mut cluster = Cluster::start();
    let node = cluster.nodes()[0].clone();
    let memory = resident(&node);

    // All at once, for each takes the node's whole patience.
    let slow_head =
        drip(dial(&node.http), request("GET", "/livez", &[("X", &"x".repeat(99))], b""));
    let mut slow_body = Connection::open(&node.http).unwrap();
    slow_body.stream().set_read_timeout(Some(SLOW)).unwrap();
    let body = body_of("acquire", &" ".repeat(99));
    let whole = request("POST", "/v1/acquire", &[], body.as_bytes());
    slow_body.send(&whole[..whole.len() - 110]).unwrap();
    drip(slow_body.stream().try_clone().unwrap(), whole[whole.len() - 110..].to_vec());
    let silent = dial(&node.http);
    let mute = dial(&node.rpc);
    let slow_magic = drip(dial(&node.rpc), [MAGIC.as_slice(), &[0; 99]].concat());
    let (mut half_frame, _) = greet(&node, PROTOCOL, None, Role::Client);
    half_frame.write_all(&[9, 0, 0, 0, 1, 2]).unwrap();
    let (idle_client, _) = greet(&node, PROTOCOL, None, Role::Client);

    let idle: Vec<(TcpStream, TcpStream)> =
        (0..1500).map(|_| (dial(&node.http), dial(&node.rpc))).collect();
    let while_idle = body_of("acquire", "");
    for _ in 0..20 {
        let answer = post(&node, "/v1/acquire", while_idle.as_bytes());
        assert!([200, 409].contains(&answer.status), "{answer:?}");
    }
    let during = resident(&node);
    assert!(during < memory + GROWTH, "from {memory} to {during} bytes");

    // The native port asks for a greeting within five seconds.
    for stream in [mute, slow_magic] {
        assert!(closes(stream) < Duration::from_secs(10));
    }
    for stream in [slow_head, silent] {
        closes(stream);
    }
    let answer = slow_body.answer().unwrap();
    assert_eq!(invalid(&answer), Value::Null);
    for (http, rpc) in idle {
        closes(rpc);
        closes(http);
    }
    // One that has greeted may be idle for ever; one in the middle of a frame gets a while.
    for still in [idle_client, half_frame] {
        still.set_nonblocking(true).unwrap();
        let nothing = (&still).read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
    assert_unharmed(&mut cluster, memory);
}

#[test]
fn a_waiter_whose_connection_is_gone_leaves_the_queue_and_gets_nothing() {
    let mut cluster = Cluster::start();
    let node = cluster.node(cluster.leader()).clone();
    let memory = resident(&node);
    let name = json!({ "scope": "gone", "key": "k" });
    let held = http::post(&node.http, "/v1/acquire", &name).body();
    let follower = cluster.node(cluster.follower()).clone();
    let wait = json!({ "scope": "gone", "key": "k", "holder": "gone", "wait_ms": 60_000 });
    let waiters = |count: u64| {
        let line = format!("tenure_waiters {count}\n");
        eventually(&line, Duration::from_secs(10), || {
            let metrics = http::get(&node.http, "/metrics").ok()?;
            String::from_utf8(metrics.body).unwrap().contains(&line).then_some(())
        });
    };
    let mut gone = Vec::new();
    for asked in [&node, &follower, &node, &follower] {
        let mut connection = Connection::open(&asked.http).unwrap();
        let body = wait.to_string();
        connection.send(&request("POST", "/v1/acquire", &[], body.as_bytes())).unwrap();
        gone.push(connection);
    }
    waiters(4);
    drop(gone);
    waiters(0);
    let release = json!({ "scope": "gone", "key": "k", "token": held["token"] });
    assert_eq!(http::post(&node.http, "/v1/release", &release).body()["outcome"], "released");
    let read = http::get(&node.http, "/v1/scopes/gone/keys/k").unwrap();
    assert_problem(&read, 404, "absent", &["at"]);
    assert_unharmed(&mut cluster, memory);
}
