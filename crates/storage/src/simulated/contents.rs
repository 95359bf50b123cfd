//! What a simulated database holds, its two halves, and its form in a file.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use crate::disk::{Batch, Change, Family, Layout, Visit};

/// Keys and values, by family.
pub(super) type Contents = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

/// A database: what is durable, the batches written since, and all together.
#[derive(Debug)]
pub(super) struct Halves {
    pub(super) layout: Layout,
    durable: Contents,
    pending: VecDeque<Vec<Change>>,
    pub(super) now: Contents,
}

impl Halves {
    pub(super) fn new(layout: Layout, contents: Contents) -> Self {
        Self { layout, durable: contents.clone(), pending: VecDeque::new(), now: contents }
    }

    /// How many batches are not durable.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn write(&mut self, batch: Batch) {
        for change in &batch.changes {
            apply(&mut self.now, change);
        }
        self.pending.push_back(batch.changes);
    }

    pub(super) fn sync(&mut self) {
        self.keep(self.pending.len());
    }

    /// Loses the pending batches but the first `kept`.
    pub(super) fn cut(&mut self, kept: usize) {
        self.keep(kept);
        self.pending.clear();
        self.now = self.durable.clone();
    }

    fn keep(&mut self, batches: usize) {
        for batch in self.pending.drain(..batches.min(self.pending.len())) {
            for change in &batch {
                apply(&mut self.durable, change);
            }
        }
    }
}

fn apply(contents: &mut Contents, change: &Change) {
    match change {
        Change::Put(family, key, value) => {
            contents.insert((tag(*family), key.clone()), value.clone());
        }
        Change::Delete(family, key) => {
            contents.remove(&(tag(*family), key.clone()));
        }
        Change::DeleteRange(family, from, to) => {
            let range = (tag(*family), from.clone())..(tag(*family), to.clone());
            let doomed: Vec<_> = contents.range(range).map(|(key, _)| key.clone()).collect();
            for key in doomed {
                contents.remove(&key);
            }
        }
    }
}

fn tag(family: Family) -> u8 {
    match family {
        Family::Logs => 0,
        Family::Records => 1,
        Family::Deadlines => 2,
        Family::Meta => 3,
    }
}

pub(super) fn get(contents: &Contents, family: Family, key: &[u8]) -> Option<Vec<u8>> {
    contents.get(&(tag(family), key.to_vec())).cloned()
}

pub(super) fn scan(contents: &Contents, family: Family, from: &[u8], visit: Visit<'_>) {
    let range = contents.range((tag(family), from.to_vec())..(tag(family) + 1, vec![]));
    for ((_, key), value) in range {
        if visit(key, value).is_break() {
            return;
        }
    }
}

/// For each key: family, key and value, the latter two after their lengths.
pub(super) fn encode(contents: &Contents) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ((family, key), value) in contents {
        bytes.push(*family);
        for part in [key, value] {
            bytes.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

pub(super) fn decode(mut bytes: &[u8]) -> io::Result<Contents> {
    let mut contents = Contents::new();
    while let Some((family, rest)) = bytes.split_first() {
        let (key, rest) = part(rest)?;
        let (value, rest) = part(rest)?;
        contents.insert((*family, key.to_vec()), value.to_vec());
        bytes = rest;
    }
    Ok(contents)
}

fn part(bytes: &[u8]) -> io::Result<(&[u8], &[u8])> {
    let cut_short = || io::Error::new(io::ErrorKind::InvalidData, "the checkpoint is cut short");
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(cut_short)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    rest.split_at_checked(length).ok_or_else(cut_short)
}
