//! The binary under test, and signals to processes of ours.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// The binary: `TENURE_BIN`, else the one that was built beside this program.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("TENURE_BIN") {
        return named.into();
    }
    built("tenure", "tenure")
}

/// The library that has disks fail and clocks jump, when it is preloaded: the one that was built
/// beside this program.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn preload() -> PathBuf {
    built("libtenure_preload.so", "tenure-preload")
}

fn built(file: &str, package: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    // Tests are built one directory below the binaries.
    let directory = program.ancestors().skip(1).find(|directory| !directory.ends_with("deps"));
    let directory = directory.unwrap();
    let built = directory.join(file);
    let profile = directory.file_name().unwrap().display();
    assert!(built.exists(), "{file} is missing: cargo build --profile {profile} -p {package}");
    built
}

/// A command of the binary, without what the environment says of Tenure.
#[must_use]
pub fn tenure(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("TENURE_")) {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn output(arguments: &[&str]) -> Output {
    tenure(arguments).output().unwrap()
}

/// A child that is killed when it is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When that fails.
    pub fn signal(&self, signal: Signal) {
        send(self.0.id(), signal);
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        eventually("the process ends", limit, || self.0.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills a process that is known to be ours.
///
/// # Panics
/// When it is gone.
pub fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Sends a signal to a process that is known to be ours.
pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The parent of a process that is not reaped yet; none when there is no such process. Until it
/// is reaped, some thread of it may still hold its ports.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    stat(format!("/proc/{pid}").as_ref()).map(|(_, parent)| parent)
}

/// The state of a process or a thread, and its parent, as `proc_pid_stat(5)` has them.
fn stat(directory: &Path) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Whether every thread of a process has stopped. A signal returns before that: one thread takes it
/// and stops the others, which run on until then.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| stat(&thread.path()).is_some_and(|(state, _)| state == "T"))
}

/// Bytes of memory that a process has in use; none when it has ended.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
