//! Short runs of `jepsen/run`, each with one fault, and what it makes of a history that is wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say by a panic that they failed, and by a line what they did"
)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use tenure_jepsen::process::binary;
use tenure_jepsen::seed;

const VALID: i32 = 0;
const INVALID: i32 = 1;
const NOT_TESTED: i32 = 2;
const UNKNOWN: i32 = 3;

fn campaign(store: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-jepsen"));
    command.arg("--store").arg(store).args(arguments).env("TENURE_BIN", binary());
    command.output().unwrap()
}

fn verdict(store: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(store.join("verdict.json")).unwrap()).unwrap()
}

/// Runs with one fault. A machine that cannot have it skips it, which is no pass: the run must say
/// so.
fn one_fault(nemesis: &str) {
    let store = TempDir::new().unwrap();
    let seed = seed(nemesis).to_string();
    let arguments = ["--seconds", "8", "--nemesis", nemesis, "--seed", &seed];
    let output = campaign(store.path(), &arguments);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    eprintln!("{said}");
    let code = output.status.code();
    assert!(code == Some(VALID) || code == Some(NOT_TESTED), "{said}");
    let verdict = verdict(store.path());
    let installed = verdict["faults"][nemesis]["installed"].as_u64().unwrap_or(0);
    let is_named = verdict["not_tested"].to_string().contains("was not installed");
    assert!(installed > 0 || is_named, "{verdict}");
    for left in ["history.jsonl", "history.edn", "nemesis.log", "latency.svg", "rate.svg"] {
        assert!(store.path().join(left).metadata().unwrap().len() > 0, "{left}");
    }
    // What it left gives the same judgement again.
    let history = store.path().join("history.jsonl");
    let again = campaign(store.path(), &["--check", history.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(VALID), "{}", String::from_utf8_lossy(&again.stdout));
}

#[test]
fn links_are_cut_under_load_and_the_history_is_right() {
    one_fault("partition");
}

#[test]
fn nodes_are_paused_under_load_and_the_history_is_right() {
    one_fault("pause");
}

#[test]
fn a_node_whose_disk_fails_to_sync_ends_and_the_history_is_right() {
    one_fault("sync-error");
}

#[test]
fn a_node_with_a_damaged_file_ends_or_has_what_the_others_have() {
    one_fault("damage");
}

/// Nothing survives a disk that lies: a harness that passes this run does not look.
#[test]
fn what_a_lying_disk_loses_is_found() {
    let store = TempDir::new().unwrap();
    let seed = seed("lying-disk").to_string();
    let arguments = ["--seconds", "8", "--nemesis", "lying-disk", "--seed", &seed];
    let output = campaign(store.path(), &arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let verdict = verdict(store.path());
    let skipped = verdict["faults"]["lying-disk"]["skipped"].as_u64() > Some(0);
    let expected = if skipped { NOT_TESTED } else { INVALID };
    assert_eq!(output.status.code(), Some(expected), "{said}");
}

#[test]
fn a_fault_that_cannot_be_had_is_skipped_and_never_passed() {
    let store = TempDir::new().unwrap();
    let arguments = ["--rung", "loopback", "--seconds", "4", "--nemesis", "power-cut"];
    let output = campaign(store.path(), &arguments);
    assert_eq!(output.status.code(), Some(NOT_TESTED), "{output:?}");
    let verdict = verdict(store.path());
    assert!(verdict["faults"]["power-cut"]["skipped"].as_u64() > Some(0), "{verdict}");
    assert_eq!(verdict["verdict"], "not tested");
}

const GOOD: &str = r#"{"type":"invoke","process":1,"f":"acquire","key":"k","t":1,"request":{"attempt":"a","mark":"m","lease_ms":50,"ttl_ms":500}}
{"type":"ok","process":1,"f":"acquire","key":"k","t":2,"answer":{"outcome":"acquired","token":1,"lease_until_ms":1050,"ttl_until_ms":1500,"resumed":false,"took_over":null,"at":{"index":1,"slot":0,"term":1,"now_ms":1000}}}
{"type":"invoke","process":2,"f":"get","key":"k","t":3,"request":{}}
{"type":"ok","process":2,"f":"get","key":"k","t":4,"answer":{"state":"in_progress","token":1,"holder":"m","acquired_ms":1000,"lease_until_ms":1050,"lease_left_ms":40,"ttl_until_ms":1500,"fingerprint":null,"at":{"index":2,"slot":null,"term":1,"now_ms":1010}}}
"#;

fn check(history: &str) -> Output {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("history.jsonl");
    std::fs::write(&file, history).unwrap();
    campaign(directory.path(), &["--check", file.to_str().unwrap()])
}

#[test]
fn a_kept_history_is_judged_again() {
    assert_eq!(check(GOOD).status.code(), Some(VALID));
    let wrong = check(&GOOD.replace("\"holder\":\"m\"", "\"holder\":\"n\""));
    assert_eq!(wrong.status.code(), Some(INVALID));
    let verdict: Value = serde_json::from_slice(&wrong.stdout).unwrap();
    let checkers: Vec<&Value> =
        verdict["violations"].as_array().unwrap().iter().map(|one| &one["checker"]).collect();
    assert_eq!(checkers, ["replay", "search"]);
    let torn = check("{\"type\":\"ok\"}\n");
    assert_eq!(torn.status.code(), Some(UNKNOWN));
    assert!(String::from_utf8_lossy(&torn.stderr).contains("line 1 is none of a history"));
}
