//! A node's HTTP API, one connection a request.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A node's HTTP API.
#[derive(Debug, Clone)]
pub struct Http(pub(crate) SocketAddr);

/// What was answered.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Answered {
    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

impl Http {
    /// A server that is no node.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self(address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0
    }

    /// Posts a JSON body. None if the connection broke.
    pub async fn post(&self, path: &str, body: Value) -> Option<Answered> {
        self.ask(Method::POST, path, &[], body.to_string()).await
    }

    /// Gets a path. None if the connection broke.
    pub async fn get(&self, path: &str) -> Option<Answered> {
        self.ask(Method::GET, path, &[], String::new()).await
    }

    /// Sends anything. None if the connection broke.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Option<Answered> {
        let socket = TcpStream::connect(self.0).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.ok()?;
        let mut request =
            Request::builder().method(method).uri(path).header(HOST, self.0.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let answer = async {
            let response = sender.send_request(request).await.ok()?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            let text = String::from_utf8_lossy(&body).into_owned();
            Some(Answered { status: head.status.as_u16(), headers: head.headers, text })
        };
        // Both in one task: who drops the request drops the connection.
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            _ = connection => answer.await,
        }
    }
}
