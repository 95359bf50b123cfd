//! The HTTP API: connections, and what holds for every request.
//!
//! Routes are in [`crate::routes`]; what bodies and answers look like is the api crate's.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, CONTENT_DISPOSITION, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response as AxumResponse};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tenure_api::{Content, Response};
use tenure_client::Socket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::shared::Shared;
use crate::socket::Listener;
use crate::{routes, socket};

/// Connections at once; more are not accepted until some close.
const CONNECTIONS: usize = 10_000;
/// For the head of a request to arrive, and between two requests of a connection.
const HEAD: Duration = Duration::from_secs(30);
/// Most bytes of a request's head.
const HEAD_BYTES: usize = 32 * 1024;
/// For requests in flight when the node stops.
const DRAIN: Duration = Duration::from_secs(10);

/// Names the leader's HTTP address.
const LEADER: HeaderName = HeaderName::from_static("x-tenure-leader");

/// Accepts until `drain` is cancelled, then lets requests in flight end.
pub(crate) async fn listen(
    listener: Box<dyn Listener>,
    shared: Arc<Shared>,
    drain: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let service = routes::router(shared);
    let mut connections = JoinSet::new();
    while let Some((socket, peer, place)) = socket::accept(&*listener, &places, &drain).await {
        let (service, drain) = (service.clone(), drain.clone());
        connections.spawn(async move {
            let _place = place;
            if let Err(error) = serve(socket, service, drain).await {
                tracing::debug!(%peer, %error, "connection closed");
            }
        });
        while connections.try_join_next().is_some() {}
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("some HTTP requests did not end in time");
    }
}

async fn serve(
    socket: Socket,
    router: axum::Router,
    drain: CancellationToken,
) -> hyper::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    let service = TowerToHyperService::new(router);
    let socket = TokioIo::new(tokio::io::join(socket.read, socket.write));
    let mut connection = pin!(http.serve_connection(socket, service));
    tokio::select! {
        ended = &mut connection => return ended,
        () = drain.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// A request that no web page may send, an answer that says who leads.
pub(crate) async fn guard(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> AxumResponse {
    let mut response = match forbidden(request.headers(), &shared.config.hosts) {
        Some(detail) => send(Response::forbidden(detail)),
        None => next.run(request).await,
    };
    let leader = match shared.router.other_leader() {
        Some(leader) => Some(leader.http),
        None => shared.time.present().map(|_| shared.config.address.http.clone()),
    };
    if let Some(leader) = leader.and_then(|leader| HeaderValue::from_str(&leader).ok()) {
        response.headers_mut().insert(LEADER, leader);
    }
    response
}

/// A browser sends the Origin of the page that drives it, and the Host that the page named: a
/// page elsewhere can give neither this node's own origin nor, after its name was pointed at
/// loopback, a host that the node goes by.
fn forbidden(headers: &HeaderMap, hosts: &[String]) -> Option<&'static str> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let known = host.is_some_and(|host| is_own_host(host, hosts));
    if !known {
        return Some("the Host is no IP address, not localhost, and not configured");
    }
    let origin = headers.get(ORIGIN)?;
    let own = host.zip(origin.to_str().ok()).is_some_and(|(host, origin)| {
        origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host))
    });
    (!own).then_some("the Origin is not this node's own")
}

fn is_own_host(host: &str, hosts: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// A route's 405 in this API's form; its Allow header stays.
pub(crate) fn method_not_allowed(allowed: Option<HeaderValue>) -> AxumResponse {
    let request_id = Uuid::now_v7().to_string();
    let mut response = send(Response::method_not_allowed(&request_id));
    if let Some(allowed) = allowed {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// Turns an answer of the api crate into one of axum's.
pub(crate) fn send(response: Response) -> AxumResponse {
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut sent = AxumResponse::new(Body::from(response.body));
    *sent.status_mut() = status;
    let headers = sent.headers_mut();
    if let Some(content) = &response.content {
        if let Ok(kind) = HeaderValue::from_str(content.as_str()) {
            headers.insert(CONTENT_TYPE, kind);
        }
        if matches!(content, Content::Payload(_)) {
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
        }
    }
    if let Some(seconds) = response.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    sent
}

/// A plain answer of the operator's routes.
pub(crate) fn plain(status: StatusCode, kind: &'static str, body: String) -> AxumResponse {
    (status, [(CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_web_page_elsewhere_may_not_drive_a_node() {
        let hosts = ["tenure.internal".to_owned()];
        let allowed = |host: &str, origin| forbidden(&headers(host, origin), &hosts).is_none();
        assert!(allowed("127.0.0.1:7601", None));
        assert!(allowed("[::1]:7601", None));
        assert!(allowed("localhost", None));
        assert!(allowed("Tenure.Internal:80", None));
        assert!(allowed("127.0.0.1:7601", Some("http://127.0.0.1:7601")));
        assert!(!allowed("127.0.0.1:7601", Some("http://127.0.0.1:8000")));
        assert!(!allowed("127.0.0.1:7601", Some("null")));
        assert!(!allowed("evil.example:7601", None));
        assert!(!allowed("127.0.0.1.evil.example", None));
        assert!(forbidden(&HeaderMap::new(), &hosts).is_some());
    }
}
