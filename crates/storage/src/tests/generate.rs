//! Random entries: few names and short times, so that commands meet each other and deadlines pass.

use std::sync::Arc;

use openraft::EntryPayload;
use openraft::alias::LeaderIdOf;
use openraft::vote::RaftLeaderIdExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Entry, Extend, Holder, Name, Payload, Purge, Release,
    Token,
};

use crate::{LogEntry, LogId, TypeConfig};

pub(super) type Rng = Xoshiro256PlusPlus;

/// Every test draws from here: `TENURE_SEED` gives all of them something else.
pub(super) fn rng(seed: u64) -> Rng {
    let other = std::env::var("TENURE_SEED").map_or(0, |seed| seed.parse().unwrap());
    Rng::seed_from_u64(seed.wrapping_add(1_000_003_u64.wrapping_mul(other)))
}

pub(super) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(LeaderIdOf::<TypeConfig>::new_committed(term, 1), index)
}

pub(super) fn blank(term: u64, index: u64) -> LogEntry {
    LogEntry { log_id: log_id(term, index), payload: EntryPayload::Blank }
}

pub(super) fn normal(term: u64, index: u64, entry: Entry) -> LogEntry {
    LogEntry { log_id: log_id(term, index), payload: EntryPayload::Normal(Arc::new(entry)) }
}

/// Draws entries one after the other. Tokens are drawn from those that may have been given.
#[derive(Debug)]
pub(super) struct Entries {
    rng: Rng,
    now_ms: u64,
    tokens: u64,
}

impl Entries {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: rng(seed), now_ms: 1000, tokens: 0 }
    }

    pub(super) fn next(&mut self, term: u64, index: u64) -> LogEntry {
        if self.rng.random_ratio(1, 10) {
            return blank(term, index);
        }
        self.now_ms += self.rng.random_range(0..20);
        let commands = self.rng.random_range(0..6);
        let commands = (0..commands).map(|_| self.command()).collect();
        normal(term, index, Entry { stamp_ms: self.now_ms, commands })
    }

    fn command(&mut self) -> Command {
        let rng = &mut self.rng;
        let key = format!("k{}", rng.random_range(0..8));
        let name = Name::new(["a", "b"][rng.random_range(0..2)], &key).unwrap();
        let token =
            Token::new(rng.random_range(self.tokens.saturating_sub(8)..=self.tokens).max(1));
        let token = token.unwrap();
        match rng.random_range(0..12) {
            0..6 => {
                self.tokens += 1;
                Command::Acquire(Acquire {
                    name,
                    attempt: Attempt::new(["x", "y", "z"][rng.random_range(0..3)]).unwrap(),
                    holder: Holder::new("h").unwrap(),
                    lease_ms: rng.random_range(2..60),
                    ttl_ms: rng.random_range(1..200),
                    fingerprint: None,
                    not_after_ms: None,
                })
            }
            6..8 => Command::Complete(Complete {
                name,
                token,
                ttl_ms: None,
                payload: rng.random_bool(0.5).then(|| payload(rng.random_range(0..300))),
                not_after_ms: None,
            }),
            8 => Command::Release(Release { name, token, not_after_ms: None }),
            9 => Command::Extend(Extend {
                name,
                token,
                lease_ms: rng.random_range(2..100),
                not_after_ms: None,
            }),
            _ => Command::Purge(Purge { limit: rng.random_range(1..5), not_after_ms: None }),
        }
    }
}

pub(super) fn payload(bytes: usize) -> Arc<Payload> {
    Arc::new(Payload::new(None, vec![b'p'; bytes], Default::default()).unwrap())
}

/// Says what was going on when a test fails: its seed, or the moment of a kill.
#[derive(Debug)]
pub(super) struct Failing(pub(super) String);

impl Drop for Failing {
    #[expect(clippy::print_stderr, reason = "the seed of a failed test is for people")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}
