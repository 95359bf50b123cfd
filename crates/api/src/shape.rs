//! The JSON of answers. Members are in the order of the documentation, and all of them always
//! there: `null` where there is nothing. An attempt is in none: it is a capability.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use tenure_state_machine::{Answer, At, Completion, Payload, Replay, TookOver, time};

use crate::frame::Decided;
use crate::problem::Problem;
use crate::view::{View, ViewState};

/// What an answer to a command says: an outcome, or why not.
pub(crate) fn said(decided: &Decided) -> Result<Outcome<'_>, Problem<'_>> {
    let at = decided.at;
    Ok(match &decided.answer {
        Answer::Acquired { token, lease_until_ms, ttl_until_ms, resumed, took_over } => {
            Outcome::Acquired {
                token: token.get(),
                lease_until_ms: *lease_until_ms,
                ttl_until_ms: *ttl_until_ms,
                resumed: *resumed,
                took_over: took_over.as_ref().map(TookOverBody::from),
                at,
            }
        }
        Answer::Replay(replay) => Outcome::Replay(ReplayBody::new(replay, at)),
        Answer::Completed(Completion { token, completed_ms, expires_ms }) => Outcome::Completed {
            token: token.get(),
            completed_ms: *completed_ms,
            expires_ms: *expires_ms,
            at,
        },
        Answer::AlreadyComplete(Completion { token, completed_ms, expires_ms }) => {
            Outcome::AlreadyComplete {
                token: token.get(),
                completed_ms: *completed_ms,
                expires_ms: *expires_ms,
                at,
            }
        }
        Answer::Released => Outcome::Released { at },
        Answer::Extended { token, lease_until_ms } => {
            Outcome::Extended { token: token.get(), lease_until_ms: *lease_until_ms, at }
        }
        Answer::Purged { deleted, more } => Outcome::Purged { deleted: *deleted, more: *more, at },
        Answer::InProgress { retry_after_ms, holder, token, fingerprint_differs } => {
            let (wait_ms, differs) = (*retry_after_ms, *fingerprint_differs);
            return Err(Problem::in_progress(wait_ms, holder, *token, differs, at));
        }
        Answer::FingerprintMismatch { stored, received } => {
            return Err(Problem::fingerprint_mismatch(stored, received, at));
        }
        Answer::LeaseLost(lost) => return Err(Problem::lease_lost(lost, at)),
        Answer::TooLate => return Err(Problem::too_late(at)),
    })
}

/// Everything that a 200 with an `outcome` can say.
#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Outcome<'a> {
    Acquired {
        token: u64,
        lease_until_ms: u64,
        ttl_until_ms: u64,
        resumed: bool,
        took_over: Option<TookOverBody<'a>>,
        at: At,
    },
    Replay(ReplayBody<'a>),
    Completed {
        token: u64,
        completed_ms: u64,
        expires_ms: u64,
        at: At,
    },
    AlreadyComplete {
        token: u64,
        completed_ms: u64,
        expires_ms: u64,
        at: At,
    },
    Released {
        at: At,
    },
    Extended {
        token: u64,
        lease_until_ms: u64,
        at: At,
    },
    Purged {
        deleted: u32,
        more: bool,
        at: At,
    },
    Complete(ReplayBody<'a>),
    Absent {
        at: At,
    },
    LeaseExpired {
        at: At,
    },
    Timeout {
        retry_after_ms: u64,
        at: At,
    },
}

#[derive(Debug, Serialize)]
pub(crate) struct TookOverBody<'a> {
    token: u64,
    holder: &'a str,
    acquired_ms: u64,
}

impl<'a> From<&'a TookOver> for TookOverBody<'a> {
    fn from(took_over: &'a TookOver) -> Self {
        let TookOver { token, holder, acquired_ms } = took_over;
        Self { token: token.get(), holder: holder.as_str(), acquired_ms: *acquired_ms }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct ReplayBody<'a> {
    token: u64,
    payload: Option<PayloadBody<'a>>,
    completed_ms: u64,
    expires_ms: u64,
    at: At,
}

impl<'a> ReplayBody<'a> {
    pub(crate) fn new(replay: &'a Replay, at: At) -> Self {
        let Replay { token, payload, completed_ms, expires_ms } = replay;
        Self {
            token: token.get(),
            payload: payload.as_deref().map(PayloadBody::from),
            completed_ms: *completed_ms,
            expires_ms: *expires_ms,
            at,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct PayloadBody<'a> {
    r#type: Option<&'a str>,
    #[serde(serialize_with = "base64")]
    body: &'a [u8],
    attributes: &'a BTreeMap<String, String>,
}

fn base64<S: Serializer>(body: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(body))
}

impl<'a> From<&'a Payload> for PayloadBody<'a> {
    fn from(payload: &'a Payload) -> Self {
        Self { r#type: payload.kind(), body: payload.body(), attributes: payload.attributes() }
    }
}

/// One record, read.
#[derive(Debug, Serialize)]
pub(crate) struct Got<'a> {
    #[serde(flatten)]
    pub(crate) record: Shown<'a>,
    pub(crate) at: At,
}

/// One page of a listing.
#[derive(Debug, Serialize)]
pub(crate) struct Page<'a> {
    pub(crate) records: Vec<Line<'a>>,
    pub(crate) next_page_token: Option<String>,
    pub(crate) at: At,
}

/// One record of a listing.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    pub(crate) scope: &'a str,
    pub(crate) key: &'a str,
    #[serde(flatten)]
    pub(crate) record: Shown<'a>,
}

/// What is shown of a record.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Shown<'a> {
    InProgress {
        token: u64,
        holder: &'a str,
        acquired_ms: u64,
        lease_until_ms: u64,
        lease_left_ms: u64,
        ttl_until_ms: u64,
        fingerprint: Option<&'a str>,
    },
    Complete {
        token: u64,
        holder: &'a str,
        completed_ms: u64,
        expires_ms: u64,
        /// The outer option is none in a listing, which has no such member.
        #[serde(skip_serializing_if = "Option::is_none")]
        payload: Option<Option<PayloadBody<'a>>>,
        fingerprint: Option<&'a str>,
    },
}

impl<'a> Shown<'a> {
    /// As a read of this one record shows it.
    pub(crate) fn whole(view: &'a View, now_ms: u64) -> Self {
        let mut shown = Self::without_payload(view, now_ms);
        if let (Self::Complete { payload: member, .. }, ViewState::Complete { payload, .. }) =
            (&mut shown, &view.state)
        {
            *member = Some(payload.as_deref().map(PayloadBody::from));
        }
        shown
    }

    /// As a listing shows it.
    pub(crate) fn without_payload(view: &'a View, now_ms: u64) -> Self {
        let (token, holder) = (view.token.get(), view.holder.as_str());
        let fingerprint = view.fingerprint.as_ref().map(|print| print.as_str());
        match &view.state {
            ViewState::InProgress { acquired_ms, lease_until_ms, ttl_until_ms } => {
                Self::InProgress {
                    token,
                    holder,
                    acquired_ms: *acquired_ms,
                    lease_until_ms: *lease_until_ms,
                    lease_left_ms: time::left(*lease_until_ms, now_ms),
                    ttl_until_ms: *ttl_until_ms,
                    fingerprint,
                }
            }
            ViewState::Complete { completed_ms, expires_ms, payload: _ } => Self::Complete {
                token,
                holder,
                completed_ms: *completed_ms,
                expires_ms: *expires_ms,
                payload: None,
                fingerprint,
            },
        }
    }
}
