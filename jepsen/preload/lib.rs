//! The disk and the wall clock of a process do what files say: a library to preload.
//!
//! It stands before the C library: before writes and syncs ([`disk`]) and before the wall clock
//! ([`clock`]). Nothing here allocates: a call may come from anywhere, the allocator included.

pub mod clock;
pub mod disk;

use std::ffi::CStr;
use std::mem::MaybeUninit;

pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends in a zero. Nobody changes the environment of a process that has this
    // library: it was given at its start.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a value of the environment ends in a zero.
    Some(unsafe { CStr::from_ptr(value) })
}

/// Fills `buffer` from the start of a file.
pub(crate) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    read_with_age(path, buffer).map(|(bytes, _)| bytes)
}

/// The same, and when the file was written.
pub(crate) fn read_with_age<'a>(
    path: &CStr,
    buffer: &'a mut [u8],
) -> Option<(&'a [u8], libc::timespec)> {
    // SAFETY: the path ends in a zero.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: there is room for what is asked for; the file is ours, and closed once.
    let (length, known) = unsafe {
        let length = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        let known = libc::fstat(file, about.as_mut_ptr());
        libc::close(file);
        (length, known)
    };
    if known != 0 {
        return None;
    }
    // SAFETY: all zeros are a value, and the kernel has filled it in.
    let about = unsafe { about.assume_init() };
    let written = libc::timespec { tv_sec: about.st_mtime, tv_nsec: about.st_mtime_nsec };
    Some((buffer.get(..usize::try_from(length).ok()?)?, written))
}
