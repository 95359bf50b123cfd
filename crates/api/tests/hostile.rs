//! Bodies by chance: random bytes, and valid bodies with something cut, doubled or changed. None
//! panics, none is accepted with a value out of bounds, and every refusal can be answered.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a failed test shows its seed")]

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tenure_api::frame::Ask;
use tenure_api::{Refusal, Response, body, query};
use tenure_state_machine::limits::{BATCH_BYTES, BATCH_COMMANDS, BODY_BYTES};
use tenure_state_machine::{Attempt, Command, codec};

const VALID: [&str; 8] = [
    r#"{"scope":"s","key":"k","attempt":"a","holder":"h","lease_ms":5000,"ttl_ms":60000,"wait_ms":10,"fingerprint":"0123456789abcdef","not_after_ms":9}"#,
    r#"{"scope":"s","key":"k","token":7,"ttl_ms":5,"payload":{"type":"a/b","body":"c2VudA==","attributes":{"a":"b","c":"d"}}}"#,
    r#"{"scope":"s","key":"k","token":7,"payload":{"text":"\u00e9\n"},"not_after_ms":1}"#,
    r#"{"scope":"s","key":"k","token":7,"lease_ms":300}"#,
    r#"{"limit":10}"#,
    r#"{"scope":"s","key":"k","timeout_ms":100}"#,
    r#"{"commands":[{"acquire":{"scope":"s","key":"k"}},{"release":{"scope":"s","key":"k","token":1}},{"complete":{"scope":"s","key":"k","token":1,"payload":{}}}]}"#,
    r#"{"id":4,"http":"127.0.0.1:7604","rpc":"[::1]:7704"}"#,
];

const PIECES: [&str; 16] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "-1",
    "1e999",
    "0.5",
    "18446744073709551616",
    "\\ud800",
    "\"scope\":\"s\",",
    "\u{0}",
    "\u{1f600}",
];

fn fresh() -> Attempt {
    Attempt::new("fresh").unwrap()
}

