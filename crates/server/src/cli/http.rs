//! A client for a node's HTTP address: one request a connection.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest body that is read, in bytes.
const BODY_BYTES: usize = 16 * 1024 * 1024;

/// What a node answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// Nothing was sent.
    #[error("cannot connect to {address}")]
    Connect {
        address: String,
        #[source]
        source: std::io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer within {limit:?}")]
    Timeout { address: String, limit: Duration },
    /// What came back was not HTTP, or the connection broke.
    #[error("{address} did not answer in HTTP")]
    Http {
        address: String,
        #[source]
        source: hyper::Error,
    },
    /// The request or the answer has no place in HTTP.
    #[error("{address}: the request or the answer is not valid")]
    Body {
        address: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An address as it is typed: `host:port`, with or without `http://`.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.starts_with("https://") {
        return Err("https is not spoken".to_owned());
    }
    let address = text.strip_prefix("http://").unwrap_or(text);
    let address = address.strip_suffix('/').unwrap_or(address);
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(address.to_owned())
        }
        _ => Err("must be http://host:port".to_owned()),
    }
}

/// Asks the node at `address` (host:port).
///
/// # Errors
/// [`HttpError`]; only after `Connect` is it known that nothing was sent.
pub(crate) async fn request(
    address: &str,
    method: Method,
    path: &str,
    body: Option<String>,
    limit: Duration,
) -> Result<Answer, HttpError> {
    match timeout(limit, exchange(address, method, path, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(HttpError::Timeout { address: address.to_owned(), limit }),
    }
}

async fn exchange(
    address: &str,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<Answer, HttpError> {
    let connect = |source| HttpError::Connect { address: address.to_owned(), source };
    let http = |source| HttpError::Http { address: address.to_owned(), source };
    let socket = TcpStream::connect(address).await.map_err(connect)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(http)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, address)
        .header(CONNECTION, "close")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .map_err(|source| HttpError::Body { address: address.to_owned(), source: source.into() })?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(http)?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), BODY_BYTES)
            .collect()
            .await
            .map_err(|source| HttpError::Body { address: address.to_owned(), source })?
            .to_bytes();
        Ok(Answer { status, body })
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection's end may be polled first; what it brought is still read.
        _ = connection => exchange.await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_taken_with_and_without_scheme() {
        for text in ["http://127.0.0.1:7601", "127.0.0.1:7601", " http://127.0.0.1:7601/ "] {
            assert_eq!(address(text).as_deref(), Ok("127.0.0.1:7601"));
        }
        for text in ["https://a:1", "a", "http://a", ":1", "a:b", ""] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    async fn answered(raw: &'static [u8]) -> Result<Answer, HttpError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = socket.read(&mut request).await.unwrap();
            socket.write_all(raw).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        };
        let body = Some("{}".to_owned());
        let ask = request(&address, Method::POST, "/v1/x", body, Duration::from_secs(5));
        let (answer, request) = tokio::join!(ask, serve);
        assert!(request.starts_with("POST /v1/x HTTP/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
        answer
    }

    #[tokio::test]
    async fn an_answer_has_its_status_and_body() {
        let raw = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        let answer = answered(raw).await.unwrap();
        assert_eq!((answer.status, &*answer.body), (404, &b"{}"[..]));
    }

    #[tokio::test]
    async fn garbage_and_a_broken_connection_are_errors() {
        assert!(matches!(answered(b"tenure\r\n\r\n").await, Err(HttpError::Http { .. })));
        assert!(matches!(answered(b"").await, Err(HttpError::Http { .. })));
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}";
        assert!(answered(cut).await.is_err());
    }

    #[tokio::test]
    async fn nobody_there_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let sent = request(&address, Method::GET, "/", None, Duration::from_secs(5)).await;
        assert!(matches!(sent, Err(HttpError::Connect { .. })));
    }
}
