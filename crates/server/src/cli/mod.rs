//! What can be typed.

mod cluster;
mod connect;
pub(crate) mod durations;
pub(crate) mod http;
pub(crate) mod output;
pub(crate) mod records;
mod run;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::run::launch::{Become, become_command};
use crate::{bench, config, demo, dev, replay, server};
pub(crate) use connect::Connect;
use output::Format;

/// A Raft-replicated lease store for linearizable duplicate suppression.
///
/// A caller acquires a record named by scope and key, runs its action under the lease, and
/// completes the record with the result, which every duplicate is handed instead.
#[derive(Debug, Parser)]
#[command(name = "tenure", version = VERSION, propagate_version = true, after_long_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to print: for people, or the HTTP body as one line of JSON
    #[arg(short, long, global = true, env = "TENURE_OUTPUT", value_enum, default_value_t)]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

/// A build that can be wrong on purpose says so.
const VERSION: &str = if tenure_state_machine::seeded::BUILT_IN {
    concat!(env!("CARGO_PKG_VERSION"), " with seeded bugs: for tests alone")
} else {
    env!("CARGO_PKG_VERSION")
};

const EXIT_CODES: &str = "\
Exit codes:
  0  ok                        6  fingerprint mismatch
  1  anything not listed       7  payload too large, or too late
  2  usage                     8  unavailable
  3  absent                    9  outcome unknown
  4  in progress              10  timed out
  5  lease lost               11  run: stopped, its lease was lost

tenure run exits as its command does: 128 + n if signal n ended it, 127 if it was not found, 126 if
it cannot be executed; and with 9 if it ran and that could not be recorded.

Try it:
  tenure dev                                    # three nodes on this machine; Ctrl-C stops them
  tenure acquire mail order-1 --lease 30s       # prints a token
  tenure complete mail order-1 --token 1 --text sent
  tenure acquire mail order-1                   # a duplicate: prints the result";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node
    Server(Box<config::Args>),
    /// Run a whole cluster on this machine, for development
    Dev(dev::Args),
    /// Watch a cluster suppress duplicates while its leader is killed
    Demo(demo::Args),

    #[command(flatten)]
    Record(records::Command),

    /// Run a command once, wherever it is started: duplicates get its output and exit code
    ///
    /// The first caller runs CMD under heartbeats. Its output passes through while it runs, and is
    /// kept with its exit code; a later caller, anywhere, is handed both, byte for byte, and runs
    /// nothing. CMD finds its fencing token in TENURE_TOKEN, beside TENURE_SCOPE and TENURE_KEY.
    ///
    /// When the lease is lost, or no heartbeat gets through, CMD and its whole process group are
    /// stopped (SIGTERM, then SIGKILL) before anybody else can run it, and the exit code is 11.
    /// INT, TERM, HUP, QUIT, USR1 and USR2 are passed on. CMD runs in a process group of its own:
    /// it cannot read from a terminal. It has ended when it has exited and its output is closed.
    #[command(after_help = "Examples:
  tenure run --scope cron --key \"report-$(date +%F)\" -- ./report --mail
  tenure run --scope deploy --key v42 --wait 60s --lease 10s -- ./migrate   # wait for the one that runs")]
    Run(run::Args),
    /// Become a command that dies with its parent; started by `tenure run`
    #[command(hide = true)]
    Become(Become),

    /// Look at the cluster's members, and change them
    Cluster(cluster::Args),
    /// Measure a cluster: a closed loop over the native protocol
    Bench(bench::Args),
    /// Run the pure state machine on standard input, no cluster
    ///
    /// Each line is {"at": STAMP_MS, "acquire": {...}}, or complete, release, extend, purge, get
    /// with the bodies of the HTTP API, or "tick": {}; {"snapshot": true} and {"hash": true} check
    /// the state. Each answer is the HTTP body with its status.
    #[command(after_help = "Example:\n  \
        echo '{\"at\":1000,\"acquire\":{\"scope\":\"mail\",\"key\":\"order-1\"}}' | tenure replay")]
    Replay,
    /// Print completions for a shell
    #[command(after_help = "Example:\n  tenure completions bash > /etc/bash_completion.d/tenure")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

impl Cli {
    /// Does what was typed. Gives what to exit with; errors exit with 1.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let format = self.output;
        match self.command {
            Command::Server(args) => server::run(*args),
            Command::Dev(args) => block_on(Threads::One, dev::run(args, format)),
            Command::Demo(args) => block_on(Threads::Many, demo::run(args, format)),
            Command::Record(command) => block_on(Threads::One, command.run(format)),
            Command::Run(args) => block_on(Threads::One, args.run()),
            Command::Become(job) => Ok(become_command(&job)),
            Command::Cluster(args) => block_on(Threads::One, args.run(format)),
            Command::Bench(args) => block_on(Threads::Many, bench::run(args, format)),
            Command::Replay => {
                let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
                replay::run(input, output).map(|()| ExitCode::SUCCESS)
            }
            Command::Completions { shell } => {
                let (mut command, mut script) = (Self::command(), Vec::new());
                clap_complete::generate(shell, &mut command, "tenure", &mut script);
                output::write(&script)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// How many threads a command is worth.
#[derive(Debug, Clone, Copy)]
enum Threads {
    /// It mostly waits.
    One,
    /// One a core.
    Many,
}

fn block_on<T>(
    threads: Threads,
    command: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut builder = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread(),
        Threads::Many => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help() {
        let mut command = Cli::command();
        command.build();
        let mut open = vec![command];
        while let Some(command) = open.pop() {
            assert!(command.get_about().is_some(), "{} says nothing", command.get_name());
            open.extend(command.get_subcommands().cloned());
        }
    }
}
