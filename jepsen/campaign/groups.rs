//! Little of the processor, or little memory, for a node: control groups of version 1 or 2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fleet::until;

/// Where Debian and its like mount them.
const MOUNTED: &str = "/sys/fs/cgroup";
/// Of each tenth of a second, how much a starved process gets, in microseconds.
const PERIOD_US: u64 = 100_000;

/// For a process that is killed to leave its group.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// What there is little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scarce {
    /// So many microseconds of each tenth of a second, for all of its threads together.
    Processor(u64),
    /// So many bytes beyond those that it has.
    Memory(u64),
}

/// A group with one process in it.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    /// The group that the process came from.
    above: PathBuf,
}

impl Scarce {
    fn controller(self) -> &'static str {
        match self {
            Self::Processor(_) => "cpu",
            Self::Memory(_) => "memory",
        }
    }

    /// The file that limits, and what is written to it.
    fn limit(self, is_unified: bool) -> (&'static str, String) {
        match (self, is_unified) {
            (Self::Processor(us), false) => ("cpu.cfs_quota_us", us.to_string()),
            (Self::Processor(us), true) => ("cpu.max", format!("{us} {PERIOD_US}")),
            (Self::Memory(bytes), false) => ("memory.limit_in_bytes", bytes.to_string()),
            (Self::Memory(bytes), true) => ("memory.max", bytes.to_string()),
        }
    }
}

/// The group of this process for a controller, and whether it is of version 2.
fn own(controller: &str) -> io::Result<(PathBuf, bool)> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let mut unified = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|one| one == controller) {
            return Ok((Path::new(MOUNTED).join(controllers).join(path), false));
        }
        if controllers.is_empty() {
            unified = Some(Path::new(MOUNTED).join(path));
        }
    }
    let unified = unified.filter(|path| {
        let has = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap_or_default();
        has.split_whitespace().any(|one| one == controller)
    });
    let none = || io::Error::other(format!("there are no control groups for {controller} here"));
    unified.map(|path| (path, true)).ok_or_else(none)
}

impl Group {
    /// Makes something scarce for a process.
    pub(crate) fn with(scarce: Scarce, process: u32) -> io::Result<Self> {
        let (above, is_unified) = own(scarce.controller())?;
        let path = above.join(format!("tenure-{}-{process}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Self { path, above };
        let (file, limit) = scarce.limit(is_unified);
        fs::write(group.path.join(file), limit)?;
        fs::write(group.path.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    /// Gives the process back what it had, if it still lives.
    pub(crate) fn release(&self) -> io::Result<()> {
        for process in fs::read_to_string(self.path.join("cgroup.procs"))?.lines() {
            // It may end in this moment.
            let _ = fs::write(self.above.join("cgroup.procs"), process);
        }
        // One that ends takes a moment to be gone.
        let removed = until(GONE_WITHIN, || fs::remove_dir(&self.path).ok());
        removed.ok_or_else(|| io::Error::other(format!("{} stays", self.path.display())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // For a run that ends before it heals; else the group is gone already.
        let _ = self.release();
    }
}
