//! What a run comes to, and what it leaves.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use serde_json::{Value, json};
use tenure_jepsen::history::{self, Event};
use tenure_jepsen::verify::floors::Seen;
use tenure_jepsen::verify::{Judgement, Violation};

use crate::nemesis::Nemesis;
use crate::pictures;
use crate::schedule::Entry;

/// Violations that a verdict shows whole; the rest is counted.
const SHOWN: usize = 10;

/// The four ends of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Enough was tested, and nothing was wrong.
    Valid,
    /// Something must not be.
    Invalid,
    /// Too little was tested. It is no pass.
    NotTested,
    /// A checker gave up, or the harness did not do what it should.
    Unknown,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Invalid => "invalid",
            Self::NotTested => "not tested",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Valid => 0,
            Self::Invalid => 1,
            Self::NotTested => 2,
            Self::Unknown => 3,
        }
    }
}

/// All that is said of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What was asked of it.
    about: Value,
    pub(crate) seen: Seen,
    /// Kinds of faults: how often each was installed, skipped, …
    faults: BTreeMap<String, BTreeMap<&'static str, u64>>,
    found: Vec<String>,
    violations: Vec<Violation>,
    undecided: Vec<String>,
    not_tested: Vec<String>,
    pub(crate) troubles: Vec<String>,
}

impl Report {
    pub(crate) fn new(about: Value) -> Self {
        Self { about, ..Self::default() }
    }

    /// Adds something that must not be and that no history shows.
    pub(crate) fn found(&mut self, text: &str) {
        self.found.push(text.to_owned());
    }

    /// Adds what the checkers say.
    pub(crate) fn judge(&mut self, judgement: Judgement) {
        self.violations.extend(judgement.violations);
        self.undecided.extend(judgement.undecided);
    }

    /// Holds what was seen against what must be.
    pub(crate) fn floors(
        &mut self,
        floors: &[(&'static str, u64)],
        nemeses: &[Nemesis],
        entries: &[Entry],
    ) {
        self.not_tested.extend(self.seen.below(floors));
        for entry in entries {
            let kind = self.faults.entry(entry.fault.clone()).or_default();
            *kind.entry(entry.outcome).or_default() += 1;
        }
        let installed = |name: &str| {
            self.faults.get(name).and_then(|kind| kind.get("installed")).copied().unwrap_or(0)
        };
        for name in nemeses.iter().map(|nemesis| nemesis.name()) {
            if installed(&name) == 0 {
                let why = entries.iter().rfind(|entry| entry.fault == name);
                let why = why.map_or("not reached", |entry| entry.what.as_str());
                self.not_tested.push(format!("{name} was not installed: {why}"));
            }
        }
        if nemeses.iter().any(|nemesis| nemesis.deposes()) && self.seen.of("fail-overs") == 0 {
            self.not_tested.push("no leader failed over".to_owned());
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if !self.found.is_empty() || !self.violations.is_empty() {
            Verdict::Invalid
        } else if !self.undecided.is_empty() || !self.troubles.is_empty() {
            Verdict::Unknown
        } else if !self.not_tested.is_empty() {
            Verdict::NotTested
        } else {
            Verdict::Valid
        }
    }

    pub(crate) fn json(&self) -> Value {
        let violation = |violation: &Violation| {
            json!({ "checker": violation.checker, "kind": violation.kind.name(),
                "key": violation.key, "text": violation.text,
                "sends": violation.witnesses.len() })
        };
        let shown: Vec<Value> = self.violations.iter().take(SHOWN).map(violation).collect();
        json!({
            "verdict": self.verdict().name(), "about": self.about, "seen": self.seen.json(),
            "faults": self.faults, "violations": shown,
            "violations_all": self.violations.len(), "found": self.found,
            "undecided": self.undecided, "not_tested": self.not_tested,
            "troubles": self.troubles,
        })
    }

    /// A few lines for people.
    pub(crate) fn summary(&self) -> String {
        let mut lines =
            vec![format!("seen: {}", self.seen.json()), format!("faults: {:?}", self.faults)];
        for violation in self.violations.iter().take(SHOWN) {
            let key = violation.key.as_deref().unwrap_or("the log");
            lines.push(format!("{} ({}): {key}", violation.kind.name(), violation.checker));
        }
        lines.extend(self.found.iter().take(SHOWN).map(|text| format!("wrong: {text}")));
        lines.extend(self.undecided.iter().map(|text| format!("undecided: {text}")));
        lines.extend(self.troubles.iter().map(|text| format!("trouble: {text}")));
        lines.extend(self.not_tested.iter().map(|text| format!("not tested: {text}")));
        lines.push(format!("verdict: {}", self.verdict().name()));
        lines.join("\n")
    }
}

/// Leaves everything in the run's directory, and takes away the data of a run that was valid.
pub(crate) fn leave(
    store: &Path,
    report: &Report,
    events: &[Event],
    faults: &[Entry],
) -> io::Result<()> {
    let create = |name: &str| File::create(store.join(name)).map(BufWriter::new);
    history::write(events, create("history.jsonl")?)?;
    history::write_edn(events, create("history.edn")?)?;
    let mut log = create("nemesis.log")?;
    for fault in faults {
        writeln!(log, "{}", fault.json())?;
    }
    log.flush()?;
    std::fs::write(store.join("latency.svg"), pictures::latency(events, faults))?;
    std::fs::write(store.join("rate.svg"), pictures::rate(events, faults))?;
    for (number, violation) in report.violations.iter().enumerate().take(SHOWN) {
        if !violation.witnesses.is_empty() {
            let name = format!("violation-{number}-{}.html", violation.checker);
            std::fs::write(store.join(name), pictures::timeline(violation, faults))?;
        }
    }
    let verdict = serde_json::to_string_pretty(&report.json())?;
    std::fs::write(store.join("verdict.json"), verdict + "\n")?;
    if report.verdict() == Verdict::Valid {
        for entry in std::fs::read_dir(store)?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("data-") || name == "disks" {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
    }
    Ok(())
}
