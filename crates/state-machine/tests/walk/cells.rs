//! The table of rules as cells: a walk that leaves one empty has not tested it.

use std::collections::BTreeMap;

use tenure_state_machine::{Answer, LeaseLost};

/// Command, what the record was, answer.
pub(crate) type Cell = (&'static str, &'static str, &'static str);

/// How often each cell was met.
pub(crate) type Cells = BTreeMap<Cell, u64>;

/// Every cell that the rules allow. None may stay empty, and no other may be met.
pub(crate) fn expected() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (column, acquire, complete, release, extend) in COMMANDS {
        for (row, answers) in
            [("acquire", acquire), ("complete", complete), ("release", release), ("extend", extend)]
        {
            cells.extend(answers.iter().chain(&["too_late"]).map(|answer| (row, *column, *answer)));
        }
    }
    for (column, get, purge) in LOOKS {
        cells.push(("get", column, get));
        cells.extend(purge.iter().map(|answer| ("purge", *column, *answer)));
    }
    cells.sort_unstable();
    cells
}

type Answers = &'static [&'static str];

/// What the record was, and the answers to acquire, complete, release and extend; each of them may
/// be too late as well.
const COMMANDS: &[(&str, Answers, Answers, Answers, Answers)] = &[
    ("absent", &["acquired"], &["lost: absent"], &["lost: absent"], &["lost: absent"]),
    ("mine, live", &["resumed", "mismatch"], &["completed"], &["released"], &["extended"]),
    ("mine, lease passed", &["resumed", "mismatch"], &["completed"], &["released"], &["extended"]),
    (
        "other's, live",
        &["in_progress", "fingerprint_differs"],
        &["lost: stolen"],
        &["lost: stolen"],
        &["lost: stolen"],
    ),
    (
        "other's, lease passed",
        &["took_over"],
        &["lost: stolen"],
        &["lost: stolen"],
        &["lost: stolen"],
    ),
    (
        "mine, complete",
        &["replay", "mismatch"],
        &["already_complete"],
        &["lost: completed"],
        &["lost: completed"],
    ),
    (
        "other's, complete",
        &["replay", "mismatch"],
        &["lost: completed"],
        &["lost: completed"],
        &["lost: completed"],
    ),
    // Stored, but absent by R2.
    ("mine, purgeable", &["acquired"], &["lost: absent"], &["lost: absent"], &["lost: absent"]),
    ("other's, purgeable", &["acquired"], &["lost: absent"], &["lost: absent"], &["lost: absent"]),
    ("complete, purgeable", &["acquired"], &["lost: absent"], &["lost: absent"], &["lost: absent"]),
];

/// What the record was, the state that get sees, and what purge does with it.
const LOOKS: &[(&str, &str, Answers)] = &[
    ("absent", "absent", &[]),
    ("live", "in_progress", &["keeps", "too_late"]),
    ("lease passed", "in_progress", &["keeps", "too_late"]),
    ("complete", "complete", &["keeps", "too_late"]),
    ("in progress, purgeable", "absent", &["deletes", "leaves", "too_late"]),
    ("complete, purgeable", "absent", &["deletes", "leaves", "too_late"]),
];

/// The word for an answer in a cell.
pub(crate) fn label(answer: &Answer) -> &'static str {
    match answer {
        Answer::Acquired { resumed: true, .. } => "resumed",
        Answer::Acquired { took_over: Some(_), .. } => "took_over",
        Answer::Acquired { .. } => "acquired",
        Answer::Replay(_) => "replay",
        Answer::InProgress { fingerprint_differs: true, .. } => "fingerprint_differs",
        Answer::InProgress { .. } => "in_progress",
        Answer::FingerprintMismatch { .. } => "mismatch",
        Answer::Completed(_) => "completed",
        Answer::AlreadyComplete(_) => "already_complete",
        Answer::Released => "released",
        Answer::Extended { .. } => "extended",
        Answer::LeaseLost(LeaseLost::Absent) => "lost: absent",
        Answer::LeaseLost(LeaseLost::Stolen { .. }) => "lost: stolen",
        Answer::LeaseLost(LeaseLost::Completed { .. }) => "lost: completed",
        Answer::Purged { .. } => "purged",
        Answer::TooLate => "too_late",
    }
}
