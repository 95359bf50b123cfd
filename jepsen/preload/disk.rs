//! The disk of a process fails, lies or is slow when a file says so.
//!
//! This stands before `write`, `pwrite`, `fsync` and `fdatasync` of the C library, and minds the
//! files below one directory alone. Three variables name what it needs:
//!
//! | variable | is |
//! |---|---|
//! | `DISK_FAULTS_UNDER` | the directory, as the kernel spells it |
//! | `DISK_FAULTS_CONTROL` | a file with one line, `FAULT AMOUNT PART`, read again at every call |
//! | `DISK_FAULTS_SEEN` | a file that gets a line, `FAULT PATH`, for every fault that was met |
//!
//! PART is a piece of the path: files without it are spared. No line is no fault.
//!
//! | fault | AMOUNT | what the process meets |
//! |---|---|---|
//! | `sync-error` | percent of calls | EIO, and nothing was synced |
//! | `sync-lie` | percent of calls | success, and nothing was synced |
//! | `sync-slow` | milliseconds | it waits, then syncs |
//! | `write-error` | percent of calls | EIO, and nothing was written |
//! | `write-torn` | percent of calls | a part of the bytes is on disk, and the process is dead |
//! | `write-short` | percent of calls | fewer bytes were written, as write(2) may |

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::{c_char, c_int, c_void, off_t, size_t, ssize_t};

use crate::{read, variable};

/// Longest path and longest control line that are looked at.
const PATH: usize = 4096;
const LINE: usize = 256;
/// Files in which RocksDB talks: what becomes of them is nobody's loss.
const CHATTER: [&[u8]; 3] = [b"LOG", b"LOCK", b"OPTIONS"];

/// What the control file says, for one file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    SyncError,
    SyncLie,
    SyncSlow,
    WriteError,
    WriteTorn,
    WriteShort,
}

impl Fault {
    const ALL: [(&'static str, Self); 6] = [
        ("sync-error", Self::SyncError),
        ("sync-lie", Self::SyncLie),
        ("sync-slow", Self::SyncSlow),
        ("write-error", Self::WriteError),
        ("write-torn", Self::WriteTorn),
        ("write-short", Self::WriteShort),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    fn is_of_syncs(self) -> bool {
        matches!(self, Self::SyncError | Self::SyncLie | Self::SyncSlow)
    }
}

/// A function of the C library, looked up once.
struct Next(AtomicUsize, &'static CStr);

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self(AtomicUsize::new(0), name)
    }

    fn address(&self) -> usize {
        let known = self.0.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name ends in a zero; looking a symbol up has no other condition.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) } as usize;
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

type Sync = unsafe extern "C" fn(c_int) -> c_int;
type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type WriteAt = unsafe extern "C" fn(c_int, *const c_void, size_t, off_t) -> ssize_t;

static FSYNC: Next = Next::new(c"fsync");
static FDATASYNC: Next = Next::new(c"fdatasync");
static WRITE: Next = Next::new(c"write");
static PWRITE: Next = Next::new(c"pwrite");

/// The path of an open file, below the directory that is minded.
fn path_of(file: c_int, buffer: &mut [u8; PATH]) -> Option<&[u8]> {
    let under = variable(c"DISK_FAULTS_UNDER")?.to_bytes();
    let mut link = [0_u8; 32];
    let mut rest: &mut [u8] = &mut link;
    std::io::Write::write_fmt(&mut rest, format_args!("/proc/self/fd/{file}\0")).ok()?;
    // SAFETY: the link ends in a zero, and the buffer has room for what is asked for.
    let length =
        unsafe { libc::readlink(link.as_ptr().cast::<c_char>(), buffer.as_mut_ptr().cast(), PATH) };
    let path = buffer.get(..usize::try_from(length).ok()?)?;
    let below = path.strip_prefix(under).filter(|below| below.first() == Some(&b'/'))?;
    let name = below.rsplit(|byte| *byte == b'/').next()?;
    (!CHATTER.iter().any(|chatter| name.starts_with(chatter))).then_some(below)
}

/// The fault that is ordered for a path, and its amount.
fn ordered(path: &[u8]) -> Option<(Fault, u64)> {
    let mut line = [0_u8; LINE];
    let line = read(variable(c"DISK_FAULTS_CONTROL")?, &mut line)?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let name = words.next()?;
    let fault = Fault::ALL.iter().find(|(one, _)| *one == name)?.1;
    let amount = words.next()?.parse().ok()?;
    let part = words.next().unwrap_or_default().as_bytes();
    let is_meant = part.is_empty() || path.windows(part.len()).any(|piece| piece == part);
    is_meant.then_some((fault, amount))
}

/// A number that is hard to foresee: percents are drawn with it, and the length of what is torn.
fn draw() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let step = STATE.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    // SAFETY: it has no condition.
    let process = u64::from(unsafe { libc::getpid() }.unsigned_abs());
    let mixed = (step ^ process).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 16
}