/// Reads `bytes` as every kind of body; a valid command must pass the check of frames, too.
fn read_as_everything(bytes: &[u8]) -> usize {
    let mut refusals = Vec::new();
    let mut commands = Vec::new();
    match body::acquire(bytes, fresh) {
        Ok((acquire, wait_ms)) => commands.push((Command::Acquire(acquire), wait_ms)),
        Err(refusal) => refusals.push(refusal),
    }
    let others = [
        body::complete(bytes).map(Command::Complete),
        body::release(bytes).map(Command::Release),
        body::extend(bytes).map(Command::Extend),
        body::purge(bytes).map(Command::Purge),
    ];
    for read in others {
        match read {
            Ok(command) => commands.push((command, 0)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    match body::batch(bytes, fresh) {
        Ok(results) => {
            for result in results {
                match result {
                    Ok(command) => commands.push((command, 0)),
                    Err(refusal) => refusals.push(refusal),
                }
            }
        }
        Err(refusal) => refusals.push(refusal),
    }
    refusals.extend(body::wait(bytes).err());
    refusals.extend(body::name(bytes).err());
    refusals.extend(body::member(bytes).err());
    refusals.extend(body::transfer(bytes).err());
    let accepted = commands.len();
    for (command, wait_ms) in commands {
        Ask::Command { command, wait_ms }.check().unwrap();
    }
    for refusal in refusals {
        assert!(matches!(
            refusal,
            Refusal::InvalidArgument { .. } | Refusal::PayloadTooLarge { .. }
        ));
        let response = Response::refused(&refusal);
        serde_json::from_slice::<serde_json::Value>(&response.body).unwrap();
        assert!(response.body.len() < 2000, "a refusal repeats little of what was sent");
    }
    accepted
}

fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    let place = rng.random_range(0..=bytes.len());
    let until = rng.random_range(place..=bytes.len());
    match rng.random_range(0..5) {
        0 => {
            bytes.drain(place..until);
        }
        1 => {
            let doubled = bytes[place..until].to_vec();
            bytes.splice(place..place, doubled);
        }
        2 => {
            let piece = PIECES[rng.random_range(0..PIECES.len())];
            bytes.splice(place..place, piece.bytes());
        }
        3 => {
            let piece = PIECES[rng.random_range(0..PIECES.len())];
            bytes.splice(place..until.min(place + 8), piece.bytes());
        }
        _ => {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = rng.random();
            }
        }
    }
}

/// Rounds, each with randomness of its own; the seed of a round that fails is the last one printed.
fn rounds() -> impl Iterator<Item = (StdRng, usize)> {
    (0..40_000_u32).map(|seed| {
        println!("seed {seed}");
        (StdRng::seed_from_u64(seed.into()), seed as usize)
    })
}

#[test]
fn random_and_mutated_bodies_are_read_or_refused() {
    let mut accepted = 0;
    for (mut rng, round) in rounds() {
        let mut bytes = VALID[round % VALID.len()].as_bytes().to_vec();
        if round % 10 == 9 {
            bytes.resize(rng.random_range(0..200), 0);
            rng.fill_bytes(&mut bytes);
        } else {
            for _ in 0..rng.random_range(0..4) {
                mutate(&mut rng, &mut bytes);
            }
        }
        accepted += read_as_everything(&bytes);
    }
    assert!(accepted > 1000, "too few of the bodies were valid to mean anything: {accepted}");
}

#[test]
fn random_and_mutated_frames_are_decoded_or_refused() {
    let (acquire, wait_ms) = body::acquire(VALID[0].as_bytes(), fresh).unwrap();
    let acquire = Ask::Command { command: Command::Acquire(acquire), wait_ms };
    let complete = body::complete(VALID[1].as_bytes()).map(Command::Complete).unwrap();
    let list = Ask::List(query::list("s", [("prefix", "k")]).unwrap());
    let asks = [acquire, Ask::Batch(vec![complete.clone(), complete]), list];
    let mut decoded = 0;
    for (mut rng, round) in rounds() {
        let mut bytes = codec::encode(&asks[round % asks.len()]).unwrap();
        for _ in 0..rng.random_range(0..3) {
            mutate(&mut rng, &mut bytes);
        }
        if let Ok(ask) = codec::decode::<Ask>(&bytes) {
            decoded += 1;
            let _either = ask.check();
        }
    }
    assert!(decoded > 1000, "too few of the frames were valid to mean anything: {decoded}");
}

#[test]
fn nesting_of_any_depth_is_refused_without_a_stack() {
    const DEEP: usize = 2_000_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = format!("{}1{}", open.repeat(DEEP), close.repeat(DEEP));
        for body in [
            nested.clone(),
            format!(r#"{{"scope":{nested},"key":"k"}}"#),
            format!(r#"{{"scope":"s","key":"k","token":1,"payload":{nested}}}"#),
            format!(r#"{{"commands":{nested}}}"#),
            open.repeat(DEEP),
        ] {
            assert_eq!(read_as_everything(body.as_bytes()), 0);
        }
    }
}

#[test]
fn objects_and_lists_without_end_are_refused() {
    let fields = vec!["\"a\":\"b\""; 1_000_000].join(",");
    let items = vec!["{}"; 1_000_000].join(",");
    for body in [
        format!("{{{fields}}}"),
        format!(r#"{{"scope":"s","key":"k","token":1,"payload":{{"attributes":{{{fields}}}}}}}"#),
        format!(r#"{{"commands":[{items}]}}"#),
    ] {
        assert_eq!(read_as_everything(body.as_bytes()), 0);
    }
}

fn field(refusal: &Refusal) -> Option<&str> {
    let Refusal::InvalidArgument { field, .. } = refusal else { return None };
    field.as_deref()
}

#[test]
fn bytes_that_are_no_utf8_are_refused_without_a_field() {
    let refusal = body::purge(b"{\"limit\":1}\xff").unwrap_err();
    assert_eq!((refusal.code().row().status, field(&refusal)), (400, None));
}

#[test]
fn too_many_attributes_are_refused_by_their_own_limit() {
    let body = |count: usize| {
        let pairs: Vec<_> = (0..count).map(|n| format!("\"a{n}\":\"\"")).collect();
        let pairs = pairs.join(",");
        format!(r#"{{"scope":"s","key":"k","token":1,"payload":{{"attributes":{{{pairs}}}}}}}"#)
    };
    assert!(body::complete(body(64).as_bytes()).is_ok());
    for count in [65, 128, 129, 5000] {
        let refusal = body::complete(body(count).as_bytes()).unwrap_err();
        assert_eq!(field(&refusal), Some("payload.attributes"), "{count}");
    }
}

fn complete_of(size: usize) -> String {
    let text = "x".repeat(size);
    format!(r#"{{"scope":"s","key":"k","token":1,"payload":{{"text":"{text}"}}}}"#)
}

#[test]
fn a_payload_over_its_limit_is_too_large_and_one_at_it_is_not() {
    assert!(body::complete(complete_of(BODY_BYTES).as_bytes()).is_ok());
    let refusal = body::complete(complete_of(BODY_BYTES + 1).as_bytes()).unwrap_err();
    let limit = BODY_BYTES as u64;
    assert_eq!(refusal, Refusal::PayloadTooLarge { limit, size: limit + 1 });
}

#[test]
fn a_batch_has_limits_of_its_own() {
    let batch = |items: &[String]| {
        let items: Vec<_> = items.iter().map(|item| format!("{{\"complete\":{item}}}")).collect();
        body::batch(format!("{{\"commands\":[{}]}}", items.join(",")).as_bytes(), fresh)
    };
    // One payload over its limit is refused in its place and does not count for the batch.
    let results = batch(&[complete_of(BODY_BYTES + 1), complete_of(BODY_BYTES)]).unwrap();
    assert!(matches!(results[..], [Err(Refusal::PayloadTooLarge { .. }), Ok(_)]));
    // Two that fit alone and not together are refused as a whole.
    let refusal = batch(&[complete_of(BATCH_BYTES / 2), complete_of(BATCH_BYTES / 2 + 1)]);
    let limit = BATCH_BYTES as u64;
    assert_eq!(refusal.unwrap_err(), Refusal::PayloadTooLarge { limit, size: limit + 1 });

    assert_eq!(batch(&vec![complete_of(1); BATCH_COMMANDS]).unwrap().len(), BATCH_COMMANDS);
    let refusal = batch(&vec![complete_of(1); BATCH_COMMANDS + 1]).unwrap_err();
    assert_eq!(field(&refusal), Some("commands"));
}

#[test]
fn a_page_token_leads_to_the_key_it_was_made_of() {
    for key in ["k", "a/b?c", "\u{e9}\u{1f600}"] {
        let token = query::page_token(key);
        let list = query::list("s", [("page_token", token.as_str())]).unwrap();
        assert_eq!(list.after.as_deref(), Some(key));
    }
    let refusal = query::list("a:b", []).unwrap_err();
    assert_eq!(field(&refusal), Some("scope"));
    let refusal = query::list("s", [("prefix", "k".repeat(256).as_str())]).unwrap_err();
    assert_eq!(field(&refusal), Some("prefix"));
    assert!(query::none([]).is_ok());
    assert_eq!(field(&query::none([("a", "b")]).unwrap_err()), Some("a"));
}

#[test]
fn a_frame_is_checked_as_strictly_as_a_body() {
    let command = Command::Release(body::release(br#"{"scope":"s","key":"k","token":1}"#).unwrap());
    let purge = Command::Purge(body::purge(b"{}").unwrap());
    let refused = |ask: Ask| ask.check().unwrap_err();
    let ask = Ask::Command { command: command.clone(), wait_ms: 1 };
    assert_eq!(field(&refused(ask)), Some("wait_ms"));
    assert_eq!(field(&refused(Ask::Batch(Vec::new()))), Some("commands"));
    assert_eq!(field(&refused(Ask::Batch(vec![command, purge]))), Some("commands"));
    let (name, _) = body::wait(br#"{"scope":"s","key":"k","timeout_ms":1}"#).unwrap();
    assert_eq!(field(&refused(Ask::Wait { name, timeout_ms: 60_001 })), Some("timeout_ms"));
    let mut list = query::list("s", []).unwrap();
    list.page_size = 0;
    assert_eq!(field(&refused(Ask::List(list))), Some("page_size"));
}
