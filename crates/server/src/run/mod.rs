//! `tenure run`: a command that runs once, wherever it is started, and whose output and exit code
//! every duplicate is handed.
//!
//! `launch` makes a process of the command, in a group of its own that dies with this process.
//! `child` watches it, passes its output on and keeps it. `recording` is what is kept, as a
//! payload. `signals` are passed on. This file is the order of it all.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tenure_api::{Code, exit_code};
use tenure_client::{CompleteError, Lease, LeaseError, LeaseRequest, Leased, Lost};
use tokio::time::timeout;

use crate::cli::output::{exit, say};
use crate::cli::records::{Story, refusal_of};

mod child;
pub(crate) mod launch;
mod recording;
mod signals;

use child::Child;
use launch::NotStarted;
use recording::{Recording, Run};
use signals::Signals;

pub(crate) use recording::OUTPUT_MAX;

/// Exits so when the command was stopped because its lease was lost.
const STOPPED: u8 = 11;
/// How long to wait, after a kill, for the kernel to be done with the processes.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// What to run, and how.
#[derive(Debug)]
pub(crate) struct Job {
    /// With its margin: see [`margin`].
    pub(crate) request: LeaseRequest,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Exported to it.
    pub(crate) scope: String,
    /// Exported to it.
    pub(crate) key: String,
    /// From SIGTERM to SIGKILL, when the lease is lost.
    pub(crate) grace: Duration,
    /// Whether a failure is kept as a result too.
    pub(crate) records_failures: bool,
    /// Most bytes of output that are kept.
    pub(crate) max_output: usize,
}

/// How much earlier than its lease a command is told to stop: its grace, and a tenth for clocks
/// that drift and for the kill.
pub(crate) fn margin(lease: Duration, grace: Duration) -> Duration {
    (lease / 10).saturating_add(grace)
}

impl Job {
    /// Runs the command or replays it. Gives what to exit with.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let leased = tokio::select! {
            leased = self.request.clone().acquire() => leased,
            signal = signals.next() => return Ok(exit(killed_by(signal))),
        };
        match leased {
            Ok(Leased::Held(lease)) => self.act(lease, signals).await,
            Ok(Leased::Replay(replay)) => match Run::read(replay.payload.as_deref()) {
                Ok(run) => run.replay().map(exit),
                Err(error) => {
                    say(format_args!("tenure: {error}"));
                    Ok(ExitCode::FAILURE)
                }
            },
            Err(error) => Ok(exit(refused(&error))),
        }
    }

    async fn act(self, mut lease: Lease, mut signals: Signals) -> anyhow::Result<ExitCode> {
        let recording = Recording::new(self.max_output);
        let token = lease.token().get().to_string();
        let exported =
            [("TENURE_TOKEN", &token), ("TENURE_SCOPE", &self.scope), ("TENURE_KEY", &self.key)];
        let mut child = match Child::start(&self.command, &exported, recording) {
            Ok(child) => child,
            Err(error) => return Ok(not_started(lease, &error).await),
        };
        loop {
            tokio::select! {
                biased;
                () = child.ended() => break,
                lost = lease.lost() => {
                    // Part of it has run. Whoever steals the record waits for the lease's end.
                    lease.expire_on_drop();
                    self.stop(&mut child, &lost).await;
                    return Ok(exit(STOPPED));
                }
                signal = signals.next() => child.signal(signal),
            }
        }
        let (code, recording) = match child.result()? {
            Ok(result) => result,
            Err(error) => return Ok(not_started(lease, &error).await),
        };
        if code != 0 && !self.records_failures {
            give_up(lease).await;
            return Ok(exit(code));
        }
        lease.expire_on_drop();
        match lease.complete(Some(recording.into_payload(code)?.into())).await {
            Ok(_) => Ok(exit(code)),
            Err(error) => Ok(exit(not_recorded(code, &error))),
        }
    }

    /// Stops the command and all of its group, in its grace.
    async fn stop(&self, child: &mut Child, lost: &Lost) {
        let name = launch::name(&self.command);
        say(format_args!("tenure: stopping {name}: {lost}"));
        child.signal(Signal::TERM);
        // A stopped process takes its signals when it goes on.
        child.signal(Signal::CONT);
        let ended = timeout(self.grace, child.ended()).await;
        child.signal(Signal::KILL);
        if ended.is_err() {
            let _ = timeout(KILLED_WITHIN, child.ended()).await;
        }
    }
}

/// The exit code that shells give to a process that a signal has ended.
fn killed_by(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).unwrap_or(0).saturating_add(128)
}

async fn not_started(lease: Lease, error: &NotStarted) -> ExitCode {
    give_up(lease).await;
    say(format_args!("tenure: {error}"));
    exit(error.code())
}

async fn give_up(lease: Lease) {
    if let Err(error) = lease.release().await {
        say(format_args!("tenure: not released, so it expires: {}", Story(&error)));
    }
}

fn not_recorded(code: u8, error: &CompleteError) -> u8 {
    let story = Story(error);
    say(format_args!(
        "tenure: it ran and exited with {code}, but that is not recorded, so it may run again: {story}"
    ));
    Code::OutcomeUnknown.row().exit
}

/// What to exit with when there was neither a lease nor a result. Nothing was run.
fn refused(error: &LeaseError) -> u8 {
    let code = match error {
        LeaseError::Call(error) => return exit_code(&Err(refusal_of(error))),
        LeaseError::InProgress { retry_after_ms, holder, token, .. } => {
            let (holder, token) = (holder.as_str(), token.get());
            say(format_args!(
                "tenure: in progress elsewhere: holder {holder:?}, token {token}, {retry_after_ms} ms \
                 of its lease left; --wait waits for it"
            ));
            return Code::InProgress.row().exit;
        }
        LeaseError::Invalid(_) => Code::InvalidArgument,
        LeaseError::FingerprintMismatch { .. } => Code::FingerprintMismatch,
        LeaseError::LeaseLost(_) => Code::LeaseLost,
        LeaseError::TooSlow => Code::NoLeader,
    };
    say(format_args!("tenure: {}", Story(error)));
    code.row().exit
}
