//! The header field, read strictly: an Item of RFC 9651 that is a String.

use http::HeaderMap;
use http::header::HeaderName;
use sfv::{BareItem, Item, Parser};
use tenure_state_machine::limits::KEY_CHARS;

/// The request header field with the key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Why a field holds no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the request has several Idempotency-Key fields")]
    Several,
    #[error("it must be a structured-field string, in double quotes: \"8e03978e-40d5\"")]
    NoString,
    #[error("it must have 1 to {KEY_CHARS} characters")]
    Length,
    #[error("it must not be blank")]
    Blank,
}

/// The key of a request, if there is one. Parameters of the field are checked and ignored, as RFC
/// 9651 has it: the field defines none.
pub(crate) fn read(headers: &HeaderMap) -> Result<Option<String>, Malformed> {
    let mut fields = headers.get_all(IDEMPOTENCY_KEY).into_iter();
    let Some(field) = fields.next() else { return Ok(None) };
    if fields.next().is_some() {
        return Err(Malformed::Several);
    }
    let item = Parser::new(field.as_bytes()).parse::<Item>();
    let Ok(Item { bare_item: BareItem::String(key), .. }) = item else {
        return Err(Malformed::NoString);
    };
    let key = key.as_str();
    // A String is ASCII without control characters, so bytes are characters.
    if key.is_empty() || key.len() > KEY_CHARS {
        return Err(Malformed::Length);
    }
    if key.trim().is_empty() {
        return Err(Malformed::Blank);
    }
    Ok(Some(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read_fields(fields: &[&str]) -> Result<Option<String>, Malformed> {
        let mut headers = HeaderMap::new();
        for field in fields {
            let field = HeaderValue::from_bytes(field.as_bytes()).unwrap();
            headers.append(IDEMPOTENCY_KEY, field);
        }
        read(&headers)
    }

    fn key(field: &str) -> Result<String, Malformed> {
        read_fields(&[field]).map(|key| key.expect("a field gives a key or an error"))
    }

    #[test]
    fn a_quoted_string_is_a_key() {
        assert_eq!(key(r#""8e03978e-40d5-43e8""#).unwrap(), "8e03978e-40d5-43e8");
        assert_eq!(key(r#"  "a b"  "#).unwrap(), "a b", "spaces around it are not part of it");
        assert_eq!(key(r#""a\"b\\c""#).unwrap(), r#"a"b\c"#, "escapes stand for characters");
        assert_eq!(key(r#"" a""#).unwrap(), " a", "spaces within it are");
    }

    #[test]
    fn parameters_are_checked_and_ignored() {
        assert_eq!(key(r#""k";a=1;b;c="x";d=?0"#).unwrap(), "k");
        for field in [r#""k";"#, r#""k";A=1"#, r#""k";a="#, r#""k" ;a"#] {
            assert_eq!(key(field), Err(Malformed::NoString), "{field}");
        }
    }

    #[test]
    fn anything_else_is_malformed() {
        let fields = [
            "",
            "bare-token",
            "8e03978e-40d5",
            "17",
            "?1",
            ":aGk=:",
            "@1659578233",
            r#"%"caf""#,
            r#"""#,
            r#""open"#,
            r#"open""#,
            r#""a"b"#,
            r#""a", "b""#,
            r#"("a")"#,
            r#""bad \n""#,
            r#""end \"#,
            "'single'",
            "\"caf\u{e9}\"",
        ];
        for field in fields {
            assert_eq!(key(field), Err(Malformed::NoString), "{field}");
        }
        assert_eq!(read_fields(&[r#""a""#, r#""a""#]), Err(Malformed::Several));
        assert_eq!(read_fields(&[]), Ok(None));
    }

    #[test]
    fn a_key_has_the_length_that_a_record_takes() {
        let quoted = |length: usize| format!("\"{}\"", "x".repeat(length));
        assert_eq!(key(&quoted(0)), Err(Malformed::Length));
        assert_eq!(key(&quoted(KEY_CHARS)).unwrap().len(), KEY_CHARS);
        assert_eq!(key(&quoted(KEY_CHARS + 1)), Err(Malformed::Length));
        assert_eq!(key("\"   \""), Err(Malformed::Blank));
    }
}
