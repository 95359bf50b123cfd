//! Random walks: seeded commands, clock jumps both ways, snapshots and purges, against a naive
//! oracle, with every invariant checked after every step.
//!
//! A failure prints its seed and a shrunk script: put it into `golden/regression_…` once the bug
//! is fixed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test says by a panic that it failed"
)]

mod script;
mod walk;

use walk::cells::{self, Cells};
use walk::shrink;

/// Walks are numbered from here: `TENURE_SEED` takes others than the usual ones.
fn first_walk() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "which walks is the caller's to say")]
    let given = std::env::var("TENURE_SEED");
    WALKS * given.map_or(0, |seed| seed.parse::<u64>().expect("TENURE_SEED is a number"))
}

/// How many walks, of how many steps.
const WALKS: u64 = 2400;
const STEPS: usize = 300;

#[test]
fn every_walk_agrees_with_the_oracle_and_together_they_fill_every_cell() {
    let (mut commands, mut found) = (0, Cells::new());
    for seed in first_walk()..first_walk() + WALKS {
        let (walk, _) = walk::walk(seed, STEPS).unwrap_or_else(|report| panic!("{report}"));
        commands += walk.commands;
        for (cell, count) in walk.cells {
            *found.entry(cell).or_default() += count;
        }
    }
    assert!(commands >= 1_000_000, "{commands} commands are too few");
    let expected = cells::expected();
    let empty: Vec<_> = expected.iter().filter(|cell| !found.contains_key(*cell)).collect();
    let strange: Vec<_> = found.keys().filter(|cell| !expected.contains(cell)).collect();
    assert!(empty.is_empty(), "never met: {empty:#?}");
    assert!(strange.is_empty(), "met, but not in the rules: {strange:#?}");
}

/// A change of this hash is a change of the rules or of a stored format, or of the generator: say
/// which.
#[test]
fn a_pinned_walk_ends_in_a_pinned_state() {
    let (walk, _) = walk::walk(8, 2000).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(walk.hash(), "f66eef84a4c0292673e7f067c19a3b02789cdea2a787e57af32af62ba42a6851");
}

#[test]
fn the_script_of_a_walk_does_what_the_walk_did() {
    for seed in 0..16 {
        let (walk, steps) = walk::walk(seed, STEPS).unwrap_or_else(|report| panic!("{report}"));
        let script = shrink::script(&steps).replace("state\n---", "hash\n---");
        let output = goldenscript::generate(&mut script::Machine::default(), &script).unwrap();
        assert_eq!(output.lines().last(), Some(&*walk.hash()), "seed {seed}");
    }
}

#[test]
fn shrinking_leaves_only_what_the_failure_needs() {
    let items: Vec<u32> = (0..500).collect();
    let shrunk = shrink::list(&items, |items| items.contains(&17) && items.contains(&400));
    assert_eq!(shrunk, [17, 400]);
}
