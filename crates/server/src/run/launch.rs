//! Makes a process of a command, in a process group of its own, that is killed when this process
//! dies, even by SIGKILL.
//!
//! Only a process itself can ask for that (`PR_SET_PDEATHSIG`), between fork and exec, where no
//! safe code runs. So this binary is started once more, asks for it, and becomes the command
//! ([`become_command`]). What it cannot become, it reports on standard error, behind a mark that
//! nobody else knows.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// This binary, even if its file has been replaced.
const SELF: &str = "/proc/self/exe";

/// Why a command does not run. It has done nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStarted {
    #[error("{0}: command not found")]
    NotFound(String),
    #[error("{command}: cannot be executed: {reason}")]
    NotExecutable { command: String, reason: String },
}

impl NotStarted {
    /// As shells have it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
        }
    }

    fn not_executable(command: &str, reason: impl ToString) -> Self {
        Self::NotExecutable { command: command.to_owned(), reason: reason.to_string() }
    }
}

/// A process that is about to become the command.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) process: Child,
    /// What it writes to standard error, and nothing else, if it cannot.
    mark: String,
}

/// The name of a command, for people.
pub(crate) fn name(command: &[OsString]) -> String {
    command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Starts it, with its output in pipes.
pub(crate) fn launch(
    command: &[OsString],
    exported: &[(&str, &String)],
) -> Result<Launched, NotStarted> {
    let name = name(command);
    find(command.first().map_or(OsStr::new(""), OsString::as_os_str))?;
    let mark = format!("{:032x}", rand::random::<u128>());
    let parent = std::process::id().to_string();
    // In a group that is not the terminal's own, a read from it would stop the command for ever.
    let is_terminal = io::stdin().is_terminal();
    let process = Command::new(SELF)
        .arg0("tenure")
        .args(["become", "--parent", &parent, "--mark", &mark, "--"])
        .args(command)
        .envs(exported.iter().copied())
        .stdin(if is_terminal { Stdio::null() } else { Stdio::inherit() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| NotStarted::not_executable(&name, error))?;
    Ok(Launched { process, mark })
}

impl Launched {
    /// What a chunk of standard error says of a start that failed.
    pub(crate) fn failure<'a>(mark: &str, chunk: &'a [u8]) -> Option<&'a [u8]> {
        chunk.strip_prefix(mark.as_bytes())
    }

    /// Takes the mark out.
    pub(crate) fn into_parts(self) -> (Child, String) {
        (self.process, self.mark)
    }
}

/// Looks for a command as execvp(3) does: for a good answer before anything is started.
fn find(command: &OsStr) -> Result<(), NotStarted> {
    let name = &command.to_string_lossy();
    let mut found = None;
    if command.as_bytes().contains(&b'/') {
        found = Some(command.into());
    } else if !command.is_empty() {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        let mut places = std::env::split_paths(&path).map(|place| place.join(command));
        found = places.find(|place| is_command(place));
    }
    let found = found.ok_or_else(|| NotStarted::NotFound(name.to_string()))?;
    match std::fs::metadata(&found) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(NotStarted::NotFound(name.to_string()))
        }
        Err(error) => Err(NotStarted::not_executable(name, error)),
        Ok(metadata) if metadata.is_dir() => {
            Err(NotStarted::not_executable(name, "it is a directory"))
        }
        Ok(_) => access(&found, Access::EXEC_OK)
            .map_err(|error| NotStarted::not_executable(name, io::Error::from(error))),
    }
}

fn is_command(place: &Path) -> bool {
    place.is_file() && access(place, Access::EXEC_OK).is_ok()
}

/// What the second start of this binary does.
#[derive(Debug, clap::Args)]
pub(crate) struct Become {
    /// The process that must be its parent
    #[arg(long)]
    parent: u32,
    /// What a failure is reported behind
    #[arg(long)]
    mark: String,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Asks to be killed with its parent, and becomes the command. Returns only if it cannot.
pub(crate) fn become_command(job: &Become) -> ExitCode {
    let error = match try_become(job) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let _ = io::stderr().write_all(format!("{}{error}", job.mark).as_bytes());
    ExitCode::FAILURE
}

fn try_become(job: &Become) -> io::Result<Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before that.
    let parent = getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get().unsigned_abs());
    if parent != Some(job.parent) {
        return Err(io::Error::other("its parent has died"));
    }
    let Some((program, arguments)) = job.command.split_first() else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    Err(Command::new(program).args(arguments).exec())
}

/// What a failure that was reported means.
pub(crate) fn reported(command: &[OsString], report: &[u8]) -> NotStarted {
    NotStarted::not_executable(&name(command), String::from_utf8_lossy(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_shells_find_them() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        for (name, code) in [
            ("", 127),
            ("no-such-command", 127),
            ("/no/such", 127),
            ("/", 126),
            ("/etc/passwd", 126),
        ] {
            assert_eq!(find(OsStr::new(name)).unwrap_err().code(), code, "{name}");
        }
    }
}
