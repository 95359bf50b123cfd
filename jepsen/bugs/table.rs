//! What is printed: a row for each bug and ring.

use std::fmt::Write as _;
use std::time::Duration;

use crate::rings::{Bug, Ring};

/// A bug, or none, in a ring.
#[derive(Debug)]
pub(crate) struct Row {
    bug: Option<Bug>,
    ring: Ring,
    pub(crate) tries: u32,
    /// Caught with a bug, or passed without.
    pub(crate) good: u32,
    pub(crate) not_tested: u32,
    pub(crate) took: Duration,
    pub(crate) longest: Duration,
    /// What was found first.
    pub(crate) why: String,
}

impl Row {
    pub(crate) fn new(bug: Option<Bug>, ring: Ring) -> Self {
        let (took, longest) = (Duration::ZERO, Duration::ZERO);
        Self { bug, ring, tries: 0, good: 0, not_tested: 0, took, longest, why: String::new() }
    }

    /// The bug's name, and the ring.
    pub(crate) fn what(&self) -> (Option<&'static str>, Ring) {
        (self.bug.map(|bug| bug.name), self.ring)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.bug.is_none()
    }

    /// Nine of ten with a bug, rounded down, but one; without, all.
    pub(crate) fn is_good(&self) -> bool {
        match self.bug {
            Some(_) => self.good >= (self.tries * 9 / 10).max(1),
            None => self.good + self.not_tested == self.tries,
        }
    }
}

/// The table, for people and for the README.
pub(crate) fn markdown(rows: &[Row], took: Duration) -> String {
    let mut text = String::new();
    let (clean, seeded): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.is_clean());
    if !seeded.is_empty() {
        text.push_str(
            "| # | bug | ring | caught | s each | first found |\n|---|---|---|---|---|---|\n",
        );
    }
    for row in seeded {
        let Some(bug) = row.bug else { continue };
        let each = row.took.as_secs_f64() / f64::from(row.tries.max(1));
        let mark = if row.is_good() { "" } else { " **missed**" };
        let why = row.why.replace('|', "\\|");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} of {}{mark} | {each:.1} | {why} |",
            bug.number,
            bug.name,
            row.ring.text(),
            row.good,
            row.tries,
        );
    }
    if !clean.is_empty() {
        let tries: u32 = clean.iter().map(|row| row.tries).sum();
        let good: u32 = clean.iter().map(|row| row.good).sum();
        let not_tested: u32 = clean.iter().map(|row| row.not_tested).sum();
        let alarms = tries - good - not_tested;
        let _ = writeln!(
            text,
            "\nWithout a bug: {alarms} false alarms in {tries} tries ({not_tested} not tested).",
        );
        for row in clean.iter().filter(|row| !row.is_good()) {
            let _ = writeln!(text, "- {}: {}", row.ring.text(), row.why);
        }
    }
    let _ = writeln!(text, "\nIn {:.0} minutes.", took.as_secs_f64() / 60.0);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::BUGS;

    fn row(bug: bool, good: u32, tries: u32) -> Row {
        Row { good, tries, ..Row::new(bug.then_some(BUGS[0]), Ring::Run("--seconds 5")) }
    }

    #[test]
    fn nine_of_ten_is_enough_for_a_bug_and_no_alarm_is_for_none() {
        assert!(row(true, 9, 10).is_good() && !row(true, 8, 10).is_good());
        assert!(row(true, 1, 2).is_good() && !row(true, 0, 1).is_good());
        assert!(row(false, 10, 10).is_good() && !row(false, 9, 10).is_good());
        assert!(Row { not_tested: 1, ..row(false, 9, 10) }.is_good());
    }

    #[test]
    fn the_table_says_what_was_missed() {
        let text = markdown(&[row(true, 3, 10), row(false, 4, 5)], Duration::from_secs(61));
        assert!(text.contains("| 3 of 10 **missed** |"), "{text}");
        assert!(text.contains("1 false alarms in 5 tries (0 not tested)"), "{text}");
    }
}
