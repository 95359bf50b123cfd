//! Bounds of everything a caller may send. A value outside is refused before the log, never rounded.

/// Longest scope, in characters.
pub const SCOPE_CHARS: usize = 128;
/// Longest key, in characters.
pub const KEY_CHARS: usize = 255;
/// Longest attempt, in characters: a UUID takes 36.
pub const ATTEMPT_CHARS: usize = 64;
/// Longest holder, in characters.
pub const HOLDER_CHARS: usize = 128;

/// Shortest lease, in milliseconds. Below two, a heartbeat has no whole millisecond to come in.
pub const LEASE_MIN_MS: u64 = 2;
/// Longest lease, in milliseconds: a day. A longer action sends heartbeats.
pub const LEASE_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// Lease of an acquire that names none, in milliseconds.
pub const LEASE_DEFAULT_MS: u64 = 30 * 1000;

/// Shortest ttl, in milliseconds.
pub const TTL_MIN_MS: u64 = 1;
/// Longest ttl, in milliseconds: 3650 days.
pub const TTL_MAX_MS: u64 = 3650 * 24 * 60 * 60 * 1000;
/// Ttl of an acquire that names none, in milliseconds.
pub const TTL_DEFAULT_MS: u64 = 24 * 60 * 60 * 1000;

/// Longest wait of an acquire or a `wait`, in milliseconds.
pub const WAIT_MAX_MS: u64 = 60 * 1000;

/// Largest payload body, in bytes, inclusive.
pub const BODY_BYTES: usize = 1024 * 1024;
/// Longest payload type, in bytes.
pub const TYPE_BYTES: usize = 255;
/// Most attributes of a payload.
pub const ATTRIBUTES: usize = 64;
/// Largest sum of attribute names and values, in bytes.
pub const ATTRIBUTES_BYTES: usize = 16 * 1024;

/// Fewest hex digits of a fingerprint: 64 bits.
pub const FINGERPRINT_MIN: usize = 16;
/// Most hex digits of a fingerprint: 512 bits.
pub const FINGERPRINT_MAX: usize = 128;

/// Largest token: the largest integer that JSON readers in other languages keep exact.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// Most records that one purge deletes.
pub const PURGE_MAX: u32 = 10_000;
/// Limit of a purge that names none.
pub const PURGE_DEFAULT: u32 = 1000;

/// Most commands in one batch request.
pub const BATCH_COMMANDS: usize = 128;
/// Most payload bytes in one batch request.
pub const BATCH_BYTES: usize = 1024 * 1024;

/// Most commands in one log entry.
pub const ENTRY_COMMANDS: usize = 256;
/// Most bytes of commands in one log entry; a single larger command goes alone.
pub const ENTRY_BYTES: usize = 1024 * 1024;
