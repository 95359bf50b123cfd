//! Two system calls of the fault harness for which safe Rust has no door.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::ioctl::{Setter, ioctl, opcode};

/// TUNSETIFF takes its argument by address, whatever its number says.
const TUNSETIFF: u32 = opcode::write::<i32>(b'T', 202);
/// EXT4_IOC_SHUTDOWN, which other file systems know as well.
const SHUTDOWN: u32 = opcode::read::<u32>(b'X', 125);
/// EXT4_GOING_FLAGS_NOLOGFLUSH: the journal in memory is lost, too.
const WITHOUT_FLUSH: u32 = 2;
/// IFF_TAP and IFF_NO_PI: Ethernet frames, and nothing before them.
const FRAMES: u16 = 0x0002 | 0x1000;
/// Longest name of an interface, with the zero at its end.
const NAME: usize = 16;

/// `struct ifreq`, as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

/// Makes a TAP in the network namespace of this thread: an interface whose frames are read from
/// and written to the file, one at a time, without waiting. It goes with the file.
///
/// # Errors
/// The kernel's own; a name that is too long.
pub fn tap(name: &str) -> io::Result<File> {
    let mut request = Request { name: [0; NAME], flags: FRAMES, rest: [0; 22] };
    let room = request.name.get_mut(..name.len()).filter(|room| room.len() < NAME);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(nonblock).open("/dev/net/tun")?;
    // SAFETY: TUNSETIFF reads a `struct ifreq`, which has 40 bytes here as there.
    unsafe { ioctl(&file, Setter::<TUNSETIFF, Request>::new(request)) }?;
    Ok(file)
}

/// Cuts the power of the file system that is mounted there: what was not synced is lost, and
/// every later call fails.
///
/// # Errors
/// The kernel's own: it must be root, and a file system that knows how.
pub fn cut_power(mounted: &Path) -> io::Result<()> {
    let directory = File::open(mounted)?;
    // SAFETY: the call reads one number of 32 bits.
    unsafe { ioctl(&directory, Setter::<SHUTDOWN, u32>::new(WITHOUT_FLUSH)) }?;
    Ok(())
}
