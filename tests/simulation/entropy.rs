//! Where randomness enters this process, and why two runs of one seed are the same.
//!
//! Everything that is drawn, wherever it is drawn, begins at one function of the C library: the
//! keys of hash maps, the order in which `select!` looks at its branches, election timeouts. This
//! binary has its own, which is a stream of numbers from the run's seed. The standard library says
//! that its use of the function may be taken over so.

use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the stream is.
static STREAM: AtomicU64 = AtomicU64::new(0);

/// From now on the process draws from the stream of `seed`. What a thread has drawn before stays:
/// begin on a new one.
pub(crate) fn begin(seed: u64) {
    STREAM.store(seed.wrapping_mul(0x2545_f491_4f6c_dd1d), Ordering::SeqCst);
}

/// A number that nobody knows.
pub(crate) fn unknown() -> u64 {
    let mut bytes = [0; 8];
    let drawn =
        std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    drawn.expect("the kernel has random numbers");
    u64::from_le_bytes(bytes) >> 24
}

/// The next number of the stream (SplitMix64).
fn next() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = STREAM.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Takes the place of the C library's function, whose contract it keeps.
#[expect(unsafe_code, reason = "a C function of this name is called wherever randomness is drawn")]
#[unsafe(no_mangle)]
extern "C" fn getrandom(bytes: *mut u8, length: usize, _flags: u32) -> isize {
    for at in 0..length {
        let [byte, ..] = next().to_le_bytes();
        // SAFETY: the caller gives `length` bytes to be written.
        unsafe { bytes.add(at).write(byte) };
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
