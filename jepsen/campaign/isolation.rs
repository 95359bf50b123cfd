//! How much of a machine of its own a run gets: the rung of a ladder.
//!
//! On the two upper rungs the run is started again by `unshare`, with network, mounts and process
//! ids of its own; whatever it makes there vanishes with it. The first process of those ids is the
//! run: when it ends, however it ends, every node ends too.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

use clap::ValueEnum;

/// A rung, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rung {
    /// Namespaces, loop devices: everything.
    Root,
    /// Namespaces of a user: links can be cut, but there are no disks to lose.
    User,
    /// Processes on loopback: signals and clocks.
    Loopback,
}

impl Rung {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Root => "root: namespaces, a bridge, nftables, loop-mounted disks",
            Self::User => "user namespaces: a bridge and nftables; disks are not cut",
            Self::Loopback => "loopback: signals and clocks; links and disks are not cut",
        }
    }

    /// What `unshare` is asked for.
    fn flags(self) -> Option<&'static [&'static str]> {
        const ROOT: &[&str] =
            &["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        const USER: &[&str] = &[
            "--user",
            "--map-root-user",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ];
        match self {
            Self::Root => Some(ROOT),
            Self::User => Some(USER),
            Self::Loopback => None,
        }
    }

    fn works(self) -> bool {
        let Some(flags) = self.flags() else { return true };
        let bridge = "mount -t tmpfs tmpfs /run && ip link add br0 type bridge && ip netns add n1";
        let mut command = Command::new("unshare");
        command.args(flags).args(["--", "sh", "-c", bridge]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        (self != Self::Root || rustix::process::getuid().is_root())
            && command.status().is_ok_and(|status| status.success())
    }

    /// The best rung that this machine has.
    pub(crate) fn best() -> Self {
        let works = |rung: &Self| rung.works();
        [Self::Root, Self::User].into_iter().find(works).unwrap_or(Self::Loopback)
    }

    /// Runs this program again on the rung; none where it is on it already.
    pub(crate) fn enter(self) -> io::Result<Option<ExitStatus>> {
        let Some(flags) = self.flags() else { return Ok(None) };
        let mut command = Command::new("unshare");
        command.args(flags).arg("--").arg(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).args(["--on", self.word()]);
        command.status().map(Some)
    }

    /// Its name on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::User => "user",
            Self::Loopback => "loopback",
        }
    }

    pub(crate) fn has_links(self) -> bool {
        self != Self::Loopback
    }

    pub(crate) fn has_disks(self) -> bool {
        self == Self::Root
    }
}

/// Runs a tool, and says what it said if it fails.
pub(crate) fn tool(line: &str) -> io::Result<()> {
    tool_with(line, "")
}

/// Runs a tool with an input.
pub(crate) fn tool_with(line: &str, input: &str) -> io::Result<()> {
    use io::Write as _;
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
    let mut child = command.spawn().map_err(named)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{line}: {}: {said}", output.status)))
}
