//! The workspace keeps its shape: who may depend on whom, and on what.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test says by a panic that it failed"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Which crates of ours each of ours may depend on. Arrows point inwards.
const INNER: [(&str, &[&str]); 14] = [
    ("tenure-state-machine", &[]),
    ("tenure-api", &["tenure-state-machine"]),
    ("tenure-storage", &["tenure-state-machine"]),
    ("tenure-client", &["tenure-api", "tenure-state-machine"]),
    ("tenure-bench", &["tenure-api", "tenure-client", "tenure-state-machine"]),
    ("tenure-idempotency", &["tenure-client", "tenure-state-machine"]),
    ("tenure-network", &["tenure-api", "tenure-client", "tenure-state-machine", "tenure-storage"]),
    (
        "tenure",
        &[
            "tenure-api",
            "tenure-bench",
            "tenure-client",
            "tenure-network",
            "tenure-state-machine",
            "tenure-storage",
        ],
    ),
    (
        "tenure-tests",
        &[
            "tenure-api",
            "tenure-client",
            "tenure-idempotency",
            "tenure-network",
            "tenure-state-machine",
            "tenure-storage",
        ],
    ),
    ("tenure-jepsen", &["tenure-api", "tenure-client", "tenure-ioctl", "tenure-state-machine"]),
    ("tenure-ioctl", &[]),
    ("tenure-preload", &[]),
    (
        "tenure-simulation",
        &[
            "tenure-api",
            "tenure-client",
            "tenure-jepsen",
            "tenure-network",
            "tenure-state-machine",
            "tenure-storage",
        ],
    ),
    (
        "tenure-decoders",
        &[
            "tenure-api",
            "tenure-client",
            "tenure-network",
            "tenure-state-machine",
            "tenure-storage",
        ],
    ),
];

/// Crates that only these of ours may name.
const ONLY: [(&str, &[&str]); 10] = [
    ("bincode", &["tenure-state-machine"]),
    ("rocksdb", &["tenure-storage"]),
    (
        "openraft",
        &[
            "tenure-storage",
            "tenure-network",
            "tenure-tests",
            "tenure-decoders",
            "tenure-simulation",
        ],
    ),
    ("axum", &["tenure-network", "tenure-tests"]),
    ("anyhow", &["tenure", "tenure-bench"]),
    ("clap", &["tenure", "tenure-bench", "tenure-jepsen", "tenure-simulation"]),
    (
        "serde_json",
        &[
            "tenure-api",
            "tenure-client",
            "tenure-idempotency",
            "tenure-network",
            "tenure",
            "tenure-bench",
            "tenure-tests",
            "tenure-jepsen",
            "tenure-simulation",
            "tenure-decoders",
        ],
    ),
    ("turmoil", &["tenure-simulation"]),
    ("prometheus-client", &["tenure-storage", "tenure-network"]),
    ("libc", &["tenure-preload"]),
];

/// Dependencies that are built into each of our crates, by crate.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .expect("cargo metadata runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("its output is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let built_in = package["dependencies"].as_array().unwrap().iter();
            let built_in = built_in.filter(|dependency| dependency["kind"] != "dev");
            let names = built_in.map(|dependency| dependency["name"].as_str().unwrap().to_owned());
            (package["name"].as_str().unwrap().to_owned(), names.collect())
        })
        .collect()
}

#[test]
fn crates_depend_inwards_only() {
    let allowed: BTreeMap<&str, &[&str]> = INNER.into_iter().collect();
    let found = dependencies();
    let ours: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(ours, allowed.keys().copied().collect(), "a crate came or went");
    for (name, dependencies) in &found {
        for dependency in dependencies.iter().filter(|name| ours.contains(name.as_str())) {
            assert!(
                allowed[name.as_str()].contains(&dependency.as_str()),
                "{name} may not depend on {dependency}"
            );
        }
    }
}

#[test]
fn each_outside_crate_stays_in_its_room() {
    let found = dependencies();
    for (outside, rooms) in ONLY {
        for (name, dependencies) in &found {
            let named = dependencies.contains(outside);
            assert!(!named || rooms.contains(&name.as_str()), "{name} may not name {outside}");
        }
    }
}

#[test]
fn the_state_machine_is_pure() {
    let allowed = ["bincode", "crc32c", "serde", "serde_bytes", "sha2", "thiserror"];
    for dependency in &dependencies()["tenure-state-machine"] {
        assert!(allowed.contains(&dependency.as_str()), "no I/O, clock or log: {dependency}");
    }
}
