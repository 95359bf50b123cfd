//! The simulator itself: that it repeats itself, that what is right passes, and that what is wrong
//! does not.

use std::process::{Command, Output};

fn simulate(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-simulation")).args(args).output();
    output.expect("the simulator runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn trace(seed: &str) -> String {
    let report: serde_json::Value =
        serde_json::from_slice(&simulate(&["--seed", seed]).stdout).expect("a run reports");
    report["trace"].as_str().expect("a report has a trace").to_owned()
}

#[test]
fn the_same_seed_is_the_same_run_and_another_one_is_another() {
    let seeds = ["1", "2", "3"];
    let (first, second) = (seeds.map(trace), seeds.map(trace));
    assert_eq!(first, second);
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
}

#[test]
fn some_seeds_are_right() {
    let output = simulate(&["--from", "100", "--seeds", "30"]);
    let said = String::from_utf8_lossy(&output.stderr);
    // 2: so few seeds need not see everything.
    assert!(matches!(output.status.code(), Some(0 | 2)), "{said}{}", stdout(&output));
}

/// A defect that a few seeds find, and what they say of it.
#[track_caller]
fn is_found(defect: &str, word: &str) {
    let output = simulate(&["--from", "200", "--seeds", "12", "--defect", defect]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{defect} was not found: {said}");
    assert!(said.contains(word), "{defect} is not called {word}: {said}");
}

#[test]
fn disks_that_lie_are_found() {
    is_found("lying-disks", "X2");
}

#[test]
fn a_clock_that_runs_wild_is_found() {
    is_found("wild-clock", "X5");
}
