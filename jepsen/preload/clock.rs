//! The wall clock of a process jumps, or runs too fast or too slowly, when a file says so.
//!
//! `CLOCK_FAULTS_CONTROL` names a file with one line, `OFFSET RATE`, read again at every call: so
//! many seconds are added to the real time, and since the file was written it has run at that rate,
//! in parts of a thousand. No line is no fault. Monotonic clocks are left alone.

use libc::{
    CLOCK_REALTIME, CLOCK_REALTIME_COARSE, c_int, c_void, clockid_t, time_t, timespec, timeval,
};

use crate::{read_with_age, variable};

/// The rate of a clock that is right.
const RIGHT: i128 = 1000;
const SECOND: i128 = 1_000_000_000;

/// The kernel's own answer, past this library.
///
/// # Safety
/// There must be room for the time.
unsafe fn ask(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int }
}

fn nanoseconds(time: &timespec) -> i128 {
    i128::from(time.tv_sec) * SECOND + i128::from(time.tv_nsec)
}

/// What the wall clock shows, when it is really `now`.
fn shown(now: i128) -> Option<i128> {
    let mut line = [0_u8; 64];
    let (line, written) = read_with_age(variable(c"CLOCK_FAULTS_CONTROL")?, &mut line)?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let offset: i128 = words.next()?.parse().ok()?;
    let rate: i128 = words.next()?.parse().ok()?;
    let since = now - nanoseconds(&written);
    Some(now + offset * SECOND + since * (rate - RIGHT) / RIGHT)
}

/// Reads a clock.
fn read(clock: clockid_t) -> Result<timespec, c_int> {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time.
    let result = unsafe { ask(clock, &raw mut time) };
    if result != 0 {
        return Err(result);
    }
    if matches!(clock, CLOCK_REALTIME | CLOCK_REALTIME_COARSE)
        && let Some(shown) = shown(nanoseconds(&time))
        && let Ok(tv_sec) = time_t::try_from(shown.div_euclid(SECOND))
        && let Ok(tv_nsec) = shown.rem_euclid(SECOND).try_into()
    {
        time = timespec { tv_sec, tv_nsec };
    }
    Ok(time)
}

/// clock_gettime(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    match read(clock) {
        Ok(read) => {
            // SAFETY: the caller's promise: there is room for the time.
            unsafe { time.write(read) };
            0
        }
        Err(result) => result,
    }
}

/// gettimeofday(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut timeval, _zone: *mut c_void) -> c_int {
    match read(CLOCK_REALTIME) {
        Ok(read) if !time.is_null() => {
            let value = timeval { tv_sec: read.tv_sec, tv_usec: read.tv_nsec / 1000 };
            // SAFETY: the caller's promise: there is room for the time.
            unsafe { time.write(value) };
            0
        }
        Ok(_) => 0,
        Err(result) => result,
    }
}

/// time(2).
///
/// # Safety
/// As the C library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(seconds: *mut time_t) -> time_t {
    let now = read(CLOCK_REALTIME).map_or(-1, |read| read.tv_sec);
    if !seconds.is_null() {
        // SAFETY: the caller's promise: there is room for the time.
        unsafe { seconds.write(now) };
    }
    now
}
