//! Tenure over HTTP: one JSON command a request, one keep-alive connection a client.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::system::{Acquired, LEASE_MS, SCOPE, System, TTL_MS};

/// Longest body that is read, in bytes.
const BODY_BYTES: usize = 16 * 1024 * 1024;
/// How long a request may take: more than a node's own limit.
const LIMIT: Duration = Duration::from_secs(10);

/// One keep-alive connection to a node; it is dialled when it is first needed, and again after it
/// broke. Requests take turns.
#[derive(Debug)]
pub struct Connection {
    /// host:port.
    address: String,
    limit: Duration,
    sender: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Connection {
    /// A connection to the node at `address` (host:port).
    #[must_use]
    pub fn new(address: String) -> Self {
        Self { address, limit: LIMIT, sender: Mutex::new(None) }
    }

    /// The same with another limit for each request.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Asks the node. Gives the status and the body.
    ///
    /// # Errors
    /// When it cannot be reached or does not answer in time; a command may have run all the same.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let mut sender = self.sender.lock().await;
        let limit = self.limit;
        let answer = timeout(limit, self.exchange(&mut sender, method, path, body)).await;
        let answer = answer.unwrap_or_else(|_| bail!("no answer within {limit:?}"));
        if answer.is_err() {
            *sender = None;
        }
        answer.with_context(|| format!("{} was asked for {path}", self.address))
    }

