//! `tenure`, the one binary: a node, its command line, and tools that need a whole cluster.
//!
//! `cli` says what can be typed and what it exits with. `server` and `config` are a node. `local`
//! is a cluster of child processes, for `dev` and `demo`. `run` is a command that runs once. `bench`
//! starts what the crate tenure-bench measures; `replay` stands alone.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

/// Faster than the C library's own for what one thread allocates and another frees.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod bench;
mod cli;
mod config;
mod demo;
mod dev;
mod local;
mod replay;
mod run;
mod server;
mod sink;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "tenure: {error:#}");
            ExitCode::FAILURE
        }
    }
}
