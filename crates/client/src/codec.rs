//! How values become payloads, and payloads values.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_state_machine::codec;

/// How a value is written into a payload. All callers of a key must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// JSON, of type `application/json`: readable in every language.
    #[default]
    Json,
    /// bincode with fixed-width integers, of type `application/octet-stream`: smaller, for Rust on
    /// both ends. It has no names and no versions: the type must stay as it is.
    Bincode,
}

/// Why a value could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// It is no JSON, or none of that type.
    #[error("as JSON")]
    Json(#[from] serde_json::Error),
    /// The value cannot be written as bincode, or is too large for it.
    #[error("as bincode")]
    Encode(#[from] codec::EncodeError),
    /// The bytes are no bincode of that type.
    #[error("as bincode")]
    Decode(#[from] codec::DecodeError),
}

impl Codec {
    /// The media type of payloads.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Bincode => "application/octet-stream",
        }
    }

    /// A value's bytes.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn encode<T: Serialize>(self, value: &T) -> Result<Vec<u8>, CodecError> {
        Ok(match self {
            Self::Json => serde_json::to_vec(value)?,
            Self::Bincode => codec::encode(value)?,
        })
    }

    /// The value that bytes stand for, all of them.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, CodecError> {
        Ok(match self {
            Self::Json => serde_json::from_slice(bytes)?,
            Self::Bincode => codec::decode(bytes)?,
        })
    }
}
