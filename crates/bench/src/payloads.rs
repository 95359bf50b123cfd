//! Results to store.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use tenure_state_machine::{Payload, limits};

/// More of them are not made, nor more bytes.
const MOST: usize = 1024;
const MOST_BYTES: usize = 1024 * 1024;

/// Results of one size and of random bytes, so many that a block of records on disk has hardly any
/// two alike: no store saves by compressing them.
#[derive(Debug, Clone)]
pub struct Payloads {
    first: Arc<Payload>,
    others: Arc<[Arc<Payload>]>,
}

impl Payloads {
    /// Makes results of so many bytes.
    ///
    /// # Errors
    /// When that is more than a record takes.
    pub fn new(bytes: usize) -> anyhow::Result<Self> {
        let random = || {
            let body = random_bytes(bytes.min(limits::BODY_BYTES + 1));
            Payload::new(None, body, BTreeMap::new()).map(Arc::new)
        };
        let first = random().context("the payload is not valid")?;
        let others = (MOST_BYTES / bytes.max(1)).min(MOST);
        let others: Result<_, _> = (0..others).map(|_| random()).collect();
        Ok(Self { first, others: others? })
    }

    /// One of them, drawn.
    #[must_use]
    pub fn any(&self) -> Arc<Payload> {
        Arc::clone(self.others.choose(&mut rand::rng()).unwrap_or(&self.first))
    }

    /// How large each is, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.first.body().len()
    }
}

/// So many bytes that do not compress.
#[must_use]
pub fn random_bytes(bytes: usize) -> Vec<u8> {
    let mut body = vec![0; bytes];
    rand::rng().fill(body.as_mut_slice());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_their_size_and_differ() {
        let payloads = Payloads::new(256).unwrap();
        assert_eq!((payloads.bytes(), payloads.others.len()), (256, MOST));
        assert!(payloads.others.iter().all(|other| other.body().len() == 256));
        assert_ne!(payloads.first.body(), payloads.others[0].body());
        assert_eq!(Payloads::new(limits::BODY_BYTES).unwrap().bytes(), limits::BODY_BYTES);
        assert_eq!(Payloads::new(0).unwrap().bytes(), 0);
        let error = Payloads::new(usize::MAX).unwrap_err();
        assert_eq!(error.to_string(), "the payload is not valid");
    }
}
