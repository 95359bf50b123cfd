//! Every answer that is the layer's own, as an RFC 9457 problem. The table stands here and nowhere
//! else.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::body::ReplyBody;
use crate::key::Malformed;

/// Why a request is not answered by the handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// No key, and one is required.
    KeyMissing,
    /// A field that holds no key.
    KeyMalformed(Malformed),
    /// The request's body broke off.
    BodyBroken,
    /// Nobody in whose name a record could be kept.
    NoPrincipal,
    /// An earlier request with this key is being run.
    InProgress { retry_after_s: u64 },
    /// An earlier request was run, and its response was too large to keep.
    NotKept { response_status: u16 },
    /// The request's body is over the limit.
    BodyTooLarge { limit: usize },
    /// The key came before, with another request.
    KeyReused,
    /// The record is not one of this layer's, or of a later version.
    Unreadable,
    /// The handler answered, and its response's body broke off.
    ResponseBroken,
    /// No word from the store before the handler ran.
    StoreUnreachable { retry_after_s: u64 },
    /// So many handlers run that another one would be too many.
    TooManyRunning { retry_after_s: u64 },
    /// The layer drains: it runs no more handlers.
    ShuttingDown { retry_after_s: u64 },
    /// The lease was lost while the handler ran.
    LeaseLost { retry_after_s: u64 },
    /// A defect: the layer's settings do not make a command.
    Internal,
}

/// What a caller may conclude of this one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// No handler ran for it, and none will.
    Refused,
    /// A handler ran for it, to its end or in part.
    Unknown,
}

struct Row {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    retryable: bool,
    outcome: Outcome,
}

impl Problem {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        use Outcome::{Refused, Unknown};
        const AGAIN: bool = true;
        const NEVER: bool = false;
        let (status, code, title, retryable, outcome) = match self {
            Self::KeyMissing              => (StatusCode::BAD_REQUEST, "key_missing", "Idempotency-Key is missing", NEVER, Refused),
            Self::KeyMalformed(_)         => (StatusCode::BAD_REQUEST, "key_malformed", "Idempotency-Key is malformed", NEVER, Refused),
            Self::BodyBroken              => (StatusCode::BAD_REQUEST, "body_broken", "The request's body broke off", AGAIN, Refused),
            Self::NoPrincipal             => (StatusCode::FORBIDDEN, "no_principal", "The request is nobody's", NEVER, Refused),
            Self::InProgress { .. }       => (StatusCode::CONFLICT, "in_progress", "A request is outstanding for this Idempotency-Key", AGAIN, Refused),
            Self::NotKept { .. }          => (StatusCode::CONFLICT, "response_not_kept", "Run before, and the response was not kept", NEVER, Refused),
            Self::BodyTooLarge { .. }     => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The request's body is over the limit", NEVER, Refused),
            Self::KeyReused               => (StatusCode::UNPROCESSABLE_ENTITY, "key_reused", "Idempotency-Key is already used", NEVER, Refused),
            Self::Unreadable              => (StatusCode::INTERNAL_SERVER_ERROR, "record_unreadable", "The record holds no response", NEVER, Refused),
            Self::ResponseBroken          => (StatusCode::INTERNAL_SERVER_ERROR, "response_broken", "The response's body broke off", NEVER, Unknown),
            Self::Internal                => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The service met a defect of its own", NEVER, Refused),
            Self::StoreUnreachable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "store_unreachable", "The store of idempotency keys does not answer", AGAIN, Refused),
            Self::TooManyRunning { .. }   => (StatusCode::SERVICE_UNAVAILABLE, "too_many_running", "Too many requests are being run", AGAIN, Refused),
            Self::ShuttingDown { .. }     => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "The service is shutting down", AGAIN, Refused),
            Self::LeaseLost { .. }        => (StatusCode::SERVICE_UNAVAILABLE, "lease_lost", "The request was stopped on the way", AGAIN, Unknown),
        };
        Row { status, code, title, retryable, outcome }
    }

    fn detail(&self) -> Cow<'static, str> {
        let detail = match self {
            Self::KeyMissing => {
                "send an Idempotency-Key that is new for each new request, and the same for its retries"
            }
            Self::KeyMalformed(malformed) => return malformed.to_string().into(),
            Self::BodyBroken => "nothing was run: send it again with the same key",
            Self::NoPrincipal => "keys are kept for each principal, and this request has none",
            Self::InProgress { .. } => {
                "it is being run: send it again with the same key for its response"
            }
            Self::NotKept { response_status } => {
                return format!("it was answered with {response_status} and is not run again: read what it made by other means").into();
            }
            Self::BodyTooLarge { limit } => {
                return format!("nothing was run: the limit is {limit} bytes").into();
            }
            Self::KeyReused => {
                "it came with another method, path, query or body: a new request takes a new key"
            }
            Self::Unreadable => {
                "it is not run again: the record of this key was not written by this layer, or by a later version of it"
            }
            Self::ResponseBroken => "it was run, and is not run again with this key",
            Self::StoreUnreachable { .. } => "nothing was run: send it again with the same key",
            Self::TooManyRunning { .. } | Self::ShuttingDown { .. } => {
                "nothing was run: send it again later with the same key"
            }
            Self::LeaseLost { .. } => {
                "it ran in part, and may run again: send it again with the same key"
            }
            Self::Internal => "nothing was run: the service's log has more",
        };
        detail.into()
    }

    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::InProgress { retry_after_s }
            | Self::StoreUnreachable { retry_after_s }
            | Self::TooManyRunning { retry_after_s }
            | Self::ShuttingDown { retry_after_s }
            | Self::LeaseLost { retry_after_s } => Some(*retry_after_s),
            Self::KeyMissing
            | Self::KeyMalformed(_)
            | Self::BodyBroken
            | Self::NoPrincipal
            | Self::NotKept { .. }
            | Self::BodyTooLarge { .. }
            | Self::KeyReused
            | Self::Unreadable
            | Self::ResponseBroken
            | Self::Internal => None,
        }
    }

    /// The problem as a response.
    pub(crate) fn response<B>(&self) -> Response<ReplyBody<B>> {
        let Row { status, code, title, retryable, outcome } = self.row();
        let response_status = if let Self::NotKept { response_status } = self {
            Some(*response_status)
        } else {
            None
        };
        let document = Document {
            r#type: format!("urn:tenure:problem:{code}"),
            title,
            status: status.as_u16(),
            detail: self.detail(),
            code,
            retryable,
            outcome,
            response_status,
        };
        let body = serde_json::to_vec(&document).map(Bytes::from).unwrap_or_default();
        let mut response = Response::new(ReplyBody::whole(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(retry_after_s) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_s));
        }
        response
    }
}

#[derive(Serialize)]
struct Document {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: Cow<'static, str>,
    code: &'static str,
    retryable: bool,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<u16>,
}
