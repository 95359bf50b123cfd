//! The one door to bincode: fixed-width little-endian integers, a size limit, trailing bytes
//! refused, decoded only from slices (a stream's length prefix could ask for any allocation).
//!
//! What goes to disk is *sealed*: a format version, the CRC-32C of the rest, then the bytes.

use bincode::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::seeded::{SeededBug, seeded};

/// Largest encoding, in bytes: an entry with one command of every limit, and room.
pub const ENCODED_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes before a sealed body: version and checksum.
const SEAL: usize = 5;

/// Bytes that are no encoding of the wanted type, or damaged ones.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are too short to be sealed.
    #[error("{0} bytes are too short for a version and a checksum")]
    Short(usize),
    /// A format that this build does not know.
    #[error("format version {found}, this build reads {known}: use a newer build")]
    Version {
        /// The version byte found.
        found: u8,
        /// The version this build reads.
        known: u8,
    },
    /// The bytes are not those that were written.
    #[error("checksum {computed:08x} differs from the stored {stored:08x}: the bytes are damaged")]
    Checksum {
        /// What the bytes give.
        computed: u32,
        /// What was written with them.
        stored: u32,
    },
    /// The bytes are intact but do not form the type.
    #[error("not a valid encoding")]
    Malformed(#[source] bincode::Error),
}

fn options() -> impl Options {
    bincode::DefaultOptions::new()
        .with_limit(ENCODED_BYTES)
        .with_fixint_encoding()
        .reject_trailing_bytes()
}

/// A value that has no encoding: it is larger than [`ENCODED_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("the value cannot be encoded within {ENCODED_BYTES} bytes")]
pub struct EncodeError(#[source] bincode::Error);

/// Appends the encoding of `value` to `bytes`.
///
/// # Errors
/// [`EncodeError`] when it would take more than [`ENCODED_BYTES`].
pub fn encode_into<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    // Asked for its size once, for the limit and for room; bincode would ask again.
    let size = options().serialized_size(value).map_err(EncodeError)?;
    bytes.reserve(usize::try_from(size).unwrap_or_default());
    options().with_no_limit().serialize_into(bytes, value).map_err(EncodeError)
}

/// The encoding of `value`.
///
/// # Errors
/// As [`encode_into`].
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, value)?;
    Ok(bytes)
}

/// Reads the whole slice as one value.
///
/// # Errors
/// [`DecodeError::Malformed`] for anything else, and for more than [`ENCODED_BYTES`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    // bincode does not hold slices to its limit.
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > ENCODED_BYTES {
        return Err(DecodeError::Malformed(bincode::ErrorKind::SizeLimit.into()));
    }
    options().deserialize(bytes).map_err(DecodeError::Malformed)
}

/// The sealed encoding of `value`, for disk.
///
/// # Errors
/// As [`encode_into`].
pub fn seal<T: Serialize>(version: u8, value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = vec![version, 0, 0, 0, 0];
    encode_into(&mut bytes, value)?;
    let body = bytes.get(SEAL..).unwrap_or_default();
    let checksum = crc32c::crc32c(body).to_le_bytes();
    for (byte, sum) in bytes.iter_mut().skip(1).zip(checksum) {
        *byte = sum;
    }
    Ok(bytes)
}

/// Checks and reads a sealed encoding.
///
/// # Errors
/// [`DecodeError`]: too short, another version, damaged, or malformed.
pub fn unseal<T: DeserializeOwned>(known: u8, bytes: &[u8]) -> Result<T, DecodeError> {
    let Some((&[found, a, b, c, d], body)) = bytes.split_first_chunk::<SEAL>() else {
        return Err(DecodeError::Short(bytes.len()));
    };
    if found != known {
        return Err(DecodeError::Version { found, known });
    }
    let stored = u32::from_le_bytes([a, b, c, d]);
    let computed = crc32c::crc32c(body);
    if computed != stored && !seeded(SeededBug::DamageServed) {
        return Err(DecodeError::Checksum { computed, stored });
    }
    decode(body)
}
