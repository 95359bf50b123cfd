//! Draws the next step of a walk: few names, attempts and fingerprints, and times near deadlines,
//! so that commands meet each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::{Rng, RngExt as _};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Entry, Extend, Fingerprint, Holder, Name, Payload, Purge,
    Release, Token, limits,
};

use super::Step;
use super::oracle::Oracle;

/// The names of a walk: some read alike when joined, some differ in bytes alone.
const NAMES: [(&str, &str); 6] =
    [("a", "bc"), ("ab", "c"), ("a", "b"), ("b", "a"), ("a", "é"), ("a", "e\u{301}")];
const ATTEMPTS: [&str; 3] = ["one", "two", "three"];
const HOLDERS: [&str; 2] = ["", "w1"];
const FINGERPRINTS: [Option<&str>; 4] =
    [None, None, Some("aaaaaaaaaaaaaaaa"), Some("BBBBBBBBBBBBBBBB")];
const LEASES_MS: [u64; 8] = [limits::LEASE_MIN_MS, 3, 5, 10, 20, 50, 80, limits::LEASE_MAX_MS];
const TTLS_MS: [u64; 8] = [limits::TTL_MIN_MS, 2, 5, 10, 30, 60, 100, limits::TTL_MAX_MS];
const PURGE_LIMITS: [u32; 4] = [1, 1, 2, limits::PURGE_MAX];

/// The generator of a walk's steps.
#[derive(Debug)]
pub(crate) struct Steps<R> {
    rng: R,
    names: Vec<Name>,
    payloads: Vec<Option<Arc<Payload>>>,
    /// Where the walk's time begins: one walk of sixteen goes over the largest time.
    epoch_ms: u64,
}

/// All names that walks use.
pub(crate) fn names() -> Vec<Name> {
    NAMES.iter().map(|(scope, key)| Name::new(scope, key).unwrap()).collect()
}

impl<R: Rng> Steps<R> {
    pub(crate) fn new(mut rng: R) -> Self {
        let payload = |kind: Option<&str>, body: &str, attributes: &[(&str, &str)]| {
            let attributes: BTreeMap<_, _> = attributes
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect();
            Some(Arc::new(Payload::new(kind.map(str::to_owned), body.into(), attributes).unwrap()))
        };
        let payloads = vec![
            None,
            payload(None, "", &[]),
            payload(None, "done", &[]),
            payload(Some("text/plain"), "é", &[("k", "v"), ("l", "")]),
        ];
        let epoch_ms = if rng.random_ratio(1, 16) { u64::MAX - 400 } else { 0 };
        Self { rng, names: names(), payloads, epoch_ms }
    }

    /// The next step of a walk whose state is `oracle`.
    pub(crate) fn next(&mut self, oracle: &Oracle) -> Step {
        if self.rng.random_ratio(1, 40) {
            return Step::Restore;
        }
        let stamp_ms = self.stamp_ms(oracle);
        let count = match self.rng.random_range(0..20) {
            0 => 0,
            1..12 => 1,
            12..16 => 2,
            _ => self.rng.random_range(3..=6),
        };
        let commands = (0..count).map(|_| self.command(oracle)).collect();
        Step::Entry(Entry { stamp_ms, commands })
    }

    fn stamp_ms(&mut self, oracle: &Oracle) -> u64 {
        let now = oracle.now.max(self.epoch_ms);
        match self.rng.random_range(0..100) {
            0..45 => now.saturating_add(self.rng.random_range(0..=4)),
            45..75 => self.near_deadline(oracle, now),
            75..85 => now.saturating_add(self.rng.random_range(0..=60)),
            85..95 => now.saturating_sub(self.rng.random_range(0..=200)),
            95..98 => 0,
            // Past every lease, and now and then past every ttl.
            98 => now.saturating_add(limits::LEASE_MAX_MS),
            _ => now.saturating_add(limits::TTL_MAX_MS * u64::from(self.rng.random_ratio(1, 4))),
        }
    }

    /// A moment at, just before or just after some deadline that is not far away.
    fn near_deadline(&mut self, oracle: &Oracle, now: u64) -> u64 {
        let deadlines: Vec<u64> = oracle
            .kept
            .iter()
            .flat_map(|kept| [kept.lease_end, kept.ttl_end])
            .filter(|deadline| *deadline >= now && deadline - now < 1000)
            .collect();
        if deadlines.is_empty() {
            return now;
        }
        self.pick(&deadlines).saturating_add(self.rng.random_range(0..=2)).saturating_sub(1)
    }

    fn command(&mut self, oracle: &Oracle) -> Command {
        let name = self.name();
        let not_after_ms = self
            .rng
            .random_ratio(1, 8)
            .then(|| oracle.now.saturating_add(self.rng.random_range(0..=8)).saturating_sub(4));
        match self.rng.random_range(0..100) {
            0..45 => Command::Acquire(Acquire {
                name,
                attempt: Attempt::new(self.pick(&ATTEMPTS)).unwrap(),
                holder: Holder::new(self.pick(&HOLDERS)).unwrap(),
                lease_ms: self.pick(&LEASES_MS),
                ttl_ms: self.pick(&TTLS_MS),
                fingerprint: self.pick(&FINGERPRINTS).map(|text| Fingerprint::new(text).unwrap()),
                not_after_ms,
            }),
            45..60 => Command::Complete(Complete {
                token: self.token(oracle, &name),
                name,
                ttl_ms: self.rng.random_bool(0.5).then(|| self.pick(&TTLS_MS)),
                payload: {
                    let index = self.rng.random_range(0..self.payloads.len());
                    self.payloads[index].clone()
                },
                not_after_ms,
            }),
            60..72 => {
                Command::Release(Release { token: self.token(oracle, &name), name, not_after_ms })
            }
            72..90 => Command::Extend(Extend {
                token: self.token(oracle, &name),
                name,
                lease_ms: self.pick(&LEASES_MS),
                not_after_ms,
            }),
            _ => Command::Purge(Purge { limit: self.pick(&PURGE_LIMITS), not_after_ms }),
        }
    }

    /// The token of the record, mostly; else another record's, an earlier one, or one to come.
    fn token(&mut self, oracle: &Oracle, name: &Name) -> Token {
        let mut tokens: Vec<u64> = oracle.kept.iter().map(|kept| kept.token).collect();
        let own = oracle.kept.iter().find(|k| k.scope == name.scope() && k.key == name.key());
        if let Some(own) = own.filter(|_| self.rng.random_ratio(3, 4)) {
            tokens = vec![own.token];
        }
        if tokens.is_empty() || self.rng.random_ratio(1, 8) {
            tokens = vec![self.rng.random_range(1..=oracle.tokens + 2)];
        }
        Token::new(self.pick(&tokens)).unwrap()
    }

    fn name(&mut self) -> Name {
        let index = self.rng.random_range(0..self.names.len());
        self.names[index].clone()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.random_range(0..from.len())]
    }
}
