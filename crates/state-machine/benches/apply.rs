//! What an entry of 64 commands costs the state machine, beside 100 000 other records.
//!
//!     cargo bench --profile release -p tenure-state-machine --bench apply

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that fails should say where")]

use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tenure_state_machine::{
    Acquire, Answer, Attempt, Command, Complete, Counters, Entry, Extend, Holder, MemoryStore,
    Name, Payload, Purge, Token, apply,
};

/// Records beside those of the measured commands.
const OTHERS: u64 = 100_000;
/// Commands of an entry.
const COMMANDS: u64 = 64;
/// When the others' ttl passes, in milliseconds: not within a run.
const LATE_MS: u64 = 1_000_000_000;

struct Machine {
    counters: Counters,
    store: MemoryStore,
    stamp_ms: u64,
}

impl Machine {
    /// With [`OTHERS`] COMPLETE records of 256 bytes.
    fn new() -> Self {
        let (counters, store) = (Counters::default(), MemoryStore::default());
        let mut machine = Self { counters, store, stamp_ms: 1 };
        for first in (0..OTHERS).step_by(64) {
            let numbers = first..OTHERS.min(first + COMMANDS);
            let tokens = tokens(&machine.run(acquires(numbers.clone())));
            machine.run(completes(numbers, &tokens, LATE_MS));
        }
        machine
    }

    fn run(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        let entry = Entry { stamp_ms: self.stamp_ms, commands };
        apply(&mut self.counters, &mut self.store, &entry).unwrap().answers
    }
}

fn name(number: u64) -> Name {
    // Neighbours in number are none in order, as with UUIDs.
    Name::new("bench", &format!("{:032x}", u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .unwrap()
}

fn acquires(numbers: std::ops::Range<u64>) -> Vec<Command> {
    let acquire = |number| {
        Command::Acquire(Acquire {
            name: name(number),
            attempt: Attempt::new(format!("{number:032x}")).unwrap(),
            holder: Holder::default(),
            lease_ms: 30_000,
            ttl_ms: LATE_MS,
            fingerprint: None,
            not_after_ms: None,
        })
    };
    numbers.map(acquire).collect()
}

fn completes(numbers: std::ops::Range<u64>, tokens: &[Token], ttl_ms: u64) -> Vec<Command> {
    let payload = Arc::new(Payload::new(None, vec![7; 256], Default::default()).unwrap());
    let complete = |(number, token): (u64, &Token)| {
        let (name, payload) = (name(number), Some(Arc::clone(&payload)));
        let (token, ttl_ms) = (*token, Some(ttl_ms));
        Command::Complete(Complete { name, token, ttl_ms, payload, not_after_ms: None })
    };
    numbers.zip(tokens).map(complete).collect()
}

fn tokens(answers: &[Answer]) -> Vec<Token> {
    let token = |answer: &Answer| {
        let Answer::Acquired { token, .. } = answer else {
            unreachable!("an acquire of a fresh key came to {answer:?}")
        };
        *token
    };
    answers.iter().map(token).collect()
}

fn benchmarks(c: &mut Criterion) {
    let mut machine = Machine::new();
    let mut group = c.benchmark_group("apply");
    let fresh = OTHERS..OTHERS + COMMANDS;

    // The store is as before after each round.
    group.throughput(Throughput::Elements(3 * COMMANDS));
    group.bench_function("acquire, complete and purge 64", |b| {
        b.iter(|| {
            let tokens = tokens(&machine.run(acquires(fresh.clone())));
            machine.run(completes(fresh.clone(), &tokens, 1));
            machine.stamp_ms += 1;
            machine.run(vec![Command::Purge(Purge { limit: 64, not_after_ms: None })])
        });
    });

    group.throughput(Throughput::Elements(COMMANDS));
    let mut first = 0;
    group.bench_function("replay 64", |b| {
        let batch = || {
            first = (first + COMMANDS) % (OTHERS - COMMANDS);
            // Other attempts than those that completed them.
            let mut commands = acquires(first..first + COMMANDS);
            for command in &mut commands {
                if let Command::Acquire(acquire) = command {
                    acquire.attempt = Attempt::new("another").unwrap();
                }
            }
            commands
        };
        b.iter_batched(batch, |commands| machine.run(commands), BatchSize::SmallInput);
    });

    let held = tokens(&machine.run(acquires(fresh.clone())));
    group.bench_function("extend 64", |b| {
        let batch = || {
            let extend = |(number, token): (u64, &Token)| {
                let (name, token, lease_ms) = (name(number), *token, 30_000);
                Command::Extend(Extend { name, token, lease_ms, not_after_ms: None })
            };
            fresh.clone().zip(&held).map(extend).collect()
        };
        b.iter_batched(
            batch,
            |commands| {
                machine.stamp_ms += 1;
                machine.run(commands)
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(all, benchmarks);
criterion_main!(all);
