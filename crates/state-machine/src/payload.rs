//! The stored result of an action.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::invalid::Invalid;
use crate::limits::{ATTRIBUTES, ATTRIBUTES_BYTES, BODY_BYTES, TYPE_BYTES};

/// A stored result: type, body and flat string attributes. No payload is not an empty payload: the
/// first is `None` wherever an `Option<Payload>` stands, the second has an empty body.
///
/// Its `Debug` shows sizes, never content.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "Parts")]
pub struct Payload(Parts);

#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Parts {
    kind: Option<String>,
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
    attributes: BTreeMap<String, String>,
}

impl Payload {
    /// Checks every part against the limits: see [`crate::limits`].
    ///
    /// # Errors
    /// [`Invalid::PayloadTooLarge`] for the body, [`Invalid::Argument`] on `payload.type` or
    /// `payload.attributes` for the rest.
    pub fn new(
        kind: Option<String>,
        body: Vec<u8>,
        attributes: BTreeMap<String, String>,
    ) -> Result<Self, Invalid> {
        Self::try_from(Parts { kind, body, attributes })
    }

    /// The media type, if one was given: a legal HTTP header value.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.0.kind.as_deref()
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.0.body
    }

    /// The attributes.
    #[must_use]
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.0.attributes
    }

    /// Bytes of all parts, for limits on batches and answers.
    #[must_use]
    pub fn size(&self) -> usize {
        let kind = self.0.kind.as_ref().map_or(0, String::len);
        kind + self.0.body.len() + attributes_size(&self.0.attributes)
    }
}

fn attributes_size(attributes: &BTreeMap<String, String>) -> usize {
    attributes.iter().map(|(name, value)| name.len() + value.len()).sum()
}

impl TryFrom<Parts> for Payload {
    type Error = Invalid;
    fn try_from(parts: Parts) -> Result<Self, Invalid> {
        if let Some(kind) = &parts.kind {
            // RFC 9110 section 5.5: visible characters, with spaces or tabs only between them.
            let visible = kind.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
            if kind.is_empty() || kind.len() > TYPE_BYTES || !visible || kind.trim() != kind {
                return Err(Invalid::argument(
                    "payload.type",
                    format!("must be a legal header value of 1 to {TYPE_BYTES} bytes"),
                ));
            }
        }
        let size = attributes_size(&parts.attributes);
        if parts.attributes.len() > ATTRIBUTES || size > ATTRIBUTES_BYTES {
            return Err(Invalid::argument(
                "payload.attributes",
                format!("must be at most {ATTRIBUTES} pairs and {ATTRIBUTES_BYTES} bytes"),
            ));
        }
        if parts.body.len() > BODY_BYTES {
            let size = parts.body.len();
            return Err(Invalid::PayloadTooLarge { limit: BODY_BYTES, size });
        }
        Ok(Self(parts))
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes, {} attributes)", self.0.body.len(), self.0.attributes.len())
    }
}
