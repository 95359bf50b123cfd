//! What the command line exits with. The code of a refusal stands in the table of problems.

use crate::frame::{Decided, Reply, Waited};
use crate::problem::Code;
use crate::refusal::Refusal;
use crate::shape::said;

/// All went well.
const OK: u8 = 0;
/// A wait ended at its own time.
const TIMED_OUT: u8 = 10;

/// The exit code of an answer: 0 ok, 1 anything not listed, 2 usage, 3 absent, 4 in progress, 5
/// lease lost or expired, 6 fingerprint mismatch, 7 payload too large or too late, 8 unavailable,
/// 9 outcome unknown, 10 timed out. A batch has that of its first result that is not ok.
#[must_use]
pub fn exit_code(reply: &Result<Reply, Refusal>) -> u8 {
    match reply {
        Err(refusal) => refused(refusal),
        Ok(Reply::Answer(decided)) => decided_code(decided),
        Ok(Reply::Batch(results)) => results
            .iter()
            .map(|result| result.as_ref().map_or_else(refused, decided_code))
            .find(|code| *code != OK)
            .unwrap_or(OK),
        Ok(Reply::Record { view: None, .. }) => Code::Absent.row().exit,
        Ok(Reply::Record { view: Some(_), .. } | Reply::List { .. } | Reply::Changed(_)) => OK,
        Ok(Reply::Waited { waited, .. }) => match waited {
            Waited::Complete(_) => OK,
            Waited::Absent => Code::Absent.row().exit,
            Waited::LeaseExpired => Code::LeaseLost.row().exit,
            Waited::TimedOut { .. } => TIMED_OUT,
        },
    }
}

fn refused(refusal: &Refusal) -> u8 {
    refusal.code().row().exit
}

fn decided_code(decided: &Decided) -> u8 {
    said(decided).map_or_else(|problem| problem.code.row().exit, |_| OK)
}
