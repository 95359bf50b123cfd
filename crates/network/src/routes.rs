//! The routes of the HTTP API.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response as AxumResponse;
use axum::routing::{get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Frame;
use percent_encoding::percent_decode_str;
use tenure_api::body::{self, HTTP_BODY_BYTES};
use tenure_api::frame::{Ask, Change, Decided, Reply};
use tenure_api::{Refusal, Response, query};
use tenure_state_machine::{Attempt, Command, Name};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use uuid::Uuid;

use crate::http::{guard, method_not_allowed, plain, send};
use crate::route::Reach;
use crate::shared::Shared;

/// For a body to arrive.
const BODY: Duration = Duration::from_secs(30);
/// Least memory that a body takes at a time: most take it once.
const ROOM_BYTES: usize = 2 * 1024;
/// Beyond every limit of a node's own: HTTP requests bring no budget.
const NO_BUDGET: Duration = Duration::from_secs(24 * 60 * 60);
/// Forbids forwarding.
const NO_FORWARD: &str = "x-no-forward";

type App = State<Arc<Shared>>;
type Answered = Result<Response, Refusal>;

/// All routes, guarded.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let record = "/v1/scopes/{scope}/keys/{key}";
    Router::new()
        .route("/v1/acquire", post(acquire))
        .route("/v1/complete", post(complete))
        .route("/v1/release", post(release))
        .route("/v1/extend", post(extend))
        .route("/v1/wait", post(wait))
        .route("/v1/purge", post(purge))
        .route("/v1/batch", post(batch))
        .route(record, get(get_record))
        .route(&format!("{record}/payload"), get(get_payload))
        .route("/v1/scopes/{scope}/keys", get(list))
        .route("/v1/cluster", get(cluster))
        .route("/v1/cluster/members", post(add_member))
        .route("/v1/cluster/members/{id}/promote", post(promote))
        .route("/v1/cluster/members/{id}", axum::routing::delete(remove))
        .route("/v1/cluster/transfer", post(transfer))
        .route("/v1/cluster/snapshot", post(snapshot))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .fallback(async || send(Response::not_found()))
        .layer(from_fn(in_our_words))
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// What the router itself would refuse or let pass, in this API's words: a path or a query that
/// cannot be decoded is a 400, and its 405 becomes one of ours.
async fn in_our_words(request: Request, next: axum::middleware::Next) -> AxumResponse {
    if let Err(refusal) = check_encoding(request.uri()) {
        return send(Response::refused(&refusal));
    }
    let response = next.run(request).await;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        return method_not_allowed(response.headers().get(axum::http::header::ALLOW).cloned());
    }
    response
}

