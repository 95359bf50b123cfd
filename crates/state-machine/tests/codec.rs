//! The door to bincode, from outside: what goes in comes out, and hostile bytes are refused. A
//! panic, an endless loop or a huge allocation fails these tests by itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test says by a panic that it failed"
)]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::Bytes;
use tenure_state_machine::{
    Acquire, Answer, Answers, At, Attempt, Command, Complete, Completion, Counters, Entry, Extend,
    Fingerprint, Holder, LeaseLost, Name, Payload, Purge, Record, Release, Replay, State, Token,
    TookOver, codec, limits,
};

const VERSION: u8 = 1;

#[expect(clippy::print_stdout, reason = "a failure shows what a test printed")]
fn rng(seed: u64) -> Xoshiro256PlusPlus {
    println!("seed {seed}");
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

fn name() -> Name {
    Name::new("mail", "order-é").unwrap()
}

fn token(token: u64) -> Token {
    Token::new(token).unwrap()
}

fn payload() -> Arc<Payload> {
    let attributes = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".into(), "".into())]);
    Arc::new(Payload::new(Some("text/plain".into()), vec![0, 255, 10], attributes).unwrap())
}

/// Every command, with and without its options.
fn commands() -> Vec<Command> {
    let acquire = Acquire {
        name: name(),
        attempt: Attempt::new("one").unwrap(),
        holder: Holder::default(),
        lease_ms: limits::LEASE_MAX_MS,
        ttl_ms: limits::TTL_MAX_MS,
        fingerprint: None,
        not_after_ms: None,
    };
    let complete = Complete {
        name: name(),
        token: token(limits::TOKEN_MAX),
        ttl_ms: None,
        payload: None,
        not_after_ms: None,
    };
    vec![
        Command::Acquire(acquire.clone()),
        Command::Acquire(Acquire {
            holder: Holder::new("w1").unwrap(),
            fingerprint: Some(Fingerprint::new("0123456789abcdef").unwrap()),
            not_after_ms: Some(u64::MAX),
            ..acquire
        }),
        Command::Complete(complete.clone()),
        Command::Complete(Complete { payload: Some(Arc::default()), ..complete.clone() }),
        Command::Complete(Complete { ttl_ms: Some(1), payload: Some(payload()), ..complete }),
        Command::Release(Release { name: name(), token: token(1), not_after_ms: Some(0) }),
        Command::Extend(Extend { name: name(), token: token(2), lease_ms: 2, not_after_ms: None }),
        Command::Purge(Purge { limit: limits::PURGE_MAX, not_after_ms: None }),
    ]
}

fn entry() -> Entry {
    Entry { stamp_ms: 1000, commands: commands() }
}

/// Every answer.
fn answers() -> Answers {
    let completion = Completion { token: token(3), completed_ms: 4, expires_ms: 5 };
    let fingerprint = Fingerprint::new("0123456789abcdef").unwrap();
    let took_over = TookOver { token: token(1), holder: Holder::default(), acquired_ms: 7 };
    let acquired = |resumed, took_over| Answer::Acquired {
        token: token(2),
        lease_until_ms: 8,
        ttl_until_ms: 9,
        resumed,
        took_over,
    };
    let replay = |payload| {
        Answer::Replay(Replay { token: token(3), payload, completed_ms: 4, expires_ms: 5 })
    };
    let answers = vec![
        acquired(false, Some(took_over)),
        acquired(true, None),
        replay(None),
        replay(Some(payload())),
        Answer::InProgress {
            retry_after_ms: 6,
            holder: Holder::new("w1").unwrap(),
            token: token(2),
            fingerprint_differs: true,
        },
        Answer::FingerprintMismatch { stored: fingerprint.clone(), received: fingerprint },
        Answer::Completed(completion.clone()),
        Answer::AlreadyComplete(completion),
        Answer::Released,
        Answer::Extended { token: token(2), lease_until_ms: 10 },
        Answer::LeaseLost(LeaseLost::Absent),
        Answer::LeaseLost(LeaseLost::Stolen { current_token: token(4) }),
        Answer::LeaseLost(LeaseLost::Completed { current_token: token(4) }),
        Answer::Purged { deleted: 3, more: true },
        Answer::TooLate,
    ];
    Answers { now_ms: 1000, answers }
}

fn records() -> Vec<(Name, Record)> {
    let record = |state| Record {
        token: token(5),
        holder: Holder::new("w1").unwrap(),
        fingerprint: Some(Fingerprint::new("0123456789abcdef").unwrap()),
        acquired_ms: 1000,
        state,
    };
    let in_progress = State::InProgress {
        attempt: Attempt::new("one").unwrap(),
        ttl_ms: 60_000,
        lease_until_ms: 2000,
        ttl_until_ms: 61_000,
    };
    let complete = |payload| State::Complete { completed_ms: 1500, expires_ms: 61_500, payload };
    vec![
        (name(), record(in_progress)),
        (name(), record(complete(None))),
        (name(), record(complete(Some(Arc::default())))),
        (name(), record(complete(Some(payload())))),
    ]
}

fn at() -> At {
    At { index: 7, slot: Some(3), term: 2, now_ms: 1000 }
}

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    assert_eq!(codec::decode::<T>(&codec::encode(value).unwrap()).unwrap(), *value);
    assert_eq!(codec::unseal::<T>(VERSION, &codec::seal(VERSION, value).unwrap()).unwrap(), *value);
}

