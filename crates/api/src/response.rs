//! Answers as HTTP says them: status, content type, body.
//!
//! Every body is written straight from what the state machine or a frame holds; no tree of JSON
//! values is built.

use serde::Serialize;
use tenure_state_machine::At;

use crate::cluster::{ClusterStatus, SnapshotTaken};
use crate::frame::{Decided, Reply, Waited};
use crate::problem::{Code, Problem};
use crate::query::page_token;
use crate::refusal::Refusal;
use crate::shape::{Got, Line, Outcome, Page, ReplayBody, Shown, said};
use crate::view::{Listed, View, ViewState};

/// An HTTP response, but for headers that its node knows better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// What the body is; none for no body.
    pub content: Option<Content>,
    /// The body: one line of JSON, or a payload's.
    pub body: Vec<u8>,
    /// The Retry-After header, in seconds.
    pub retry_after_s: Option<u64>,
}

/// What a body is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An answer.
    Json,
    /// A refusal (RFC 9457).
    Problem,
    /// The body of a payload, with its own type. It is a caller's data: it must be sent with
    /// `X-Content-Type-Options: nosniff` and `Content-Disposition: attachment`.
    Payload(String),
}

impl Content {
    /// The Content-Type header, a legal header value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Json => "application/json",
            Self::Problem => "application/problem+json",
            Self::Payload(kind) => kind,
        }
    }
}

impl Response {
    /// To a command.
    #[must_use]
    pub fn decided(decided: &Decided) -> Self {
        match said(decided) {
            Ok(outcome) => Self::ok(&outcome),
            Err(problem) => Self::problem(&problem),
        }
    }

    /// To anything that the node refused.
    #[must_use]
    pub fn refused(refusal: &Refusal) -> Self {
        Self::problem(&Problem::refused(refusal))
    }

    /// To a read of a record.
    #[must_use]
    pub fn record(view: Option<&View>, at: At) -> Self {
        match view {
            Some(view) => Self::ok(&Got { record: Shown::whole(view, at.now_ms), at }),
            None => Self::problem(&Problem::absent("nobody holds the name", at)),
        }
    }

    /// To a read of a record's payload alone.
    #[must_use]
    pub fn payload(view: Option<&View>, at: At) -> Self {
        let payload = match view.map(|view| &view.state) {
            None => return Self::record(None, at),
            Some(ViewState::InProgress { .. }) => {
                return Self::problem(&Problem::absent(
                    "the record is in progress and has no payload yet",
                    at,
                ));
            }
            Some(ViewState::Complete { payload, .. }) => payload,
        };
        match payload {
            None => Self { status: 204, content: None, body: Vec::new(), retry_after_s: None },
            Some(payload) => {
                let kind = payload.kind().unwrap_or("application/octet-stream").to_owned();
                Self {
                    status: 200,
                    content: Some(Content::Payload(kind)),
                    body: payload.body().to_vec(),
                    retry_after_s: None,
                }
            }
        }
    }

    /// To a wait.
    #[must_use]
    pub fn waited(waited: &Waited, at: At) -> Self {
        Self::ok(&match waited {
            Waited::Complete(replay) => Outcome::Complete(ReplayBody::new(replay, at)),
            Waited::Absent => Outcome::Absent { at },
            Waited::LeaseExpired => Outcome::LeaseExpired { at },
            Waited::TimedOut { retry_after_ms } => {
                Outcome::Timeout { retry_after_ms: *retry_after_ms, at }
            }
        })
    }

    /// To a listing of `scope`.
    #[must_use]
    pub fn list(scope: &str, records: &[Listed], next: Option<&str>, at: At) -> Self {
        let records = records.iter().map(|listed| Line {
            scope,
            key: &listed.key,
            record: Shown::without_payload(&listed.view, at.now_ms),
        });
        let next_page_token = next.map(page_token);
        Self::ok(&Page { records: records.collect(), next_page_token, at })
    }

    /// To a batch: the response of each command in its place.
    #[must_use]
    pub fn batch(results: &[Result<Decided, Refusal>]) -> Self {
        let mut body = b"{\"results\":[".to_vec();
        for (place, result) in results.iter().enumerate() {
            let response = result.as_ref().map_or_else(Self::refused, Self::decided);
            if place > 0 {
                body.push(b',');
            }
            body.extend_from_slice(
                format!("{{\"status\":{},\"body\":", response.status).as_bytes(),
            );
            body.extend_from_slice(&response.body);
            body.push(b'}');
        }
        body.extend_from_slice(b"]}");
        Self::json(200, Content::Json, body)
    }

    /// To a frame's request, as HTTP would have answered it. `scope` is the one that was listed.
    #[must_use]
    pub fn reply(reply: &Reply, scope: &str) -> Self {
        match reply {
            Reply::Answer(decided) => Self::decided(decided),
            Reply::Batch(results) => Self::batch(results),
            Reply::Record { view, at } => Self::record(view.as_ref(), *at),
            Reply::Waited { waited, at } => Self::waited(waited, *at),
            Reply::List { records, next, at } => Self::list(scope, records, next.as_deref(), *at),
            Reply::Changed(status) => Self::cluster(status),
        }
    }

    /// To `GET /v1/cluster`, and to changes of it.
    #[must_use]
    pub fn cluster(status: &ClusterStatus) -> Self {
        Self::ok(status)
    }

    /// To `POST /v1/cluster/snapshot`.
    #[must_use]
    pub fn snapshot(snapshot: &SnapshotTaken) -> Self {
        Self::ok(snapshot)
    }

    /// To an origin or a host that the node does not serve; `detail` says which rule.
    #[must_use]
    pub fn forbidden(detail: &str) -> Self {
        Self::problem(&Problem::plain(Code::Forbidden, detail))
    }

    /// To a path that is no route.
    #[must_use]
    pub fn not_found() -> Self {
        Self::problem(&Problem::plain(Code::NotFound, "the path is no route of this API"))
    }

    /// To a route that does not take the method.
    #[must_use]
    pub fn method_not_allowed(request_id: &str) -> Self {
        let detail = "the Allow header says which methods the route takes";
        Self::problem(&Problem::of_request(Code::MethodNotAllowed, detail, request_id))
    }

    fn ok<T: Serialize>(value: &T) -> Self {
        Self::json(200, Content::Json, write(value))
    }

    fn problem(problem: &Problem<'_>) -> Self {
        let retry_after_s = problem.retry_after_s();
        let status = problem.code.row().status;
        Self { retry_after_s, ..Self::json(status, Content::Problem, write(problem)) }
    }

    fn json(status: u16, content: Content, body: Vec<u8>) -> Self {
        Self { status, content: Some(content), body, retry_after_s: None }
    }
}

fn write<T: Serialize>(value: &T) -> Vec<u8> {
    // It fails only for maps whose keys are no strings; ours are.
    serde_json::to_vec(value).unwrap_or_default()
}
