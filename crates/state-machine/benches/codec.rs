//! What it costs to seal an entry for the disk, and to read it back.
//!
//!     cargo bench --profile release -p tenure-state-machine --bench codec

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that fails should say where")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Entry, Holder, Name, Payload, Token, codec,
};

fn name(number: u64) -> Name {
    Name::new("bench", &format!("{number:032x}")).unwrap()
}

fn acquire(number: u64) -> Command {
    Command::Acquire(Acquire {
        name: name(number),
        attempt: Attempt::new(format!("{number:036x}")).unwrap(),
        holder: Holder::new("host-1").unwrap(),
        lease_ms: 30_000,
        ttl_ms: 86_400_000,
        fingerprint: None,
        not_after_ms: None,
    })
}

fn complete(number: u64) -> Command {
    let payload = Some(Arc::new(Payload::new(None, vec![7; 256], Default::default()).unwrap()));
    let (name, token) = (name(number), Token::new(number + 1).unwrap());
    Command::Complete(Complete { name, token, ttl_ms: None, payload, not_after_ms: None })
}

fn benchmarks(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec");
    type Make = fn(u64) -> Command;
    for (kind, command) in [("acquires", acquire as Make), ("completes", complete)] {
        for number in [1, 64] {
            let commands = (0..number).map(command).collect();
            let entry = Entry { stamp_ms: 1000, commands };
            let bytes = codec::seal(1, &entry).unwrap();
            group.throughput(Throughput::Bytes(bytes.len() as u64));
            group.bench_function(format!("seal {number} {kind}"), |b| {
                b.iter(|| codec::seal(1, black_box(&entry)).unwrap());
            });
            group.bench_function(format!("unseal {number} {kind}"), |b| {
                b.iter(|| codec::unseal::<Entry>(1, black_box(&bytes)).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group!(all, benchmarks);
criterion_main!(all);