#[test]
fn what_goes_in_comes_out() {
    commands().iter().for_each(comes_back);
    answers().answers.iter().for_each(comes_back);
    records().iter().for_each(comes_back);
    comes_back(&entry());
    comes_back(&Entry { stamp_ms: u64::MAX, commands: Vec::new() });
    comes_back(&answers());
    comes_back(&Counters { clock_ms: u64::MAX, last_token: limits::TOKEN_MAX });
    comes_back(&At { slot: None, ..at() });
    comes_back(&at());
}

/// Each side of every limit: the last value that is read, the first that is not.
#[test]
fn reading_enforces_the_limits_of_every_type() {
    reads::<Token, _>(&1_u64, &limits::TOKEN_MAX);
    refuses::<Token, _>(&0_u64);
    refuses::<Token, _>(&(limits::TOKEN_MAX + 1));

    reads::<Attempt, _>(&"a", &"é".repeat(limits::ATTEMPT_CHARS));
    refuses::<Attempt, _>(&"");
    refuses::<Attempt, _>(&"a".repeat(limits::ATTEMPT_CHARS + 1));

    reads::<Holder, _>(&"", &"é".repeat(limits::HOLDER_CHARS));
    refuses::<Holder, _>(&"h".repeat(limits::HOLDER_CHARS + 1));

    reads::<Fingerprint, _>(
        &"0".repeat(limits::FINGERPRINT_MIN),
        &"f".repeat(limits::FINGERPRINT_MAX),
    );
    refuses::<Fingerprint, _>(&"0".repeat(limits::FINGERPRINT_MIN - 1));
    refuses::<Fingerprint, _>(&"0".repeat(limits::FINGERPRINT_MAX + 1));
    refuses::<Fingerprint, _>(&"0123456789abcdeg");
    refuses::<Fingerprint, _>(&"é".repeat(limits::FINGERPRINT_MIN));
    let upper: Fingerprint = codec::decode(&codec::encode(&"0123456789ABCDEF").unwrap()).unwrap();
    assert_eq!(upper.as_str(), "0123456789abcdef");
}

fn reads<T: DeserializeOwned, V: Serialize>(least: &impl Serialize, most: &V) {
    codec::decode::<T>(&codec::encode(least).unwrap()).map(drop).unwrap();
    codec::decode::<T>(&codec::encode(most).unwrap()).map(drop).unwrap();
}

fn refuses<T: DeserializeOwned, V: Serialize + ?Sized>(value: &V) {
    let read = codec::decode::<T>(&codec::encode(&value).unwrap()).map(drop);
    assert!(matches!(read, Err(codec::DecodeError::Malformed(_))), "{read:?}");
}

