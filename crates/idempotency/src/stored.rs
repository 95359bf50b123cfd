//! A response as a record keeps it: status and header fields as attributes, the body as the
//! payload's body, the media type as its type.
//!
//! The attributes are `http-response` (the version of this form), `status` (three digits), and
//! either `fields` (a line `name: value` for each header field, in order; bytes above ASCII as the
//! characters of the same number) or, where there was more than a record takes, `not-kept` (why).
//! So `tenure get` shows a response that a person can read.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use http::header::{self, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::response::Parts;
use http::{Response, StatusCode};
use tenure_client::Payload;
use tenure_state_machine::limits::{ATTRIBUTES_BYTES, TYPE_BYTES};

/// The attribute that says that a payload is a response, in which form.
const FORM: &str = "http-response";
/// The one form there is.
const VERSION: &str = "1";
const STATUS: &str = "status";
const FIELDS: &str = "fields";
const NOT_KEPT: &str = "not-kept";
/// Most bytes of header fields: what attributes may have, less the others.
const FIELDS_BYTES: usize = ATTRIBUTES_BYTES - 256;

/// Header fields that are about a connection, or about one message and not what it says: a replay
/// is another message, on another connection (RFC 9110 sections 6.6.1 and 7.6.1).
const OF_ONE_MESSAGE: [HeaderName; 8] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    // The body's length is known from the body.
    header::CONTENT_LENGTH,
    header::DATE,
];
/// The same, where `http` has no names for them.
const OF_ONE_CONNECTION: [&str; 2] = ["keep-alive", "proxy-connection"];

/// Why a response is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotKept {
    BodyTooLarge,
    FieldsTooLarge,
    BodyBroken,
}

impl NotKept {
    fn as_str(self) -> &'static str {
        match self {
            Self::BodyTooLarge => "body-too-large",
            Self::FieldsTooLarge => "fields-too-large",
            Self::BodyBroken => "body-broken",
        }
    }
}

/// What a record says of an earlier request.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Its response.
    Response(Response<Vec<u8>>),
    /// Its status alone.
    NotKept(StatusCode),
}

/// The payload for a response, without the fields named in `left_out`. None if it makes none that
/// a record takes.
pub(crate) fn write(head: &Parts, body: Vec<u8>, left_out: &[HeaderName]) -> Option<Arc<Payload>> {
    let kind = kind_of(&head.headers);
    let Some(fields) = fields(&head.headers, kind.is_some(), left_out) else {
        return mark(head.status, NotKept::FieldsTooLarge);
    };
    let attributes = [(STATUS, head.status.as_str()), (FIELDS, &fields)];
    payload(kind, body, attributes).or_else(|| mark(head.status, NotKept::BodyTooLarge))
}

/// The payload for a response that is not kept.
pub(crate) fn mark(status: StatusCode, why: NotKept) -> Option<Arc<Payload>> {
    payload(None, Vec::new(), [(STATUS, status.as_str()), (NOT_KEPT, why.as_str())])
}

fn payload(
    kind: Option<String>,
    body: Vec<u8>,
    attributes: [(&str, &str); 2],
) -> Option<Arc<Payload>> {
    let form = [(FORM, VERSION)];
    let attributes = form.iter().chain(&attributes);
    let attributes = attributes.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Payload::new(kind, body, attributes.collect()).ok().map(Arc::new)
}

/// The media type, if there is one and a payload's type can say it.
fn kind_of(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(CONTENT_TYPE).into_iter();
    let kind = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    let fits = !kind.is_empty() && kind.len() <= TYPE_BYTES && kind.trim() == kind;
    fits.then(|| kind.to_owned())
}

/// The lines of the fields that are kept; none if they are too many.
fn fields(headers: &HeaderMap, has_kind: bool, left_out: &[HeaderName]) -> Option<String> {
    let named: HashSet<String> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut lines = String::new();
    for (name, value) in headers {
        let of_one_message = OF_ONE_MESSAGE.contains(name)
            || OF_ONE_CONNECTION.contains(&name.as_str())
            || named.contains(name.as_str());
        if of_one_message || left_out.contains(name) || (has_kind && name == CONTENT_TYPE) {
            continue;
        }
        let value: String = value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
        writeln!(lines, "{name}: {value}").ok()?;
        if lines.len() > FIELDS_BYTES {
            return None;
        }
    }
    Some(lines)
}

