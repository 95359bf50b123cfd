//! A command that runs once.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tenure_api::Code;
use tenure_state_machine::limits::{LEASE_DEFAULT_MS, TTL_DEFAULT_MS};
use tenure_state_machine::{Fingerprint, Invalid};

use super::Connect;
use super::durations::Millis;
use super::output::{exit, say};
use crate::run::{Job, OUTPUT_MAX, margin};

/// Longest grace of a run that names none.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Output that is kept of a run that names no limit, in bytes.
const OUTPUT_DEFAULT: usize = 512 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scope: 1 to 128 characters, no ':'
    #[arg(long)]
    scope: String,
    /// The key: 1 to 255 characters
    #[arg(long)]
    key: String,
    /// Who runs it: host, pod, worker. For people
    #[arg(long, default_value = "", hide_default_value = true)]
    holder: String,
    /// How long others wait if this process dies; heartbeats carry a command on for as long as it
    /// takes
    #[arg(long, value_name = "DURATION", default_value_t = Millis(LEASE_DEFAULT_MS))]
    lease: Millis,
    /// How long the result is kept
    #[arg(long, value_name = "DURATION", default_value_t = Millis(TTL_DEFAULT_MS))]
    ttl: Millis,
    /// How long to wait for another one that runs it
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait: Millis,
    /// A hash of the request, 16 to 128 hex digits: another one for the same key is refused
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// What a failure (an exit code other than 0, or a signal) leaves behind: nothing, so that the
    /// next one runs it again, or a result like any other
    #[arg(long, value_enum, default_value_t)]
    on_failure: OnFailure,
    /// Most bytes of output to keep for duplicates, at most 1 MiB less 5 bytes; all of it is passed
    /// on
    #[arg(long, value_name = "BYTES", default_value_t = OUTPUT_DEFAULT)]
    max_output: usize,
    /// From SIGTERM to SIGKILL when the lease is lost, at most two fifths of the lease [default: a
    /// fifth of it, at most 5s]
    #[arg(long, value_name = "DURATION")]
    grace: Option<Millis>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    #[command(flatten)]
    connect: Connect,
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum OnFailure {
    /// Release the record.
    #[default]
    Release,
    /// Complete the record.
    Record,
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.job() {
            Ok(job) => Box::pin(job.run()).await,
            Err(invalid) => {
                say(format_args!("tenure: {invalid}"));
                Ok(exit(Code::InvalidArgument.row().exit))
            }
        }
    }

    fn job(self) -> Result<Job, Invalid> {
        let lease = self.lease.duration();
        let grace = self.grace.map_or((lease / 5).min(GRACE_DEFAULT), Millis::duration);
        if grace > lease / 5 * 2 {
            return Err(Invalid::argument("grace", "must be at most two fifths of the lease"));
        }
        if self.max_output > OUTPUT_MAX {
            return Err(Invalid::argument("max-output", format!("must be at most {OUTPUT_MAX}")));
        }
        let client = self.connect.client();
        let mut request = client
            .lease(&self.scope, &self.key)
            .holder(self.holder)
            .lease(lease)
            .ttl(self.ttl.duration())
            .wait(self.wait.duration())
            .margin(margin(lease, grace));
        if let Some(fingerprint) = self.fingerprint {
            request = request.fingerprint(Fingerprint::new(fingerprint)?);
        }
        Ok(Job {
            request,
            command: self.command,
            scope: self.scope,
            key: self.key,
            grace,
            records_failures: self.on_failure == OnFailure::Record,
            max_output: self.max_output,
        })
    }
}
