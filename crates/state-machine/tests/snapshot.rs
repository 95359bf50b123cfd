//! A logical snapshot that was damaged is an error, whatever the damage.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test says by a panic that it failed"
)]

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use tenure_state_machine::snapshot::{self, RestoreError};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Counters, Entry, Holder, MemoryStore, Name, Token, apply,
    codec,
};

/// Five records, two of them COMPLETE.
fn state() -> (Counters, MemoryStore) {
    let (mut counters, mut store) = (Counters::default(), MemoryStore::default());
    let name = |i: u64| Name::new("mail", &format!("order-{i}")).unwrap();
    let acquire = |i: u64| {
        Command::Acquire(Acquire {
            name: name(i),
            attempt: Attempt::new("one").unwrap(),
            holder: Holder::default(),
            lease_ms: 1000 + i,
            ttl_ms: 2000 + i,
            fingerprint: None,
            not_after_ms: None,
        })
    };
    let complete = |i: u64| {
        Command::Complete(Complete {
            name: name(i),
            token: Token::new(i).unwrap(),
            ttl_ms: None,
            payload: (i == 2).then(Default::default),
            not_after_ms: None,
        })
    };
    let commands = (1..=5).map(acquire).chain((1..=2).map(complete)).collect();
    let Ok(_) = apply(&mut counters, &mut store, &Entry { stamp_ms: 1000, commands });
    (counters, store)
}

/// The snapshot, and where its chunks begin: a length and its bytes each.
fn written() -> (Vec<u8>, Vec<usize>) {
    let (counters, store) = state();
    let (mut bytes, mut parts) = (Vec::new(), Vec::new());
    snapshot::write(counters, &store, |part| {
        parts.push(bytes.len());
        bytes.extend_from_slice(part);
    })
    .unwrap();
    (bytes, parts.into_iter().step_by(2).collect())
}

#[test]
fn what_was_written_is_restored() {
    let (bytes, chunks) = written();
    assert_eq!(chunks.len(), 8, "the counters, five records, the end, their number");
    assert_eq!(snapshot::restore(&bytes).unwrap(), state());
}

#[test]
fn a_lost_record_is_an_error() {
    let (bytes, chunks) = written();
    let lost: Vec<u8> = [&bytes[..chunks[2]], &bytes[chunks[3]..]].concat();
    let restored = snapshot::restore(&lost);
    assert!(matches!(restored, Err(RestoreError::Count { found: 4, written: 5 })), "{restored:?}");
}

#[test]
fn any_one_flipped_bit_is_an_error() {
    let (mut bytes, _) = written();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(snapshot::restore(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn any_cut_and_any_tail_is_an_error() {
    let (bytes, _) = written();
    for length in 0..bytes.len() {
        assert!(snapshot::restore(&bytes[..length]).is_err(), "cut to {length} bytes");
    }
    for tail in [&[0][..], &[0, 0, 0, 0], &bytes] {
        let refused = snapshot::restore(&[&bytes, tail].concat());
        assert!(matches!(refused, Err(RestoreError::Length)), "{refused:?}");
    }
}

#[test]
fn records_that_are_repeated_or_out_of_order_are_an_error() {
    let (bytes, chunks) = written();
    let chunk = |i: usize| &bytes[chunks[i]..chunks[i + 1]];
    let head = &bytes[..chunks[1]];
    let tail = &bytes[chunks[3]..];

    let whole = [head, chunk(1), chunk(2), tail].concat();
    assert_eq!(whole, bytes);
    for wrong in [
        [head, chunk(2), chunk(1), tail].concat(),
        [head, chunk(1), chunk(1), chunk(2), tail].concat(),
        [head, chunk(1), chunk(2), chunk(1), tail].concat(),
    ] {
        let refused = snapshot::restore(&wrong);
        assert!(matches!(refused, Err(RestoreError::Order)), "{refused:?}");
    }
    let twice = [head, head, chunk(1), chunk(2), tail].concat();
    assert!(matches!(snapshot::restore(&twice), Err(RestoreError::Chunk(_))));
}

#[test]
fn another_version_is_an_error_that_says_so() {
    let (bytes, chunks) = written();
    for version in [0, 2, 255] {
        let mut bytes = bytes.clone();
        bytes[4] = version;
        let refused = snapshot::restore(&bytes).unwrap_err();
        let RestoreError::Chunk(codec::DecodeError::Version { found, known: 1 }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(found, version);
    }
    let mut bytes = bytes.clone();
    bytes[chunks[2] + 4] = 2;
    assert!(matches!(
        snapshot::restore(&bytes),
        Err(RestoreError::Chunk(codec::DecodeError::Version { found: 2, .. }))
    ));
}

#[test]
fn random_bytes_and_huge_lengths_are_an_error() {
    for seed in 0..20_000 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let length = rng.random_range(0..100);
        let bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        assert!(snapshot::restore(&bytes).is_err(), "seed {seed}");
    }
    let (bytes, chunks) = written();
    for chunk in chunks {
        for length in [u32::MAX, u32::MAX / 2, 1 << 24] {
            let mut bytes = bytes.clone();
            bytes[chunk..chunk + 4].copy_from_slice(&length.to_le_bytes());
            assert!(matches!(snapshot::restore(&bytes), Err(RestoreError::Length)));
        }
    }
}