#[test]
fn reading_enforces_the_limits_of_names() {
    let stored = |scope: &str, key: &[u8]| {
        let length = u16::try_from(scope.len()).unwrap();
        [&length.to_be_bytes(), scope.as_bytes(), key].concat()
    };
    let reads = |stored: Vec<u8>| {
        let bytes = codec::encode(&Bytes::new(&stored)).unwrap();
        codec::decode::<Name>(&bytes).map(|name| assert_eq!(name.as_stored(), stored)).is_ok()
    };
    let (scope, key) = ("é".repeat(limits::SCOPE_CHARS), "漢".repeat(limits::KEY_CHARS));
    assert!(reads(stored(&scope, key.as_bytes())));
    assert!(reads(stored("a", b"a:b")));

    assert!(!reads(stored(&"s".repeat(limits::SCOPE_CHARS + 1), b"k")));
    assert!(!reads(stored("s", &b"k".repeat(limits::KEY_CHARS + 1))));
    assert!(!reads(stored("", b"k")));
    assert!(!reads(stored("s", b"")));
    assert!(!reads(stored(" ", b"k")));
    assert!(!reads(stored("a:b", b"k")));
    assert!(!reads(stored("s", b"a\nb")));
    assert!(!reads(stored("s", b"\xff")));
    assert!(!reads(stored("é", b"k")[..3].to_vec()), "the scope ends within a character");
    assert!(!reads([0, 9].to_vec()), "the scope is longer than all");
    assert!(!reads([0].to_vec()));
    assert!(!reads(Vec::new()));
}

#[test]
fn reading_enforces_the_limits_of_payloads() {
    let reads = |kind: Option<&str>, body: usize, attributes: &BTreeMap<String, String>| {
        let parts = (kind, Bytes::new(&vec![7; body]).to_owned(), attributes);
        let bytes = codec::encode(&parts).unwrap();
        let read = codec::decode::<Payload>(&bytes);
        let made = Payload::new(kind.map(str::to_owned), vec![7; body], attributes.clone());
        assert_eq!(read.as_ref().ok(), made.as_ref().ok(), "reading and making differ");
        read.is_ok()
    };
    let pairs = |count: usize| (0..count).map(|i| (i.to_string(), String::new())).collect();
    let bytes = |size: usize| BTreeMap::from([("k".to_owned(), "v".repeat(size - 1))]);
    let none = BTreeMap::new();

    assert!(reads(None, limits::BODY_BYTES, &none));
    assert!(!reads(None, limits::BODY_BYTES + 1, &none));
    assert!(reads(Some(&"t".repeat(limits::TYPE_BYTES)), 0, &none));
    assert!(!reads(Some(&"t".repeat(limits::TYPE_BYTES + 1)), 0, &none));
    assert!(!reads(Some(""), 0, &none));
    assert!(!reads(Some("a\r\nb"), 0, &none));
    assert!(!reads(Some("\0"), 0, &none));
    assert!(reads(None, 0, &pairs(limits::ATTRIBUTES)));
    assert!(!reads(None, 0, &pairs(limits::ATTRIBUTES + 1)));
    assert!(reads(None, 0, &bytes(limits::ATTRIBUTES_BYTES)));
    assert!(!reads(None, 0, &bytes(limits::ATTRIBUTES_BYTES + 1)));
}

