//! The description of the HTTP API is true: its paths and methods are the node's, its examples
//! fit its schemas, and so does what a real node answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tenure_jepsen::cluster::Cluster;
use tenure_jepsen::http;

/// The description, as a node serves it.
struct Description(Value);

impl Description {
    fn of(node: &str) -> Self {
        let answer = http::get(node, "/openapi.json").unwrap();
        assert_eq!(answer.header("content-type"), Some("application/json"));
        Self(answer.body())
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(path) => {
                let found = self.0.pointer(path.strip_prefix('#').unwrap());
                found.unwrap_or_else(|| panic!("{path} leads nowhere"))
            }
            None => value,
        }
    }

    fn paths(&self) -> impl Iterator<Item = (&String, &serde_json::Map<String, Value>)> {
        let paths = self.0["paths"].as_object().unwrap().iter();
        paths.map(|(path, methods)| (path, methods.as_object().unwrap()))
    }

    /// The schema of an answer, by path, method and status; null where the body is anything.
    fn answer(&self, path: &str, method: &str, status: u16) -> &Value {
        let responses = &self.0["paths"][path][method]["responses"];
        let response = self.resolve(&responses[status.to_string()]);
        assert!(response.is_object(), "{method} {path} answers {status}, which is not described");
        let content = response["content"].as_object().unwrap();
        &content.values().next().unwrap()["schema"]
    }

    /// What is wrong with a value by a schema, for the part of JSON Schema that is used here.
    fn faults(&self, schema: &Value, value: &Value) -> Vec<String> {
        let schema = self.resolve(schema);
        let mut found = Vec::new();
        let mut claim = |holds: bool, what: &str| {
            if !holds {
                found.push(format!("{value} is not {what}"));
            }
        };
        if let Some(wanted) = schema.get("const") {
            claim(value == wanted, &format!("{wanted}"));
        }
        if let Some(any) = schema["enum"].as_array() {
            claim(any.contains(value), &format!("one of {any:?}"));
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        };
        let is = |kind: &&str| match *kind {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64() || value.is_i64(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("the type {other} is unknown here"),
        };
        claim(types.is_empty() || types.iter().any(is), &format!("{types:?}"));
        if let Some(least) = schema["minimum"].as_u64() {
            claim(!value.is_number() || value.as_u64() >= Some(least), &format!(">= {least}"));
        }
        if let Some(most) = schema["maximum"].as_u64() {
            claim(!value.is_number() || value.as_u64() <= Some(most), &format!("<= {most}"));
        }
        for (word, exact) in [("anyOf", false), ("oneOf", true)] {
            if let Some(some) = schema[word].as_array() {
                let fits = some.iter().filter(|one| self.faults(one, value).is_empty()).count();
                claim(if exact { fits == 1 } else { fits > 0 }, &format!("{word}, it fits {fits}"));
            }
        }
        for item in value.as_array().into_iter().flatten() {
            found.extend(self.faults(&schema["items"], item));
        }
        if let Some(object) = value.as_object() {
            found.extend(self.faults_of_object(schema, object));
        }
        found
    }

    fn faults_of_object(
        &self,
        schema: &Value,
        object: &serde_json::Map<String, Value>,
    ) -> Vec<String> {
        let required = schema["required"].as_array().into_iter().flatten();
        let missing = required.filter_map(Value::as_str).filter(|name| !object.contains_key(*name));
        let mut found: Vec<String> = missing.map(|name| format!("{name} is missing")).collect();
        for (name, value) in object {
            match (schema["properties"].get(name), schema.get("additionalProperties")) {
                (Some(property), _) => found.extend(self.faults(property, value)),
                (None, Some(Value::Bool(false))) => found.push(format!("{name} is unknown")),
                (None, Some(others)) => found.extend(self.faults(others, value)),
                (None, None) => {}
            }
        }
        found
    }
}

fn filled(path: &str) -> String {
    path.replace("{scope}", "openapi").replace("{key}", "k").replace("{id}", "9")
}

#[test]
fn the_described_paths_and_methods_are_the_nodes_own() {
    let mut cluster = Cluster::of(1);
    let node = cluster.nodes()[0].http.clone();
    let description = Description::of(&node);
    assert_eq!(description.0["openapi"], "3.1.0");
    let mut names = BTreeSet::new();
    for (path, methods) in description.paths() {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            let answer = http::ask(&node, method, &filled(path), b"").unwrap();
            let code = answer.json().map(|body| body["code"].clone()).unwrap_or_default();
            assert_ne!(code, "not_found", "{method} {path}");
            let described = methods.contains_key(&method.to_lowercase());
            assert_eq!(answer.status != 405, described, "{method} {path}: {}", answer.status);
            if !described {
                let mut allowed: BTreeSet<String> =
                    methods.keys().map(|method| method.to_uppercase()).collect();
                if allowed.contains("GET") {
                    allowed.insert("HEAD".to_owned());
                }
                let allow = answer.header("allow").unwrap().split(',').map(str::to_owned);
                assert_eq!(allow.collect::<BTreeSet<_>>(), allowed, "{path}");
            }
        }
        for operation in methods.values() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is there twice");
            assert!(operation["summary"].is_string() && operation["responses"].is_object());
        }
    }
    // The other way round: the source has as many routes as are described.
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(source.join("../crates/network/src/routes.rs")).unwrap();
    let routes = source.matches(".route(").count();
    assert_eq!(description.paths().count(), routes, "a route is not described");
    cluster.assert_sound();
}

