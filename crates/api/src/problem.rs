//! Refusals as RFC 9457 problems. The table stands here and nowhere else: what a code's status is,
//! whether sending again may help, and whether the command can still commit.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use tenure_state_machine::{At, Fingerprint, Holder, LeaseLost, Token};

use crate::refusal::{Node, Refusal};

/// Retry-After where nothing says when it would help, in milliseconds: about an election.
const RETRY_AFTER_MS: u64 = 1000;

/// What a caller may conclude of this one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command changed nothing and never will.
    Refused,
    /// It may have committed, or still will.
    Unknown,
}

/// Why a request was refused, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// A field has a value that no request may carry.
    InvalidArgument,
    /// A web page, or a proxy that the node does not know, must not drive it.
    Forbidden,
    /// There is no such record.
    Absent,
    /// There is no such route.
    NotFound,
    /// The route does not take this method.
    MethodNotAllowed,
    /// Another attempt holds the record.
    InProgress,
    /// The request's own deadline has passed.
    TooLate,
    /// The token holds nothing.
    LeaseLost,
    /// A payload over its limit.
    PayloadTooLarge,
    /// This node does not lead, and the request forbids forwarding.
    NotLeader,
    /// The key stands for another request.
    FingerprintMismatch,
    /// Too many waiters or requests.
    Overloaded,
    /// A defect of the node's.
    Internal,
    /// No leader within the request's time.
    NoLeader,
    /// The node is stopping.
    ShuttingDown,
    /// Proposed, and no word of it since.
    OutcomeUnknown,
    /// The disk is almost full.
    StorageFull,
}

/// What the table says of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The HTTP status.
    pub status: u16,
    /// The code as it is spelled.
    pub code: &'static str,
    /// The same for people.
    pub title: &'static str,
    /// Whether the same request, sent again, may fare better.
    pub retryable: bool,
    /// Whether the command can still commit.
    pub outcome: Outcome,
    /// What the command line exits with.
    pub exit: u8,
}

impl Code {
    /// All codes, by status.
    pub const ALL: [Self; 17] = [
        Self::InvalidArgument,
        Self::Forbidden,
        Self::Absent,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::InProgress,
        Self::TooLate,
        Self::LeaseLost,
        Self::PayloadTooLarge,
        Self::NotLeader,
        Self::FingerprintMismatch,
        Self::Overloaded,
        Self::Internal,
        Self::NoLeader,
        Self::ShuttingDown,
        Self::OutcomeUnknown,
        Self::StorageFull,
    ];

    /// The table.
    #[must_use]
    #[rustfmt::skip]
    pub const fn row(self) -> Row {
        use Outcome::{Refused, Unknown};
        const AGAIN: bool = true;
        const NEVER: bool = false;
        let (status, code, title, retryable, outcome, exit) = match self {
            Self::InvalidArgument     => (400, "invalid_argument", "The request is not valid", NEVER, Refused, 2),
            Self::Forbidden           => (403, "forbidden", "The node does not serve this origin or host", NEVER, Refused, 1),
            Self::Absent              => (404, "absent", "There is no such record", NEVER, Refused, 3),
            Self::NotFound            => (404, "not_found", "There is no such route", NEVER, Refused, 1),
            Self::MethodNotAllowed    => (405, "method_not_allowed", "The route does not take this method", NEVER, Refused, 1),
            Self::InProgress          => (409, "in_progress", "Another attempt holds the record", AGAIN, Refused, 4),
            Self::TooLate             => (409, "too_late", "The request's own deadline has passed", NEVER, Refused, 7),
            Self::LeaseLost           => (412, "lease_lost", "The token holds nothing", NEVER, Refused, 5),
            Self::PayloadTooLarge     => (413, "payload_too_large", "The payload is over its limit", NEVER, Refused, 7),
            Self::NotLeader           => (421, "not_leader", "This node does not lead", AGAIN, Refused, 8),
            Self::FingerprintMismatch => (422, "fingerprint_mismatch", "The key stands for another request", NEVER, Refused, 6),
            Self::Overloaded          => (429, "overloaded", "The node is overloaded", AGAIN, Refused, 8),
            Self::Internal            => (500, "internal", "The node met a defect of its own", NEVER, Unknown, 1),
            Self::NoLeader            => (503, "no_leader", "There is no leader", AGAIN, Refused, 8),
            Self::ShuttingDown        => (503, "shutting_down", "The node is shutting down", AGAIN, Refused, 8),
            Self::OutcomeUnknown      => (504, "outcome_unknown", "The command may have committed", AGAIN, Unknown, 9),
            Self::StorageFull         => (507, "storage_full", "The node's disk is almost full", NEVER, Refused, 8),
        };
        Row { status, code, title, retryable, outcome, exit }
    }

    /// The code that is spelled so, for readers of problems.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.row().code == name)
    }
}

impl Refusal {
    /// Its row in the table.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidArgument { .. } => Code::InvalidArgument,
            Self::PayloadTooLarge { .. } => Code::PayloadTooLarge,
            Self::NotLeader { .. } => Code::NotLeader,
            Self::Overloaded { .. } => Code::Overloaded,
            Self::NoLeader => Code::NoLeader,
            Self::ShuttingDown => Code::ShuttingDown,
            Self::OutcomeUnknown => Code::OutcomeUnknown,
            Self::StorageFull => Code::StorageFull,
            Self::Internal { .. } => Code::Internal,
        }
    }
}

