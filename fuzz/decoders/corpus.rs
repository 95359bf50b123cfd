//! What fuzzing has found, and the seeds that it started from, as a plain test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says by a panic that it failed, and by a line on what"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tenure_decoders::{TARGETS, run};

/// Of all corpora together: what is kept must be worth its room.
const BYTES: u64 = 300_000;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus")
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus().join(target)).expect("each target has a corpus");
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    inputs
}

#[test]
fn every_input_that_was_kept_is_taken_without_a_panic_and_every_seed_is_accepted() {
    for (target, _) in TARGETS {
        let mut seeds = 0;
        for input in inputs(target) {
            eprintln!("{}", input.display());
            let accepted = run(target, &fs::read(&input).unwrap());
            if input.file_name().unwrap().to_string_lossy().starts_with("seed-") {
                assert!(accepted, "a seed is of an older format: run the example seeds again");
                seeds += 1;
            }
        }
        assert!(seeds > 0, "{target} has no seed");
    }
}

#[test]
fn corpora_are_small_and_all_are_of_a_target() {
    let targets: BTreeSet<&str> = TARGETS.into_iter().map(|(name, _)| name).collect();
    let mut bytes = 0;
    for entry in fs::read_dir(corpus()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(targets.contains(name.as_str()), "{name} is the corpus of no target");
        bytes += inputs(&name).iter().map(|input| input.metadata().unwrap().len()).sum::<u64>();
    }
    assert!(bytes < BYTES, "{bytes} bytes are too many: fuzz/run --minimize");
}
