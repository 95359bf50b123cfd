//! HTTP bodies, client frames, and the one mapping between them and commands and answers.
//!
//! A request comes in as JSON or as a frame and becomes a [`Command`] or an [`Ask`]; what comes
//! back is a [`Reply`] or a [`Refusal`] and becomes a frame or a [`Response`]. Nodes, `tenure
//! replay` and the command line all go through here, so there is one way to read a body, one
//! table of problems and one way to write an answer. Nothing here listens, dials or waits.
//!
//! # Example
//!
//! ```
//! use tenure_api::{Refusal, Response, body, frame::Decided};
//! use tenure_state_machine::*;
//!
//! let request = br#"{"scope": "mail", "key": "order-1", "attempt": "a", "lease_ms": 5000}"#;
//! let (acquire, wait_ms) = body::acquire(request, || unreachable!("it has an attempt"))?;
//! assert_eq!((acquire.lease_ms, wait_ms), (5000, 0));
//!
//! let entry = Entry { stamp_ms: 1000, commands: vec![Command::Acquire(acquire)] };
//! let done = apply(&mut Counters::default(), &mut MemoryStore::default(), &entry)?;
//! let at = At { index: 1, slot: Some(0), term: 1, now_ms: done.now_ms };
//! let answer = done.answers.into_iter().next().ok_or("no answer")?;
//!
//! let response = Response::decided(&Decided { answer, at });
//! assert_eq!(response.status, 200);
//! assert!(response.body.starts_with(br#"{"outcome":"acquired","token":1,"lease_until_ms":6000"#));
//!
//! let bad = br#"{"scope": "s", "key": "k", "token": 1, "payload": {"body": "?"}}"#;
//! let refusal = body::complete(bad).unwrap_err();
//! let Refusal::InvalidArgument { field, .. } = &refusal else { unreachable!() };
//! assert_eq!(field.as_deref(), Some("payload.body"));
//! assert_eq!(Response::refused(&refusal).status, 400);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is guaranteed
//!
//! - A body is read whole or refused: a field that is unknown, repeated at any depth, missing, of
//!   the wrong type or beyond its limit is [`Refusal::InvalidArgument`] with its dotted path.
//!   Nothing is rounded, trimmed or guessed. `null` counts as not given.
//! - No input panics. Memory is bounded by the body's size ([`body::HTTP_BODY_BYTES`]): nesting is
//!   skipped without recursion, and no tree of values is built.
//! - Every member of an answer is always there, and an attempt never is: golden files hold each
//!   answer and the whole table of problems ([`Code::row`]).
//! - [`Refusal`] and [`Code`] say whether a command can still commit. Rules of records are the
//!   state machine's: its refusals are answers, and only become problems here.
//!
//! # What is durable when
//!
//! Nothing, here.
//!
//! # Caveats
//!
//! - Headers and routes are the server's: percent-decoding, `X-No-Forward`, `X-Tenure-Leader`.
//! - Frames are bincode and carry the state machine's own types; bodies share no type with them
//!   but the plain [`At`] and [`Node`]. There is no version of HTTP bodies beside the path's.
//! - A refusal repeats at most a few characters of an unknown field's name, and no value of a text
//!   field: keys and payloads do not get into logs that way.
//!
//! [`Ask`]: frame::Ask
//! [`Reply`]: frame::Reply
//! [`At`]: tenure_state_machine::At
//! [`Command`]: tenure_state_machine::Command

#![warn(missing_docs)]

pub mod body;
mod cluster;
mod exit;
pub mod frame;
mod json;
mod problem;
pub mod query;
mod refusal;
mod response;
mod shape;
mod view;

pub use cluster::{ClusterStatus, Member, MemberRole, NodeRole, SnapshotTaken};
pub use exit::exit_code;
pub use json::Fields;
pub use problem::{Code, Outcome, Row};
pub use refusal::{Node, Refusal};
pub use response::{Content, Response};
pub use view::{Listed, View, ViewState};