/// A problem, ready to be written.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) code: Code,
    detail: Cow<'a, str>,
    more: More<'a>,
    retry_after_ms: Option<u64>,
    at: Option<At>,
}

/// The members of a problem beside those that all have.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum More<'a> {
    Nothing {},
    Argument { field: Option<&'a str> },
    Held { retry_after_ms: u64, holder: &'a str, token: u64, fingerprint_differs: bool },
    Lost { reason: &'static str, current_token: Option<u64> },
    Size { limit: u64, size: u64 },
    Elsewhere { leader: Option<&'a Node> },
    Prints { stored: &'a str, received: &'a str },
    Request { request_id: &'a str },
}

impl<'a> Problem<'a> {
    /// A problem that says no more than its detail.
    pub(crate) fn plain(code: Code, detail: impl Into<Cow<'a, str>>) -> Self {
        let soon = matches!(code, Code::NoLeader | Code::ShuttingDown);
        let retry_after_ms = soon.then_some(RETRY_AFTER_MS);
        Self { code, detail: detail.into(), more: More::Nothing {}, retry_after_ms, at: None }
    }

    /// A problem that the node's log has more of.
    pub(crate) fn of_request(
        code: Code,
        detail: impl Into<Cow<'a, str>>,
        request_id: &'a str,
    ) -> Self {
        Self { more: More::Request { request_id }, ..Self::plain(code, detail) }
    }

    /// A read found no record.
    pub(crate) fn absent(detail: &'a str, at: At) -> Self {
        Self { at: Some(at), ..Self::plain(Code::Absent, detail) }
    }

    /// A refusal by a node.
    pub(crate) fn refused(refusal: &'a Refusal) -> Self {
        let plain = |more| Self { more, ..Self::plain(refusal.code(), refusal.to_string()) };
        match refusal {
            Refusal::InvalidArgument { field: Some(field), reason } => Self {
                detail: format!("{field} {reason}").into(),
                ..plain(More::Argument { field: Some(field) })
            },
            Refusal::InvalidArgument { field: None, .. } => plain(More::Argument { field: None }),
            Refusal::PayloadTooLarge { limit, size } => {
                plain(More::Size { limit: *limit, size: *size })
            }
            Refusal::NotLeader { leader } => plain(More::Elsewhere { leader: leader.as_ref() }),
            Refusal::Internal { request_id } => plain(More::Request { request_id }),
            Refusal::Overloaded { retry_after_ms, .. } => {
                Self { retry_after_ms: Some(*retry_after_ms), ..plain(More::Nothing {}) }
            }
            Refusal::NoLeader
            | Refusal::ShuttingDown
            | Refusal::OutcomeUnknown
            | Refusal::StorageFull => plain(More::Nothing {}),
        }
    }

    /// Another attempt holds the record.
    pub(crate) fn in_progress(
        retry_after_ms: u64,
        holder: &'a Holder,
        token: Token,
        fingerprint_differs: bool,
        at: At,
    ) -> Self {
        let detail = format!("the holder's lease runs for {retry_after_ms} ms more");
        let (holder, token) = (holder.as_str(), token.get());
        let more = More::Held { retry_after_ms, holder, token, fingerprint_differs };
        let retry_after_ms = Some(retry_after_ms);
        Self { more, retry_after_ms, at: Some(at), ..Self::plain(Code::InProgress, detail) }
    }

    /// The key stands for another request.
    pub(crate) fn fingerprint_mismatch(
        stored: &'a Fingerprint,
        received: &'a Fingerprint,
        at: At,
    ) -> Self {
        let detail = "the record was acquired with another fingerprint";
        let more = More::Prints { stored: stored.as_str(), received: received.as_str() };
        Self { more, at: Some(at), ..Self::plain(Code::FingerprintMismatch, detail) }
    }

    /// The token holds nothing.
    pub(crate) fn lease_lost(lost: &LeaseLost, at: At) -> Self {
        let (detail, reason, current_token) = match lost {
            LeaseLost::Absent => ("there is no record", "absent", None),
            LeaseLost::Stolen { current_token } => {
                ("another token holds the record", "stolen", Some(current_token.get()))
            }
            LeaseLost::Completed { current_token } => {
                ("the record is complete", "completed", Some(current_token.get()))
            }
        };
        let more = More::Lost { reason, current_token };
        Self { more, at: Some(at), ..Self::plain(Code::LeaseLost, detail) }
    }

    /// The request's own deadline has passed.
    pub(crate) fn too_late(at: At) -> Self {
        let detail = format!("not_after_ms lies before {} ms of cluster time", at.now_ms);
        Self { at: Some(at), ..Self::plain(Code::TooLate, detail) }
    }

    /// When to try again, in whole seconds, rounded up.
    pub(crate) fn retry_after_s(&self) -> Option<u64> {
        self.retry_after_ms.map(|retry_after_ms| retry_after_ms.div_ceil(1000))
    }
}

impl Serialize for Problem<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            r#type: String,
            title: &'static str,
            status: u16,
            detail: &'a str,
            code: &'static str,
            retryable: bool,
            outcome: Outcome,
            #[serde(flatten)]
            more: &'a More<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            at: Option<At>,
        }
        let Row { status, code, title, retryable, outcome, exit: _ } = self.code.row();
        Document {
            r#type: format!("urn:tenure:problem:{code}"),
            title,
            status,
            detail: &self.detail,
            code,
            retryable,
            outcome,
            more: &self.more,
            at: self.at,
        }
        .serialize(serializer)
    }
}