/// The response in a payload; none if it is not one that [`write`] or [`mark`] makes.
pub(crate) fn read(payload: &Payload) -> Option<Stored> {
    let attributes = payload.attributes();
    let known =
        attributes.keys().all(|name| [FORM, STATUS, FIELDS, NOT_KEPT].contains(&name.as_str()));
    if !known || attributes.get(FORM)? != VERSION {
        return None;
    }
    let status = StatusCode::from_bytes(attributes.get(STATUS)?.as_bytes()).ok()?;
    if attributes.contains_key(NOT_KEPT) {
        return Some(Stored::NotKept(status));
    }
    let mut response = Response::new(payload.body().to_vec());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Some(kind) = payload.kind() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(kind).ok()?);
    }
    for line in attributes.get(FIELDS)?.lines() {
        let (name, value) = line.split_once(": ")?;
        let value: Option<Vec<u8>> = value.chars().map(|char| u8::try_from(char).ok()).collect();
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.try_append(name, HeaderValue::from_bytes(&value?).ok()?).ok()?;
    }
    Some(Stored::Response(response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::SET_COOKIE;

    fn head(status: u16, fields: &[(&'static str, &[u8])]) -> Parts {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in fields {
            let value = HeaderValue::from_bytes(value).unwrap();
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
        response.into_parts().0
    }

    fn round(head: &Parts, body: &[u8]) -> Response<Vec<u8>> {
        match read(&write(head, body.to_vec(), &[SET_COOKIE]).unwrap()).unwrap() {
            Stored::Response(response) => response,
            Stored::NotKept(status) => panic!("{status} is not kept"),
        }
    }

    #[test]
    fn a_response_comes_back_as_it_was() {
        let fields: [(&str, &[u8]); 6] = [
            ("content-type", b"application/json; charset=utf-8"),
            ("location", b"/payments/1"),
            ("x-many", b"one"),
            ("x-many", b"two: 2"),
            ("x-raw", b"caf\xe9\t\x80"),
            ("x-empty", b""),
        ];
        let head = head(201, &fields);
        let back = round(&head, b"{\"id\":1}\0\xff");
        assert_eq!(back.status(), 201);
        assert_eq!(back.headers(), &head.headers);
        assert_eq!(back.body(), b"{\"id\":1}\0\xff");
    }

    #[test]
    fn the_stored_form_is_the_same_in_every_version() {
        let fields: [(&str, &[u8]); 2] = [("content-type", b"text/plain"), ("location", b"/p/1")];
        let payload = write(&head(201, &fields), b"paid".to_vec(), &[]).unwrap();
        assert_eq!(payload.kind(), Some("text/plain"));
        assert_eq!(payload.body(), b"paid");
        let attributes =
            [("fields", "location: /p/1\n"), ("http-response", "1"), ("status", "201")];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(payload.attributes(), &attributes.into());
        let marked = mark(StatusCode::CREATED, NotKept::BodyTooLarge).unwrap();
        let attributes =
            [("http-response", "1"), ("not-kept", "body-too-large"), ("status", "201")];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(marked.attributes(), &attributes.into());
    }

    #[test]
    fn fields_of_one_connection_or_message_and_those_left_out_are_not_kept() {
        let fields: [(&str, &[u8]); 8] = [
            ("connection", b"close, X-Hop"),
            ("x-hop", b"1"),
            ("keep-alive", b"timeout=5"),
            ("transfer-encoding", b"chunked"),
            ("content-length", b"9"),
            ("date", b"Tue, 01 Dec 2026 00:00:00 GMT"),
            ("set-cookie", b"session=secret"),
            ("x-kept", b"1"),
        ];
        let back = round(&head(200, &fields), b"");
        assert_eq!(back.headers().len(), 1);
        assert_eq!(back.headers()["x-kept"], "1");
    }

    #[test]
    fn a_media_type_that_is_no_type_of_a_payload_stays_a_field() {
        let long = [b'x'; TYPE_BYTES + 1];
        for kinds in [vec![&long[..]], vec![&b"text/plain"[..], b"text/html"], vec![b"caf\xe9"]] {
            let fields: Vec<_> = kinds.into_iter().map(|kind| ("content-type", kind)).collect();
            let head = head(200, &fields);
            assert_eq!(round(&head, b"").headers(), &head.headers);
        }
    }

    #[test]
    fn more_than_a_record_takes_is_marked() {
        let large = [b'x'; 8 * 1024];
        let head = head(201, &[("x-a", &large), ("x-b", &large)]);
        let too_many = write(&head, Vec::new(), &[]).unwrap();
        assert_eq!(too_many.attributes()[NOT_KEPT], "fields-too-large");
        let body = vec![0; tenure_state_machine::limits::BODY_BYTES + 1];
        let too_large = write(&self::head(201, &[]), body, &[]).unwrap();
        assert_eq!(too_large.attributes()[NOT_KEPT], "body-too-large");
        for payload in [too_many, too_large] {
            let read = read(&payload);
            assert!(matches!(read, Some(Stored::NotKept(StatusCode::CREATED))), "{read:?}");
        }
    }

    #[test]
    fn what_was_written_by_others_is_not_read() {
        let whole = [("http-response", "1"), ("status", "200"), ("fields", "a: b\n")];
        let read_with = |name: &str, value: Option<&str>| {
            let mut attributes: std::collections::BTreeMap<String, String> =
                whole.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            match value {
                Some(value) => attributes.insert(name.to_owned(), value.to_owned()),
                None => attributes.remove(name),
            };
            read(&Payload::new(None, Vec::new(), attributes).unwrap())
        };
        assert!(read_with("status", Some("404")).is_some());
        for (name, value) in [
            ("http-response", None),
            ("http-response", Some("2")),
            ("status", None),
            ("status", Some("99")),
            ("status", Some("two")),
            ("fields", None),
            ("fields", Some("no colon\n")),
            ("fields", Some("bad name: x\n")),
            ("fields", Some("a: \u{1}\n")),
            ("fields", Some("a: \u{100}\n")),
            ("encoding", Some("gzip")),
        ] {
            assert!(read_with(name, value).is_none(), "{name}: {value:?}");
        }
        assert!(read(&Payload::default()).is_none());
    }
}