#[test]
fn every_reference_leads_somewhere_and_every_example_fits_its_schema() {
    let cluster = Cluster::of(1);
    let description = Description::of(&cluster.nodes()[0].http);
    let mut open = vec![&description.0];
    let (mut references, mut examples) = (BTreeSet::new(), 0);
    while let Some(value) = open.pop() {
        if let Some(path) = value["$ref"].as_str() {
            references.insert(path.to_owned());
            description.resolve(value);
        }
        let named = value["examples"].as_object();
        for (name, example) in named.into_iter().flatten() {
            examples += 1;
            let faults = description.faults(&value["schema"], &example["value"]);
            assert_eq!(faults, Vec::<String>::new(), "{name}: {example}");
        }
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => open.extend(members.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    assert!(examples >= 30, "{examples} examples");
    for (kind, parts) in description.0["components"].as_object().unwrap() {
        for name in parts.as_object().unwrap().keys() {
            let path = format!("#/components/{kind}/{name}");
            assert!(references.contains(&path), "nothing refers to {path}");
        }
    }
}

#[test]
fn what_a_node_answers_fits_the_description() {
    let mut cluster = Cluster::start();
    let node = cluster.node(cluster.leader()).http.clone();
    let follower = cluster.node(cluster.follower()).http.clone();
    let description = Description::of(&node);
    let check = |method: &str, path: &str, template: &str, body: &Value| {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http::ask(&node, method, path, text.as_bytes()).unwrap();
        let said = answer.body();
        let schema = description.answer(template, &method.to_lowercase(), answer.status);
        assert_eq!(
            description.faults(schema, &said),
            Vec::<String>::new(),
            "{method} {path}: {said}"
        );
        said
    };
    let post = |command: &str, body: Value| {
        let path = format!("/v1/{command}");
        check("POST", &path, &path, &body)
    };
    let record = "/v1/scopes/{scope}/keys/{key}";
    let read = |key: &str| check("GET", &format!("/v1/scopes/s/keys/{key}"), record, &Value::Null);
    let name = |key: &str| json!({ "scope": "s", "key": key });
    let held = |token: &Value| json!({ "scope": "s", "key": "k", "token": token });
    let mine = json!({ "scope": "s", "key": "k", "attempt": "a", "fingerprint": "a".repeat(16) });
    let token = post("acquire", mine.clone())["token"].clone();
    post("acquire", mine.clone());
    post("acquire", name("k"));
    post(
        "acquire",
        json!({ "scope": "s", "key": "k", "attempt": "a", "fingerprint": "b".repeat(16) }),
    );
    post("acquire", json!({ "scope": "s", "key": "k", "not_after_ms": 1 }));
    post("acquire", json!({ "scope": "s" }));
    post("acquire", json!({ "scope": "s", "key": "short", "lease_ms": 2 }));
    post("wait", json!({ "scope": "s", "key": "short", "timeout_ms": 5000 }));
    post("acquire", json!({ "scope": "s", "key": "short", "wait_ms": 5000 }));
    read("k");
    read("none");
    post("wait", json!({ "scope": "s", "key": "k", "timeout_ms": 1 }));
    post("wait", json!({ "scope": "s", "key": "none", "timeout_ms": 1 }));
    post("release", held(&json!(9999)));
    post("extend", json!({ "scope": "s", "key": "k", "token": token, "lease_ms": 60_000 }));
    post("extend", json!({ "scope": "s", "key": "none", "token": token, "lease_ms": 60_000 }));
    let payload = json!({ "type": "text/plain", "text": "done", "attributes": { "a": "b" } });
    post("complete", json!({ "scope": "s", "key": "k", "token": token, "payload": payload }));
    post("complete", held(&token));
    post(
        "complete",
        json!({ "scope": "s", "key": "k", "token": token,
        "payload": { "text": "x".repeat(1024 * 1024 + 1) } }),
    );
    post("acquire", name("k"));
    post("wait", json!({ "scope": "s", "key": "k", "timeout_ms": 1 }));
    post("release", held(&token));
    read("k");
    post(
        "batch",
        json!({ "commands": [{ "acquire": name("k") }, { "acquire": name("b") },
        { "release": held(&token) }, { "purge": {} }] }),
    );
    post("purge", json!({}));
    check("GET", "/v1/scopes/s/keys?page_size=2", "/v1/scopes/{scope}/keys", &Value::Null);
    check("GET", "/v1/scopes/s/keys?page_size=0", "/v1/scopes/{scope}/keys", &Value::Null);
    check("GET", "/v1/cluster", "/v1/cluster", &Value::Null);
    check("POST", "/v1/cluster/snapshot", "/v1/cluster/snapshot", &Value::Null);
    check("POST", "/v1/cluster/transfer", "/v1/cluster/transfer", &json!({ "to": 9 }));
    let promote = "/v1/cluster/members/{id}/promote";
    check("POST", &filled(promote), promote, &Value::Null);
    check("DELETE", "/v1/cluster/members/9", "/v1/cluster/members/{id}", &Value::Null);
    check("POST", "/v1/cluster/members", "/v1/cluster/members", &json!({ "id": 1 }));
    // Refusals that another node gives.
    let mut connection = http::Connection::open(&follower).unwrap();
    let answer =
        connection.ask("GET", "/v1/scopes/s/keys/k", &[("X-No-Forward", "1")], b"").unwrap();
    let schema = description.answer(record, "get", answer.status);
    assert_eq!(answer.status, 421);
    assert_eq!(description.faults(schema, &answer.body()), Vec::<String>::new());
    cluster.assert_sound();
}
