//! Strict JSON: every field of an object is taken once, by name and type; whatever is repeated,
//! unknown or of the wrong type is refused by its dotted path.
//!
//! An object is split into its fields without looking into them; a field is parsed when it is
//! taken, by the type that it must have. So no shape of input builds a tree: nesting is skipped
//! without recursion, and what is held are slices of the body.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use tenure_state_machine::Invalid;
use tenure_state_machine::limits::BATCH_COMMANDS;

use crate::refusal::Refusal;

/// Most fields of an object: twice the attributes of a payload, so that too many of these are
/// refused by their own limit.
const FIELDS: usize = 128;
/// Most characters of an unknown field or parameter that a refusal repeats.
pub(crate) const SHOWN_CHARS: usize = 64;

/// The fields of one JSON object that were not taken yet.
#[derive(Debug)]
pub struct Fields<'a> {
    path: String,
    pairs: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Fields<'a> {
    /// Reads a whole body, which must be one JSON object.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] without a field, as is every error before a field is known.
    pub fn read(body: &'a [u8]) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(body).map_err(|_| refuse(None, "the body is not UTF-8"))?;
        if text.trim_ascii().is_empty() {
            return Err(refuse(None, "the body is empty: it must be a JSON object"));
        }
        Self::split(String::new(), text)
    }

    /// Reads an object within the body, found at `path`.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] on `path` when it is no object.
    pub fn at(path: String, raw: &'a RawValue) -> Result<Self, Refusal> {
        Self::split(path, raw.get())
    }

    fn split(path: String, text: &'a str) -> Result<Self, Refusal> {
        match serde_json::from_str(text) {
            Ok(Pairs(pairs)) => Ok(Self { path, pairs }),
            Err(error) => Err(match error.classify() {
                Category::Io | Category::Syntax | Category::Eof => {
                    refuse(None, format!("the body is not JSON: {error}"))
                }
                Category::Data if path.is_empty() => refuse(
                    None,
                    format!("the body must be a JSON object of at most {FIELDS} fields"),
                ),
                Category::Data => {
                    refuse(Some(path), format!("must be a JSON object of at most {FIELDS} fields"))
                }
            }),
        }
    }

    /// Takes a field as it stands. A field that is `null` counts as not given.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] when it is given twice.
    pub fn take(&mut self, name: &str) -> Result<Option<&'a RawValue>, Refusal> {
        let Some(place) = self.pairs.iter().position(|(given, _)| given == name) else {
            return Ok(None);
        };
        let (_, raw) = self.pairs.swap_remove(place);
        if self.pairs.iter().any(|(given, _)| given == name) {
            return Err(self.refuse(name, "must be given only once"));
        }
        Ok(Some(raw).filter(|raw| raw.get() != "null"))
    }

    fn typed<T: Deserialize<'a>>(&mut self, name: &str, what: &str) -> Result<Option<T>, Refusal> {
        let Some(raw) = self.take(name)? else { return Ok(None) };
        serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|_| self.refuse(name, format!("must be {what}")))
    }

    /// Takes a text.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] when it is no string, or given twice.
    pub fn text(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
        Ok(self.typed(name, "a string")?.map(|Text(text)| text))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] when it is negative, fractional (1.0 and 1e3 are), over 2^64,
    /// no number, or given twice.
    pub fn number(&mut self, name: &str) -> Result<Option<u64>, Refusal> {
        self.typed(name, "a whole number from 0 to 2^64 - 1")
    }

    /// Takes a flag.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] when it is neither true nor false, or given twice.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        self.typed(name, "true or false")
    }

    /// Takes an object.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] when it is no object, or given twice.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields<'a>>, Refusal> {
        let Some(raw) = self.take(name)? else { return Ok(None) };
        Fields::at(self.path_of(name), raw).map(Some)
    }

    /// Takes a list with as many items as a batch may have commands.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] when it is no array, has too many items, or is given twice.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<&'a RawValue>>, Refusal> {
        let what = format!("an array of at most {BATCH_COMMANDS} items");
        Ok(self.typed(name, &what)?.map(|Items(items)| items))
    }

    /// Takes a text that must be given.
    ///
    /// # Errors
    /// As [`Fields::text`], and when it is missing.
    pub fn need_text(&mut self, name: &str) -> Result<Cow<'a, str>, Refusal> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    /// Takes a number that must be given.
    ///
    /// # Errors
    /// As [`Fields::number`], and when it is missing.
    pub fn need_number(&mut self, name: &str) -> Result<u64, Refusal> {
        self.number(name)?.ok_or_else(|| self.missing(name))
    }

    /// Says that all fields of this object have been taken.
    ///
    /// # Errors
    /// [`Refusal::InvalidArgument`] on one that has not: it is unknown.
    pub fn finish(&self) -> Result<(), Refusal> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(self.refuse(name, "is unknown here")),
        }
    }

    /// Takes the only field with its name: such an object stands for an enum. None when there are
    /// more, or fewer.
    pub(crate) fn take_only(&mut self) -> Option<(Cow<'a, str>, &'a RawValue)> {
        if self.pairs.len() == 1 { self.pairs.pop() } else { None }
    }

    /// Takes all fields, each a text.
    pub(crate) fn into_texts(mut self) -> Result<BTreeMap<String, String>, Refusal> {
        let mut texts = BTreeMap::new();
        for (name, raw) in std::mem::take(&mut self.pairs) {
            let Ok(Text(text)) = serde_json::from_str(raw.get()) else {
                return Err(self.refuse(&name, "must be a string"));
            };
            if texts.contains_key(&*name) {
                return Err(self.refuse(&name, "must be given only once"));
            }
            texts.insert(name.into_owned(), text.into_owned());
        }
        Ok(texts)
    }

    /// A refusal of a field of this object.
    #[must_use]
    pub fn refuse(&self, name: &str, reason: impl Into<String>) -> Refusal {
        refuse(Some(self.path_of(name)), reason)
    }

    pub(crate) fn missing(&self, name: &str) -> Refusal {
        self.refuse(name, "must be given")
    }

    /// A refusal by the state machine's types, whose field is one of this object's.
    pub(crate) fn invalid(&self, invalid: Invalid) -> Refusal {
        match invalid {
            Invalid::Argument { field, reason } => self.refuse(&field, reason),
            Invalid::PayloadTooLarge { .. } => Refusal::from(invalid),
        }
    }

    /// The dotted path of a field.
    pub(crate) fn path_of(&self, name: &str) -> String {
        let name: String = name.chars().take(SHOWN_CHARS).collect();
        if self.path.is_empty() { name } else { format!("{}.{name}", self.path) }
    }
}

pub(crate) fn refuse(field: Option<String>, reason: impl Into<String>) -> Refusal {
    Refusal::InvalidArgument { field, reason: reason.into() }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// All fields of an object, repeated ones too.
struct Pairs<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::with_capacity(8);
                while let Some(Text(name)) = map.next_key()? {
                    if pairs.len() == FIELDS {
                        return Err(A::Error::custom("too many fields"));
                    }
                    pairs.push((name, map.next_value()?));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The items of an array, at most [`BATCH_COMMANDS`].
struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Array;
        impl<'de> Visitor<'de> for Array {
            type Value = Items<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == BATCH_COMMANDS {
                        return Err(A::Error::custom("too many items"));
                    }
                    items.push(item);
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_seq(Array)
    }
}
