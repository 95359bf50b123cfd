//! The command line from outside, where it needs no cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails should say where"
)]

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

fn tenure(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TENURE_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    tenure(arguments).output().unwrap()
}

fn problem(output: &Output) -> serde_json::Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.matches('\n').count(), 1, "not one line: {text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn what_is_no_command_is_a_usage_error() {
    for wrong in [
        &["acquire"][..],
        &["acquire", "mail", "order-1", "--lease", "soon"],
        &["acquire", "mail", "order-1", "--lease", "10us"],
        &["complete", "mail", "order-1"],
        &["complete", "mail", "order-1", "--token", "1", "--text", "a", "--body-file", "b"],
        &["cluster", "promote", "two"],
        &["bench", "--workload", "sleep"],
        &["bench", "--concurrency", "0"],
        &["bench", "--dev", "--server-pids", "1"],
        &["nonsense"],
    ] {
        let output = output(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn a_bench_that_cannot_be_run_says_what_it_needs() {
    for (wrong, needs) in [
        (&["bench", "--seconds", "0"][..], "--fill"),
        (&["bench", "--during", "purge"], "--fill"),
        (&["bench", "--during", "snapshot"], "--http or --dev"),
        (&["bench", "--during", "restart"], "--dev"),
        (&["bench", "--during", "join"], "--dev"),
        (&["bench", "--via", "http"], "--http or --dev"),
        (&["bench", "--payload", "1048577"], "payload"),
    ] {
        let output = output(wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}: {said}");
        assert!(output.stdout.is_empty() && said.contains(needs), "{wrong:?}: {said}");
    }
}

#[test]
fn a_value_beyond_its_limit_is_refused_before_anything_is_sent() {
    for (wrong, field) in [
        (&["acquire", "ma:il", "order-1"][..], "scope"),
        (&["acquire", "mail", " "], "key"),
        (&["acquire", "mail", "order-1", "--lease", "1ms"], "lease_ms"),
        (&["acquire", "mail", "order-1", "--wait", "61s"], "wait_ms"),
        (&["acquire", "mail", "order-1", "--fingerprint", "xyz"], "fingerprint"),
        (&["release", "mail", "order-1", "--token", "0"], "token"),
        (&["complete", "mail", "order-1", "--token", "1", "--type", ""], "payload.type"),
        (&["wait", "mail", "order-1", "--timeout", "2m"], "timeout_ms"),
        (&["purge", "--limit", "0"], "limit"),
        (&["list", "mail", "--page-size", "1001"], "page_size"),
        (&["list", "mail", "--state", "done"], "state"),
    ] {
        let output = output(&[wrong, &["-o", "json"]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let problem = problem(&output);
        assert_eq!(problem["code"], "invalid_argument", "{wrong:?}");
        assert_eq!(problem["field"], field, "{wrong:?}");
    }
}

#[test]
fn a_body_over_its_limit_is_too_large() {
    let arguments =
        ["complete", "mail", "order-1", "--token", "1", "--body-file", "-", "-o", "json"];
    let mut child = tenure(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![b'x'; 1024 * 1024 + 1]).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(problem(&output)["code"], "payload_too_large");
}

#[test]
fn without_a_cluster_commands_are_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let nowhere = ["--endpoints", &address, "--deadline", "100ms", "-o", "json"];
    for command in [
        &["acquire", "mail", "order-1"][..],
        &["get", "mail", "order-1"],
        &["list", "mail"],
        &["purge"],
    ] {
        let output = output(&[command, &nowhere].concat());
        assert_eq!(output.status.code(), Some(8), "{command:?}");
        assert_eq!(problem(&output)["code"], "no_leader", "{command:?}");
        assert!(!output.stderr.is_empty(), "{command:?}");
    }
    let output = output(&["cluster", "status", "--http", &format!("http://{address}")]);
    assert_eq!(output.status.code(), Some(8));
    assert!(output.stdout.is_empty() && !output.stderr.is_empty());
}

#[test]
fn replay_answers_on_standard_output() {
    let mut child =
        tenure(&["replay"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = br#"{"at":1000,"acquire":{"scope":"mail","key":"order-1","attempt":"a"}}"#;
    child.stdin.take().unwrap().write_all(line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let answer = problem(&output);
    assert_eq!((&answer["status"], &answer["outcome"]), (&200.into(), &"acquired".into()));
}

#[test]
fn completions_and_help_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = output(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains("acquire"));
    }
    let help = String::from_utf8(output(&["--help"]).stdout).unwrap();
    assert!(help.contains("Exit codes"), "{help}");
}

#[test]
fn a_node_that_is_told_too_little_does_not_start() {
    let output = output(&["server", "--id", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--http"));
}
