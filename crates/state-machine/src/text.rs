//! Short texts with bounds: attempt, holder, fingerprint.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::invalid::{Invalid, in_length};
use crate::limits::{ATTEMPT_CHARS, FINGERPRINT_MAX, FINGERPRINT_MIN, HOLDER_CHARS};

/// The caller's id for one logical try (a UUID, usually). Re-sending it is safe (rule R8).
///
/// It is a capability: whoever shows it is the holder. So its `Debug` hides it, and no answer
/// carries it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct Attempt(Box<str>);

/// Who acquired: host, pod, worker. Free text, for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct Holder(Box<str>);

/// A hash of the request, in lower-case hex digits (rule R9).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct Fingerprint(Box<str>);

impl Attempt {
    /// Checks the length: 1 to [`ATTEMPT_CHARS`] characters.
    ///
    /// # Errors
    /// [`Invalid::Argument`] on `attempt`.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, Invalid> {
        let text = text.into();
        in_length("attempt", &text, 1, ATTEMPT_CHARS)?;
        Ok(Self(text))
    }

    /// The text. Not for logs or answers.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Holder {
    /// Checks the length: 0 to [`HOLDER_CHARS`] characters.
    ///
    /// # Errors
    /// [`Invalid::Argument`] on `holder`.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, Invalid> {
        let text = text.into();
        in_length("holder", &text, 0, HOLDER_CHARS)?;
        Ok(Self(text))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Fingerprint {
    /// Checks length and digits, and lower-cases them.
    ///
    /// # Errors
    /// [`Invalid::Argument`] on `fingerprint`.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, Invalid> {
        let mut text = text.into();
        let digits = (FINGERPRINT_MIN..=FINGERPRINT_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !digits {
            return Err(Invalid::argument(
                "fingerprint",
                format!("must be {FINGERPRINT_MIN} to {FINGERPRINT_MAX} hex digits"),
            ));
        }
        text.make_ascii_lowercase();
        Ok(Self(text))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attempt(..)")
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl TryFrom<Box<str>> for $name {
            type Error = Invalid;
            fn try_from(text: Box<str>) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    )*};
}
as_text!(Attempt, Holder, Fingerprint);