/// Plain numbers have no type of their own: `check` holds their limits.
#[test]
fn a_command_that_was_read_is_checked() {
    let fields = |change: &dyn Fn(&mut Command)| {
        let refused = commands().into_iter().filter_map(|mut command| {
            assert_eq!(command.check(), Ok(()));
            change(&mut command);
            command.check().err().map(|invalid| invalid.to_string())
        });
        refused.map(|text| text.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for wrong in [0, limits::LEASE_MIN_MS - 1, limits::LEASE_MAX_MS + 1, u64::MAX] {
        let found = fields(&|command| match command {
            Command::Acquire(acquire) => acquire.lease_ms = wrong,
            Command::Extend(extend) => extend.lease_ms = wrong,
            Command::Complete(_) | Command::Release(_) | Command::Purge(_) => {}
        });
        assert_eq!(found, ["lease_ms"; 3]);
    }
    for wrong in [0, limits::TTL_MAX_MS + 1, u64::MAX] {
        let found = fields(&|command| match command {
            Command::Acquire(acquire) => acquire.ttl_ms = wrong,
            Command::Complete(complete) => complete.ttl_ms = Some(wrong),
            Command::Extend(_) | Command::Release(_) | Command::Purge(_) => {}
        });
        assert_eq!(found, ["ttl_ms"; 5]);
    }
    for wrong in [0, limits::PURGE_MAX + 1, u32::MAX] {
        let found = fields(&|command| {
            if let Command::Purge(purge) = command {
                purge.limit = wrong;
            }
        });
        assert_eq!(found, ["limit"]);
    }
}

#[test]
fn bytes_that_are_cut_or_have_a_tail_are_refused() {
    fn cut<T: DeserializeOwned>(bytes: &[u8]) {
        for length in 0..bytes.len() {
            assert!(codec::decode::<T>(&bytes[..length]).is_err(), "cut to {length} bytes");
        }
        assert!(codec::decode::<T>(&[bytes, &[0]].concat()).is_err(), "with a tail");
    }
    cut::<Entry>(&codec::encode(&entry()).unwrap());
    cut::<Answers>(&codec::encode(&answers()).unwrap());
    cut::<At>(&codec::encode(&at()).unwrap());
    cut::<Counters>(&codec::encode(&Counters::default()).unwrap());
    for record in records() {
        cut::<(Name, Record)>(&codec::encode(&record).unwrap());
    }
}

/// Reads the bytes as everything there is. Whatever is made of them can be written again.
fn read_as_all(bytes: &[u8]) {
    fn read<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
        if let Ok(value) = codec::decode::<T>(bytes) {
            comes_back(&value);
        }
    }
    read::<Entry>(bytes);
    read::<Command>(bytes);
    read::<Answers>(bytes);
    read::<Answer>(bytes);
    read::<(Name, Record)>(bytes);
    read::<Payload>(bytes);
    read::<Counters>(bytes);
    read::<At>(bytes);
    read::<Name>(bytes);
    read::<Fingerprint>(bytes);
}

#[test]
fn random_and_damaged_bytes_are_read_without_harm() {
    let mut rng = rng(1);
    for _ in 0..20_000 {
        let length = rng.random_range(0..200);
        // Small numbers are likely tags and lengths.
        let most = if rng.random_bool(0.5) { 4 } else { 255 };
        let bytes: Vec<u8> = (0..length).map(|_| rng.random_range(0..=most)).collect();
        read_as_all(&bytes);
    }
    let mut whole = vec![codec::encode(&entry()).unwrap(), codec::encode(&answers()).unwrap()];
    whole.extend(records().iter().map(|record| codec::encode(record).unwrap()));
    for bytes in &mut whole {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            read_as_all(bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// A length that was put in place of eight bytes, anywhere, allocates nothing to speak of.
#[test]
fn huge_lengths_allocate_little() {
    let before = peak_kib();
    let mut whole = vec![codec::encode(&entry()).unwrap(), codec::encode(&answers()).unwrap()];
    whole.extend(records().iter().map(|record| codec::encode(record).unwrap()));
    for bytes in whole {
        for at in 0..=bytes.len() - 8 {
            for length in [1 << 34, 1 << 40, 1 << 62, u64::MAX] {
                let mut bytes = bytes.clone();
                bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(length));
                read_as_all(&bytes);
            }
        }
    }
    let grown = peak_kib().saturating_sub(before);
    assert!(grown < 4 << 20, "the address space grew by {grown} KiB");
}

/// The most address space that this process has had, in KiB; other tests take some of it, but not
/// the 16 GiB that the smallest of those lengths asks for. Zero where there is no such file.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
}

#[test]
fn a_value_that_is_too_large_is_not_written_and_not_read() {
    let limit = usize::try_from(codec::ENCODED_BYTES).unwrap();
    let fits = vec![0; limit - 8];
    let bytes = codec::encode(&Bytes::new(&fits)).unwrap();
    assert_eq!(bytes.len(), limit);
    assert!(codec::decode::<serde_bytes::ByteBuf>(&bytes).is_ok());

    let over = [fits, vec![0]].concat();
    assert!(codec::encode(&Bytes::new(&over)).is_err());
    let bytes = [&u64::to_le_bytes(over.len() as u64), &over[..]].concat();
    assert!(codec::decode::<serde_bytes::ByteBuf>(&bytes).is_err());
}

/// The largest command that the limits allow has an encoding.
#[test]
fn a_command_of_every_limit_is_written() {
    let attributes = (0..limits::ATTRIBUTES)
        .map(|i| (format!("{i:03}"), "v".repeat(limits::ATTRIBUTES_BYTES / limits::ATTRIBUTES - 3)))
        .collect();
    let kind = Some("t".repeat(limits::TYPE_BYTES));
    let payload = Payload::new(kind, vec![255; limits::BODY_BYTES], attributes).unwrap();
    let scope = "\u{10ffff}".repeat(limits::SCOPE_CHARS);
    let key = "\u{10ffff}".repeat(limits::KEY_CHARS);
    let command = Command::Complete(Complete {
        name: Name::new(&scope, &key).unwrap(),
        token: token(limits::TOKEN_MAX),
        ttl_ms: Some(limits::TTL_MAX_MS),
        payload: Some(Arc::new(payload)),
        not_after_ms: Some(u64::MAX),
    });
    comes_back(&Entry { stamp_ms: u64::MAX, commands: vec![command] });
}

#[test]
fn a_sealed_value_with_any_one_bit_flipped_is_refused() {
    let mut rng = rng(2);
    for _ in 0..300 {
        let count = rng.random_range(0..=2);
        let all = commands();
        let commands = (0..count).map(|_| all[rng.random_range(0..all.len())].clone()).collect();
        let entry = Entry { stamp_ms: rng.random(), commands };
        let mut sealed = codec::seal(VERSION, &entry).unwrap();
        for bit in 0..sealed.len() * 8 {
            sealed[bit / 8] ^= 1 << (bit % 8);
            let refused = codec::unseal::<Entry>(VERSION, &sealed).unwrap_err();
            let version = matches!(refused, codec::DecodeError::Version { known: VERSION, .. });
            let checksum = matches!(refused, codec::DecodeError::Checksum { .. });
            assert_eq!((version, checksum), (bit < 8, bit >= 8), "bit {bit}: {refused}");
            sealed[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(codec::unseal::<Entry>(VERSION, &sealed).unwrap(), entry);
    }
}

#[test]
fn sealed_bytes_of_another_version_or_length_are_refused() {
    let sealed = codec::seal(VERSION, &entry()).unwrap();
    for known in (0..=u8::MAX).filter(|known| *known != VERSION) {
        let refused = codec::unseal::<Entry>(known, &sealed);
        assert!(matches!(refused, Err(codec::DecodeError::Version { found: VERSION, .. })));
    }
    for length in 0..sealed.len() {
        let refused = codec::unseal::<Entry>(VERSION, &sealed[..length]).unwrap_err();
        assert_eq!(matches!(refused, codec::DecodeError::Short(_)), length < 5, "{refused}");
    }
    codec::unseal::<Entry>(VERSION, &[&sealed[..], &[0]].concat()).unwrap_err();
    // Intact, but not of this type.
    let refused = codec::unseal::<Counters>(VERSION, &sealed);
    assert!(matches!(refused, Err(codec::DecodeError::Malformed(_))));
}

#[test]
fn random_bytes_are_no_sealed_value() {
    let mut rng = rng(3);
    for _ in 0..20_000 {
        let length = rng.random_range(0..100);
        let mut bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        if let Some(version) = bytes.first_mut() {
            *version = VERSION;
        }
        codec::unseal::<Entry>(VERSION, &bytes).unwrap_err();
    }
}
