//! Commands as tests write them: a short lease, a long ttl, one scope.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_api::frame::Decided;
use tenure_client::new_attempt;
use tenure_state_machine::{
    Acquire, Answer, Command, Complete, Extend, Holder, Name, Payload, Release, Token,
};

/// A name in the scope of all tests.
#[must_use]
pub fn name(key: &str) -> Name {
    Name::new("test", key).unwrap()
}

/// An acquire by a fresh attempt, with a lease of 500 ms and a ttl of a minute.
#[must_use]
pub fn acquire(key: &str) -> Acquire {
    Acquire {
        name: name(key),
        attempt: new_attempt(),
        holder: Holder::new("a test").unwrap(),
        lease_ms: 500,
        ttl_ms: 60_000,
        fingerprint: None,
        not_after_ms: None,
    }
}

/// A complete with the payload that [`payload`] makes of the key.
#[must_use]
pub fn complete(key: &str, token: Token) -> Command {
    let payload = Some(payload(key));
    Command::Complete(Complete {
        name: name(key),
        token,
        ttl_ms: None,
        payload,
        not_after_ms: None,
    })
}

/// A release.
#[must_use]
pub fn release(key: &str, token: Token) -> Command {
    Command::Release(Release { name: name(key), token, not_after_ms: None })
}

/// An extend.
#[must_use]
pub fn extend(key: &str, token: Token, lease_ms: u64) -> Command {
    Command::Extend(Extend { name: name(key), token, lease_ms, not_after_ms: None })
}

/// The result that actions of tests have.
#[must_use]
pub fn payload(text: &str) -> Arc<Payload> {
    Arc::new(Payload::new(None, text.as_bytes().to_vec(), BTreeMap::new()).unwrap())
}

/// The token of an acquired record.
///
/// # Panics
/// When the answer is another.
pub fn token_of(decided: &Decided) -> Token {
    let Answer::Acquired { token, .. } = decided.answer else {
        panic!("not acquired: {decided:?}");
    };
    token
}