fn say(fault: Fault, path: &[u8]) {
    let Some(seen) = variable(c"DISK_FAULTS_SEEN") else { return };
    let mut line = [0_u8; LINE];
    let mut rest: &mut [u8] = &mut line;
    let text = std::str::from_utf8(path).unwrap_or("?");
    // A path that is too long is cut.
    let _ = std::io::Write::write_fmt(&mut rest, format_args!("{} {text}", fault.name()));
    let left = rest.len().max(1);
    let length = LINE - left;
    if let Some(end) = line.get_mut(length) {
        *end = b'\n';
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path ends in a zero and the line has so many bytes; the file is ours, and closed
    // once. The system call is made past this library.
    unsafe {
        let file = libc::open(seen.as_ptr(), flags, 0o644);
        if file >= 0 {
            libc::syscall(libc::SYS_write, file, line.as_ptr(), length + 1);
            libc::close(file);
        }
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: it points to the errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// The fault that a call meets now.
fn met(file: c_int, of_syncs: bool) -> Option<(Fault, u64)> {
    // SAFETY: it points to the errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let mut buffer = [0_u8; PATH];
    let found = path_of(file, &mut buffer).and_then(|path| {
        let (fault, amount) = ordered(path)?;
        let is_hit = fault == Fault::SyncSlow || draw() % 100 < amount;
        let is_met = fault.is_of_syncs() == of_syncs && is_hit;
        is_met.then(|| {
            say(fault, path);
            (fault, amount)
        })
    });
    set_errno(errno);
    found
}

fn sync(file: c_int, next: &Next) -> c_int {
    match met(file, true) {
        Some((Fault::SyncError, _)) => {
            set_errno(libc::EIO);
            return -1;
        }
        Some((Fault::SyncLie, _)) => return 0,
        Some((Fault::SyncSlow, ms)) => {
            std::thread::sleep(std::time::Duration::from_millis(ms));
        }
        _ => {}
    }
    // SAFETY: the C library has this function, with this type.
    unsafe { std::mem::transmute::<usize, Sync>(next.address())(file) }
}

/// Writes so many of `size` bytes by `some`, if a fault is met.
fn write_with(file: c_int, size: size_t, some: impl Fn(size_t) -> ssize_t) -> ssize_t {
    match met(file, false) {
        Some((Fault::WriteError, _)) => {
            set_errno(libc::EIO);
            -1
        }
        Some((Fault::WriteTorn, _)) => {
            some(usize::try_from(draw()).unwrap_or(0) % size.max(1));
            // SAFETY: the C library has this function, with this type; a signal to this process
            // that it cannot catch.
            unsafe {
                std::mem::transmute::<usize, Sync>(FDATASYNC.address())(file);
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            -1
        }
        Some((Fault::WriteShort, _)) if size > 1 => some(size / 2),
        _ => some(size),
    }
}

/// fsync(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(file: c_int) -> c_int {
    sync(file, &FSYNC)
}

/// fdatasync(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    sync(file, &FDATASYNC)
}

/// write(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller's promise, for as many bytes or fewer.
    write_with(file, size, |size| unsafe {
        std::mem::transmute::<usize, Write>(WRITE.address())(file, bytes, size)
    })
}

/// pwrite(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(
    file: c_int,
    bytes: *const c_void,
    size: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's promise, for as many bytes or fewer.
    write_with(file, size, |size| unsafe {
        std::mem::transmute::<usize, WriteAt>(PWRITE.address())(file, bytes, size, offset)
    })
}

/// pwrite(2), by its other name: offsets have 64 bits on every machine that this is built for.
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(
    file: c_int,
    bytes: *const c_void,
    size: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { pwrite(file, bytes, size, offset) }
}
