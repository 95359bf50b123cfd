//! The two-part name of a record.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::invalid::{Invalid, in_length};
use crate::limits::{KEY_CHARS, SCOPE_CHARS};

/// The name of a record: a scope and a key, compared byte for byte.
///
/// Held in its stored form: the scope's length in bytes (u16, big-endian), the scope, the key. So
/// the order of names is the order of stored records, all names of a scope are neighbours, and no
/// scope and key can be mistaken for another pair. A clone shares the bytes.
///
/// Its `Debug` and `Display` show the scope and a hash, never the key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

/// Bytes of the length prefix.
const PREFIX: usize = 2;

impl Name {
    /// Checks both parts against the limits: see [`crate::limits`].
    ///
    /// # Errors
    /// [`Invalid::Argument`] on `scope` or `key`.
    pub fn new(scope: &str, key: &str) -> Result<Self, Invalid> {
        check_scope(scope)?;
        check("key", key, KEY_CHARS)?;
        let mut stored = Self::scope_prefix(scope);
        stored.extend_from_slice(key.as_bytes());
        Ok(Self(stored.into()))
    }

    /// What the stored names of `scope` start with, and no others.
    #[must_use]
    pub fn scope_prefix(scope: &str) -> Vec<u8> {
        // A checked scope has at most 4 * SCOPE_CHARS bytes, which fits.
        let length = u16::try_from(scope.len()).unwrap_or(u16::MAX);
        let mut stored = Vec::with_capacity(PREFIX + scope.len() + 32);
        stored.extend_from_slice(&length.to_be_bytes());
        stored.extend_from_slice(scope.as_bytes());
        stored
    }

    /// Reads the stored form back.
    ///
    /// # Errors
    /// [`Invalid::Argument`] when the bytes are no name that [`Name::new`] would make.
    pub fn from_stored(stored: &[u8]) -> Result<Self, Invalid> {
        let (scope, key) = split(stored)
            .ok_or_else(|| Invalid::argument("scope", "the stored name is not well formed"))?;
        check_scope(scope)?;
        check("key", key, KEY_CHARS)?;
        Ok(Self(stored.into()))
    }

    /// The stored form.
    #[must_use]
    pub fn as_stored(&self) -> &[u8] {
        &self.0
    }

    /// The scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        split(&self.0).map_or("", |(scope, _)| scope)
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        split(&self.0).map_or("", |(_, key)| key)
    }
}

/// Checks a scope alone, as the listing of a scope does.
///
/// # Errors
/// [`Invalid::Argument`] on `scope`.
pub fn check_scope(scope: &str) -> Result<(), Invalid> {
    check("scope", scope, SCOPE_CHARS)?;
    if scope.contains(':') {
        return Err(Invalid::argument("scope", "must not contain ':'"));
    }
    Ok(())
}

fn check(field: &'static str, text: &str, max: usize) -> Result<(), Invalid> {
    in_length(field, text, 1, max)?;
    if text.chars().all(char::is_whitespace) {
        return Err(Invalid::argument(field, "must not be blank"));
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::argument(field, "must not contain control characters"));
    }
    Ok(())
}

fn split(stored: &[u8]) -> Option<(&str, &str)> {
    let (prefix, rest) = stored.split_first_chunk::<PREFIX>()?;
    let (scope, key) = rest.split_at_checked(usize::from(u16::from_be_bytes(*prefix)))?;
    Some((std::str::from_utf8(scope).ok()?, std::str::from_utf8(key).ok()?))
}

impl fmt::Display for Name {
    /// `scope/#` and the first 8 hex digits of SHA-256(key): keys never appear in logs or errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/#", self.scope())?;
        for byte in Sha256::digest(self.key().as_bytes()).iter().take(4) {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Stored;
        impl Visitor<'_> for Stored {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a stored name")
            }
            fn visit_bytes<E: de::Error>(self, stored: &[u8]) -> Result<Name, E> {
                Name::from_stored(stored).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Stored)
    }
}