/// Each `%` must begin an escape, which the decoders behind this do not ask for, and what all
/// escapes stand for must be UTF-8.
fn check_encoding(uri: &Uri) -> Result<(), Refusal> {
    for text in [uri.path(), uri.query().unwrap_or_default()] {
        let is_escape = |rest: &str| {
            rest.get(..2).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        let is_escaped = text.split('%').skip(1).all(is_escape);
        if !is_escaped || percent_decode_str(text).decode_utf8().is_err() {
            return Err(invalid(None, "the path or the query is not percent-encoded UTF-8"));
        }
    }
    Ok(())
}

fn answer(answered: Answered) -> AxumResponse {
    send(answered.unwrap_or_else(|refusal| Response::refused(&refusal)))
}

fn fresh_attempt() -> Attempt {
    let id = Uuid::now_v7().to_string();
    // A UUID is within every limit of an attempt.
    Attempt::new(id).unwrap_or_else(|_| unreachable!())
}

fn invalid(field: Option<&str>, reason: &str) -> Refusal {
    let field = field.map(str::to_owned);
    Refusal::InvalidArgument { field, reason: reason.to_owned() }
}

/// The whole body, within its limits of size and time, and of memory for all.
async fn read(shared: &Shared, body: Body) -> Result<Vec<u8>, Refusal> {
    let arrived = timeout(BODY, collect(shared, body)).await;
    arrived.unwrap_or_else(|_| Err(invalid(None, "the body did not arrive in time")))
}

/// Memory is taken as the body arrives: one that is only promised keeps nobody else out.
async fn collect(shared: &Shared, body: Body) -> Result<Vec<u8>, Refusal> {
    let mut body = Limited::new(body, HTTP_BODY_BYTES);
    let mut bytes = Vec::new();
    let (mut room, mut covered) = (None::<OwnedSemaphorePermit>, 0);
    while let Some(frame) = body.frame().await {
        let data = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => data,
            // Trailers say nothing here.
            Ok(Err(_)) => continue,
            Err(error) if error.is::<LengthLimitError>() => {
                let limit = u64::try_from(HTTP_BODY_BYTES).unwrap_or(u64::MAX);
                // Read no further than the limit: at least one more.
                return Err(Refusal::PayloadTooLarge { limit, size: limit + 1 });
            }
            Err(_) => return Err(invalid(None, "the body broke off")),
        };
        let length = bytes.len() + data.len();
        if length > covered {
            let more = (length - covered).max(ROOM_BYTES);
            let taken = shared.router.budget.take(more)?;
            match &mut room {
                Some(room) => room.merge(taken),
                None => room = Some(taken),
            }
            covered += more;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn reach(headers: &HeaderMap) -> Reach {
    let forbids = headers.get(NO_FORWARD).is_some_and(|value| value.as_bytes() == b"1");
    if forbids { Reach::ThisNode } else { Reach::Cluster }
}

async fn ask(shared: &Shared, headers: &HeaderMap, ask: Ask) -> Answered {
    let reply = shared.router.ask(ask, NO_BUDGET, reach(headers)).await?;
    Ok(Response::reply(&reply, ""))
}

async fn command(shared: &Shared, headers: &HeaderMap, command: Command) -> Answered {
    ask(shared, headers, Ask::Command { command, wait_ms: 0 }).await
}

async fn acquire(State(shared): App, headers: HeaderMap, body: Body) -> AxumResponse {
    answer(
        async {
            let (acquire, wait_ms) = body::acquire(&read(&shared, body).await?, fresh_attempt)?;
            let command = Command::Acquire(acquire);
            ask(&shared, &headers, Ask::Command { command, wait_ms }).await
        }
        .await,
    )
}

/// A handler for a command that is all of its body.
macro_rules! commands {
    ($($handler:ident: $variant:ident),*) => {$(
        async fn $handler(State(shared): App, headers: HeaderMap, body: Body) -> AxumResponse {
            let answered = async {
                let parsed = Command::$variant(body::$handler(&read(&shared, body).await?)?);
                command(&shared, &headers, parsed).await
            };
            answer(answered.await)
        }
    )*};
}
commands!(complete: Complete, release: Release, extend: Extend, purge: Purge);

async fn wait(State(shared): App, headers: HeaderMap, body: Body) -> AxumResponse {
    let answered = async {
        let (name, timeout_ms) = body::wait(&read(&shared, body).await?)?;
        ask(&shared, &headers, Ask::Wait { name, timeout_ms }).await
    };
    answer(answered.await)
}

async fn batch(State(shared): App, headers: HeaderMap, body: Body) -> AxumResponse {
    let answered = async {
        let parsed = body::batch(&read(&shared, body).await?, fresh_attempt)?;
        let valid: Vec<Command> = parsed.iter().flatten().cloned().collect();
        let decided = if valid.is_empty() {
            Vec::new()
        } else {
            let reply = shared.router.ask(Ask::Batch(valid), NO_BUDGET, reach(&headers)).await?;
            let Reply::Batch(decided) = reply else { return Err(Refusal::OutcomeUnknown) };
            decided
        };
        // An invalid command has its refusal in its place, the others their answers.
        let mut decided = decided.into_iter();
        let results: Vec<Result<Decided, Refusal>> = parsed
            .into_iter()
            .map(|command| {
                command?;
                decided.next().unwrap_or(Err(Refusal::OutcomeUnknown))
            })
            .collect();
        Ok(Response::batch(&results))
    };
    answer(answered.await)
}

/// Pairs of a query string, percent-decoded; a plus is a space, as in forms.
fn pairs(query: Option<&str>) -> Result<Vec<(String, String)>, Refusal> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(Cow::into_owned);
        decoded.map_err(|_| invalid(None, "the query is not UTF-8"))
    };
    let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

fn borrowed(pairs: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

type NamePath = Result<Path<(String, String)>, PathRejection>;

fn name(path: NamePath) -> Result<Name, Refusal> {
    let Path((scope, key)) = path.map_err(|_| invalid(None, "the path is not UTF-8"))?;
    Ok(Name::new(&scope, &key)?)
}

async fn read_record(
    shared: &Shared,
    headers: &HeaderMap,
    path: NamePath,
    query: Option<String>,
) -> Result<Reply, Refusal> {
    let name = name(path)?;
    let pairs = pairs(query.as_deref())?;
    let consistency = query::consistency(borrowed(&pairs))?;
    shared.router.ask(Ask::Get { name, consistency }, NO_BUDGET, reach(headers)).await
}

async fn get_record(
    State(shared): App,
    path: NamePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> AxumResponse {
    let read = read_record(&shared, &headers, path, query).await;
    answer(read.map(|reply| Response::reply(&reply, "")))
}

async fn get_payload(
    State(shared): App,
    path: NamePath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> AxumResponse {
    let read = read_record(&shared, &headers, path, query).await;
    answer(read.map(|reply| {
        let Reply::Record { view, at } = &reply else { return Response::reply(&reply, "") };
        Response::payload(view.as_ref(), *at)
    }))
}

async fn list(
    State(shared): App,
    path: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> AxumResponse {
    let answered = async {
        let Path(scope) = path.map_err(|_| invalid(None, "the path is not UTF-8"))?;
        let pairs = pairs(query.as_deref())?;
        let list = query::list(&scope, borrowed(&pairs))?;
        let reply = shared.router.ask(Ask::List(list), NO_BUDGET, Reach::ThisNode).await?;
        Ok(Response::reply(&reply, &scope))
    };
    answer(answered.await)
}

async fn cluster(State(shared): App) -> AxumResponse {
    send(Response::cluster(&shared.members.status()))
}

async fn add_member(State(shared): App, headers: HeaderMap, body: Body) -> AxumResponse {
    let answered = async {
        let node = body::member(&read(&shared, body).await?)?;
        ask(&shared, &headers, Ask::Change(Change::Add(node))).await
    };
    answer(answered.await)
}

async fn transfer(State(shared): App, headers: HeaderMap, body: Body) -> AxumResponse {
    let answered = async {
        let to = body::transfer(&read(&shared, body).await?)?;
        ask(&shared, &headers, Ask::Change(Change::Transfer { to })).await
    };
    answer(answered.await)
}

async fn promote(State(shared): App, headers: HeaderMap, Path(id): Path<String>) -> AxumResponse {
    let answered = async {
        let id = body::node_id(&id)?;
        ask(&shared, &headers, Ask::Change(Change::Promote { id })).await
    };
    answer(answered.await)
}

async fn remove(State(shared): App, headers: HeaderMap, Path(id): Path<String>) -> AxumResponse {
    let answered = async {
        let id = body::node_id(&id)?;
        ask(&shared, &headers, Ask::Change(Change::Remove { id })).await
    };
    answer(answered.await)
}

async fn snapshot(State(shared): App) -> AxumResponse {
    answer(shared.snapshot().await.map(|taken| Response::snapshot(&taken)))
}

/// The process runs. Never needs a quorum.
async fn livez() -> AxumResponse {
    plain(StatusCode::OK, "text/plain", "ok\n".to_owned())
}

/// The node has caught up with what it had before its start, and knows a leader.
async fn readyz(State(shared): App) -> AxumResponse {
    match shared.unready() {
        None => plain(StatusCode::OK, "text/plain", "ready\n".to_owned()),
        Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{why}\n")),
    }
}

async fn metrics(State(shared): App) -> AxumResponse {
    let text = shared.metrics.render(shared.position().await);
    plain(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}

async fn openapi() -> AxumResponse {
    plain(StatusCode::OK, "application/json", include_str!("openapi.json").to_owned())
}
