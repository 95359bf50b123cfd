//! What makes two requests the same one: method, path and query, and body, as received.

use http::request::Parts;
use sha2::{Digest, Sha256};
use tenure_client::Fingerprint;
use tenure_state_machine::Invalid;

/// The hash of a request. It must never change: a retry that comes after an upgrade would be taken
/// for another request.
pub(crate) fn of(parts: &Parts, body: &[u8]) -> Result<Fingerprint, Invalid> {
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let mut hash = Sha256::new();
    // With its length before each part, no two requests give the same bytes.
    for part in [parts.method.as_str().as_bytes(), target.as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Fingerprint::new(hex(&hash.finalize()))
}

/// The hash of a principal, as a part of a scope.
pub(crate) fn of_principal(principal: &str) -> String {
    hex(&Sha256::digest(principal.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn print(method: &str, uri: &str, body: &str) -> String {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        of(&request.into_parts().0, body.as_bytes()).unwrap().as_str().to_owned()
    }

    #[test]
    fn every_part_counts_and_so_does_where_it_ends() {
        let whole = print("POST", "/payments?a=1", "{}");
        assert_eq!(whole, print("POST", "/payments?a=1", "{}"));
        for (method, uri, body) in [
            ("PATCH", "/payments?a=1", "{}"),
            ("POST", "/payment?a=1", "{}"),
            ("POST", "/payments?a=2", "{}"),
            ("POST", "/payments?a=1", "{ }"),
            ("POST", "/payments?a=1{", "}"),
        ] {
            assert_ne!(whole, print(method, uri, body), "{method} {uri} {body}");
        }
        let absolute = print("POST", "http://example.org/payments?a=1", "{}");
        assert_eq!(whole, absolute, "the host is not part of it");
    }

    #[test]
    fn it_is_the_same_in_every_version() {
        let of_old = "72b9f873";
        assert_eq!(&print("POST", "/payments", "{\"amount\":5}")[..8], of_old);
    }
}
