//! What a disk has written and flushed, as Linux counts it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a sector in these counters, whatever the disk's own are.
const SECTOR_BYTES: u64 = 512;

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    stat: PathBuf,
}

/// Its counters since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Bytes written to it, by whomever.
    pub bytes: u64,
    /// Flushes of its cache, by whomever.
    pub flushes: u64,
}

impl Device {
    /// The disk below a file or directory; none when it has none that counts: a file system in
    /// memory, on the network, or of layers.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let device = fs::metadata(path).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let link = format!("/sys/dev/block/{major}:{minor}");
        let mut directory = fs::canonicalize(link).ok()?;
        if directory.join("partition").exists() {
            directory.pop();
        }
        let found = Self { stat: directory.join("stat") };
        found.written().map(|_| found)
    }

    /// Reads the counters.
    #[must_use]
    pub fn written(&self) -> Option<Written> {
        parse(&fs::read_to_string(&self.stat).ok()?)
    }
}

/// Fields 7 (sectors written) and 16 (flushes, Linux 5.5 and later) of block/stat.
fn parse(stat: &str) -> Option<Written> {
    let fields: Vec<u64> = stat.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
    let bytes = fields.get(6)?.checked_mul(SECTOR_BYTES)?;
    Some(Written { bytes, flushes: *fields.get(15)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_and_flushes_are_found_in_their_fields() {
        let stat = "  1 2 3 4 5 6 70 8 9 10 11 12 13 14 15 160 17\n";
        assert_eq!(parse(stat), Some(Written { bytes: 70 * 512, flushes: 160 }));
        assert_eq!(parse("1 2 3 4 5 6 7 8 9 10 11"), None, "an old kernel counts no flushes");
    }

    #[test]
    fn a_file_system_without_a_disk_has_none() {
        assert_eq!(Device::of(Path::new("/proc")), None);
        assert_eq!(Device::of(Path::new("/nowhere")), None);
    }
}
