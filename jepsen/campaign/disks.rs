//! Disks that can lose power: ext4 on a loop device, one for each host.
//!
//! A cut is `EXT4_IOC_SHUTDOWN` without a flush of the journal: what was not synced is gone, and
//! every later write fails. Mounting again replays the journal, as after a real cut.

use std::io;
use std::path::{Path, PathBuf};

use crate::isolation::tool;

/// Size of a disk, in MiB. Sparse: only what is written takes room.
const SIZE_MIB: u64 = 768;

/// The disk of a host.
#[derive(Debug)]
pub(crate) struct Disk {
    image: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    /// Makes and mounts one in a directory.
    pub(crate) fn make(directory: &Path, host: usize) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let image = directory.join(format!("disk-{host}"));
        let mounted = directory.join(format!("mounted-{host}"));
        std::fs::File::create(&image)?.set_len(SIZE_MIB << 20)?;
        std::fs::create_dir_all(&mounted)?;
        tool(&format!("mkfs.ext4 -q -F {}", image.display()))?;
        let disk = Self { image, mounted };
        disk.mount()?;
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mounted
    }

    fn mount(&self) -> io::Result<()> {
        tool(&format!("mount -o loop {} {}", self.image.display(), self.mounted.display()))
    }

    /// Mounts it again after a cut. Nobody may have it open.
    pub(crate) fn mount_again(&self) -> io::Result<()> {
        tool(&format!("umount {}", self.mounted.display()))?;
        self.mount()
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }

    /// Takes all the room that is left.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let room = rustix::fs::statvfs(&self.mounted)?;
        let file = std::fs::File::create(self.ballast())?;
        let bytes = room.f_bavail.saturating_mul(room.f_frsize);
        // The metadata of the file itself takes a little.
        let mut bytes = bytes.saturating_sub(64 << 10);
        loop {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::NOSPC) if bytes > 1 << 20 => bytes -= 1 << 20,
                done => return Ok(done?),
            }
        }
    }

    /// Gives it back.
    pub(crate) fn make_room(&self) -> io::Result<()> {
        std::fs::remove_file(self.ballast())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The last one to say so: what cannot be unmounted now goes with the run's namespace.
        let _ = tool(&format!("umount -l {}", self.mounted.display()));
    }
}

/// Cuts the power of all these disks at once: each within a fraction of a millisecond of the other.
pub(crate) fn cut(disks: &[&Disk]) -> io::Result<()> {
    disks.iter().try_for_each(|disk| tenure_ioctl::cut_power(&disk.mounted))
}
