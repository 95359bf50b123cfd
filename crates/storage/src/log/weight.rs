//! How heavy the log is, so that it can be cut by bytes as well as by entries.

use std::collections::VecDeque;

/// Bytes between two marks: how exact the answers are.
const MARK_BYTES: u64 = 4 * 1024 * 1024;

/// A running total of bytes with a mark now and then.
#[derive(Debug, Default)]
pub(super) struct Weight {
    total: u64,
    /// Index of an entry, and the total with it; both grow.
    marks: VecDeque<(u64, u64)>,
}

impl Weight {
    /// Counts an entry.
    pub(super) fn add(&mut self, index: u64, bytes: usize) {
        self.total = self.total.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        let marked = self.marks.back().map_or(0, |(_, total)| *total);
        if self.marks.is_empty() || self.total - marked >= MARK_BYTES {
            self.marks.push_back((index, self.total));
        }
    }

    /// Bytes of the entries after `index`, to within [`MARK_BYTES`].
    pub(super) fn after(&self, index: u64) -> u64 {
        let reached = self.marks.partition_point(|(marked, _)| *marked <= index);
        let before = reached.checked_sub(1).and_then(|mark| self.marks.get(mark));
        self.total - before.map_or(0, |(_, total)| *total)
    }

    /// Forgets the entries from `first` on.
    pub(super) fn truncate(&mut self, first: u64) {
        while self.marks.back().is_some_and(|(index, _)| *index >= first) {
            self.marks.pop_back();
        }
        self.total = self.marks.back().map_or(0, |(_, total)| *total);
    }

    /// Forgets the entries through `upto`; the last mark of them is where the rest begins.
    pub(super) fn purge(&mut self, upto: u64) {
        while self.marks.get(1).is_some_and(|(index, _)| *index <= upto) {
            self.marks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_the_bytes_after_any_index_to_within_a_mark() {
        let mut weight = Weight::default();
        let entry = 1024 * 1024;
        (1..=100).for_each(|index| weight.add(index, entry));
        let mib = |bytes: u64| bytes / (1024 * 1024);
        assert!((96..=100).contains(&mib(weight.after(0))));
        assert!((46..=54).contains(&mib(weight.after(50))));
        assert!(mib(weight.after(100)) <= 4);
        weight.purge(50);
        assert!((46..=54).contains(&mib(weight.after(50))));
        weight.truncate(81);
        assert!((26..=34).contains(&mib(weight.after(50))));
        weight.truncate(0);
        assert_eq!(weight.after(0), 0);
    }
}
