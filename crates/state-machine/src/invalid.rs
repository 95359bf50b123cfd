//! Why a value was refused before the log.

use std::borrow::Cow;

/// A value outside its bounds. Nothing was proposed and no record changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A field has a value that no command may carry.
    #[error("{field}: {reason}")]
    Argument {
        /// The field, as a request body spells it (dotted path).
        field: Cow<'static, str>,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The payload's body is larger than a record may keep.
    #[error("the payload's body has {size} bytes, the limit is {limit}")]
    PayloadTooLarge {
        /// The limit, in bytes.
        limit: usize,
        /// The size that was sent, in bytes.
        size: usize,
    },
}

impl Invalid {
    /// An argument error on `field`.
    pub fn argument(field: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        Self::Argument { field: field.into(), reason: reason.into() }
    }
}

/// Checks that `value` lies in `min..=max`, both in the field's own unit.
pub(crate) fn in_range(
    field: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<u64, Invalid> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(Invalid::argument(field, format!("must be {min} to {max}, not {value}")))
    }
}

/// Checks that `text` has `min..=max` characters.
pub(crate) fn in_length(
    field: &'static str,
    text: &str,
    min: usize,
    max: usize,
) -> Result<(), Invalid> {
    let chars = text.chars().count();
    if (min..=max).contains(&chars) {
        Ok(())
    } else {
        Err(Invalid::argument(field, format!("must have {min} to {max} characters, not {chars}")))
    }
}
