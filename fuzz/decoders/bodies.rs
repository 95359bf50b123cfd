//! Bodies and queries of HTTP.

use tenure_api::frame::Ask;
use tenure_api::{Refusal, Response, body, query};
use tenure_state_machine::{Attempt, Command, codec};

/// Longest answer to a bad body: it repeats little of what was sent.
const REFUSAL_BYTES: usize = 2000;

fn fresh() -> Attempt {
    Attempt::new("fresh").unwrap()
}

/// Read as every kind of body, and as a query. What is accepted is within all bounds; what is
/// refused can be answered.
pub(crate) fn body(bytes: &[u8]) -> bool {
    let mut commands = Vec::new();
    let mut refusals = Vec::new();
    let mut take = |read: Result<(Command, u64), Refusal>| match read {
        Ok(command) => commands.push(command),
        Err(refusal) => refusals.push(refusal),
    };
    take(body::acquire(bytes, fresh).map(|(acquire, wait)| (Command::Acquire(acquire), wait)));
    take(body::complete(bytes).map(|complete| (Command::Complete(complete), 0)));
    take(body::release(bytes).map(|release| (Command::Release(release), 0)));
    take(body::extend(bytes).map(|extend| (Command::Extend(extend), 0)));
    take(body::purge(bytes).map(|purge| (Command::Purge(purge), 0)));
    match body::batch(bytes, fresh) {
        Ok(results) => results.into_iter().for_each(|one| take(one.map(|command| (command, 0)))),
        Err(refusal) => refusals.push(refusal),
    }
    let mut others = 0;
    let mut note = |refused: Option<Refusal>| match refused {
        None => others += 1,
        Some(refusal) => refusals.push(refusal),
    };
    note(body::wait(bytes).err());
    note(body::name(bytes).err());
    note(body::member(bytes).err());
    note(body::transfer(bytes).err());
    if let Ok(text) = std::str::from_utf8(bytes) {
        note(body::node_id(text).err());
        let pairs = || text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        note(query::list("scope", pairs()).err());
        note(query::consistency(pairs()).err());
    }
    let accepted = commands.len() + others;
    for (command, wait_ms) in commands {
        assert!(codec::encode(&command).is_ok(), "a valid command has no encoding");
        Ask::Command { command, wait_ms }.check().expect("a valid body makes a valid frame");
    }
    for refusal in refusals {
        let response = Response::refused(&refusal);
        serde_json::from_slice::<serde_json::Value>(&response.body).expect("a refusal is JSON");
        assert!(response.body.len() < REFUSAL_BYTES, "a refusal repeats what was sent");
    }
    accepted > 0
}