    async fn exchange(
        &self,
        sender: &mut Option<SendRequest<Full<Bytes>>>,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let sender = match sender {
            Some(sender) if !sender.is_closed() => sender,
            _ => sender.insert(self.dial().await?),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), BODY_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!(error)).context("the body broke off")?;
        Ok((status, body.to_bytes()))
    }

    async fn dial(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let socket = TcpStream::connect(&self.address).await.context("cannot connect")?;
        socket.set_nodelay(true).context("cannot set TCP_NODELAY")?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await?;
        // Its end shows in the next request.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The HTTP address of the leader, as any of these nodes (host:port) knows it.
///
/// # Errors
/// When none of them knows one.
pub async fn leader(nodes: &[String]) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Status {
        leader: Option<Node>,
    }
    #[derive(Deserialize)]
    struct Node {
        http: String,
    }
    let mut last = None;
    for address in nodes {
        let connection = Connection::new(address.clone());
        match connection.ask(Method::GET, "/v1/cluster", Bytes::new()).await {
            Ok((_, body)) => {
                let status: Status =
                    serde_json::from_slice(&body).context("the node's status is not valid")?;
                if let Some(leader) = status.leader {
                    return Ok(leader.http);
                }
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no node knows a leader")))
}

/// An answer's members that a caller looks at.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    outcome: String,
    token: Option<u64>,
    payload: Option<Body>,
    code: Option<String>,
    detail: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Body {
    body: String,
}

impl Answer {
    /// What an acquire came to.
    pub(crate) fn acquired(self) -> anyhow::Result<Acquired<u64>> {
        match (self.outcome.as_str(), self.token, &self.payload) {
            ("acquired", Some(token), _) => Ok(Acquired::Held(token)),
            ("replay", _, None) => Ok(Acquired::Replayed(0)),
            ("replay", _, Some(payload)) => {
                let body = STANDARD.decode(&payload.body).context("the payload is not base64")?;
                Ok(Acquired::Replayed(body.len()))
            }
            (other, ..) => bail!("an acquire came to {other:?}: {}", self.problem()),
        }
    }

    /// Fails unless it has one of these outcomes.
    pub(crate) fn expect(self, outcomes: &[&str]) -> anyhow::Result<()> {
        let as_expected = outcomes.contains(&self.outcome.as_str());
        ensure!(as_expected, "the answer is {:?}: {}", self.outcome, self.problem());
        Ok(())
    }

    fn problem(&self) -> String {
        let word = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{} {}", word(&self.code), word(&self.detail))
    }
}

/// The bodies of the commands of a run.
pub(crate) fn acquire(key: &str) -> Value {
    json!({"scope": SCOPE, "key": key, "lease_ms": LEASE_MS, "ttl_ms": TTL_MS})
}

pub(crate) fn complete(key: &str, token: u64, body: &str) -> Value {
    json!({"scope": SCOPE, "key": key, "token": token, "payload": {"body": body}})
}

pub(crate) fn extend(key: &str, token: u64) -> Value {
    json!({"scope": SCOPE, "key": key, "token": token, "lease_ms": LEASE_MS})
}

/// The outcomes of a complete that went well.
pub(crate) const COMPLETED: [&str; 2] = ["completed", "already_complete"];

/// Tenure over HTTP.
#[derive(Debug)]
pub struct Http {
    connection: Connection,
    /// The result, in base64.
    payload: Arc<str>,
}

impl Http {
    /// Asks the node at `address` (host:port), and stores `payload`.
    #[must_use]
    pub fn new(address: String, payload: &[u8]) -> Self {
        Self { connection: Connection::new(address), payload: STANDARD.encode(payload).into() }
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        let (_, answer) = self.connection.ask(Method::POST, path, body).await?;
        serde_json::from_slice(&answer).context("the answer is not valid")
    }
}

impl System for Http {
    type Held = u64;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<u64>> {
        self.post("/v1/acquire", &acquire(key)).await?.acquired()
    }

    async fn complete(&self, key: &str, token: u64) -> anyhow::Result<()> {
        let answer = self.post("/v1/complete", &complete(key, token, &self.payload)).await?;
        answer.expect(&COMPLETED)
    }

    async fn extend(&self, key: &str, token: &mut u64) -> anyhow::Result<()> {
        self.post("/v1/extend", &extend(key, *token)).await?.expect(&["extended"])
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_is_kept_and_dialled_again_after_it_was_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Connection::new(listener.local_addr().unwrap().to_string());
        let serve = async {
            let mut requests = Vec::new();
            for answers in [2, 1] {
                let (mut socket, _) = listener.accept().await.unwrap();
                for _ in 0..answers {
                    let mut request = vec![0; 4096];
                    let length = socket.read(&mut request).await.unwrap();
                    requests.push(String::from_utf8(request[..length].to_vec()).unwrap());
                    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                    socket.write_all(ok).await.unwrap();
                }
            }
            requests
        };
        let ask = async {
            for number in 0..3 {
                let body = Bytes::from(format!("body-{number}"));
                let (status, answer) = node.ask(Method::POST, "/v1/x", body).await.unwrap();
                assert_eq!((status, &*answer), (200, &b"{}"[..]));
                if number == 1 {
                    // The node's end of the connection is seen before the next request.
                    let sender = &mut *node.sender.lock().await;
                    while sender.as_mut().unwrap().ready().await.is_ok() {
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        let (requests, ()) = tokio::join!(serve, ask);
        for (number, request) in requests.iter().enumerate() {
            assert!(request.starts_with("POST /v1/x HTTP/1.1\r\n"), "{request}");
            assert!(request.ends_with(&format!("\r\n\r\nbody-{number}")), "{request}");
        }
    }

    fn answer(json: &str) -> Answer {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_acquire_is_held_replayed_or_an_error_with_its_code() {
        let held = answer(r#"{"outcome":"acquired","token":7,"resumed":false}"#).acquired();
        assert!(matches!(held, Ok(Acquired::Held(7))), "{held:?}");
        let replay = r#"{"outcome":"replay","token":7,"payload":{"body":"c2VudA=="}}"#;
        assert!(matches!(answer(replay).acquired(), Ok(Acquired::Replayed(4))));
        let refused = answer(r#"{"code":"in_progress","outcome":"refused","token":7}"#);
        assert!(format!("{:#}", refused.acquired().unwrap_err()).contains("in_progress"));
    }
}
