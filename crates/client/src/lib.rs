//! Routes a command to the leader, and says what may be concluded from what came of it.
//!
//! A [`Client`] is given a few endpoints, finds the leader through any of them and follows it when
//! it changes. A logical call has one deadline and is sent as often as that allows: to another
//! endpoint when one does not answer, and again, with the same attempt or token, when it is unknown
//! whether a send committed. It ends with an answer, or with an error that says which of three
//! things is true: *refused*, *unknown* or *unavailable*.
//!
//! # Example
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tenure_client::{Acquisition, Client, Config, new_acquire};
//! use tenure_state_machine::{Complete, Name};
//!
//! # async fn deliver() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Config::new(vec!["127.0.0.1:7701".to_owned()]));
//! let name = Name::new("mail", "order-1")?;
//! let acquire = new_acquire(name.clone());
//! match client.acquire(acquire, Duration::from_secs(5)).await? {
//!     (Acquisition::Acquired { token, .. }, _) => {
//!         // Send the mail, with `token` where the sink can compare it.
//!         let complete =
//!             Complete { name, token, ttl_ms: None, payload: None, not_after_ms: None };
//!         client.complete(complete).await?;
//!     }
//!     (Acquisition::Replay(done), _) => println!("sent before, at {} ms", done.completed_ms),
//!     (other, at) => println!("not now: {other:?}, decided at log index {}", at.index),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - **C1** An attempt is drawn once for each logical call, by the caller ([`new_attempt`]), and
//!   nothing is ever sent again under another attempt or token.
//! - **C2** After a send whose outcome is unknown, the logical call stays unknown until `acquired`,
//!   `replay`, `completed`, `already_complete`, `extended` or `released` settles it. Refusals do
//!   not, `too_late` and `in_progress` among them.
//! - **C3** For a release that is sent again, `absent` and `stolen` both count as released: the
//!   record is not held by that token, which is what was asked.
//! - **C4** One deadline covers all sends, dials and pauses of a call.
//! - **C5** A send counts as *not sent* only if no byte of it has been handed to the socket, and
//!   none will be.
//! - **C6** What a call holds is given back when its future is dropped, and the node is told to
//!   forget it; a waiting acquire then leaves its queue. A command may commit all the same.
//! - **C7** A client belongs to one cluster, the first it meets, and never sends a token to another.
//!
//! # What is guaranteed when
//!
//! An answer to a command means that a majority has it on disk, or that it changed nothing. The
//! client itself keeps nothing on disk: whoever must survive its own restart stores the attempt
//! before it calls.
//!
//! # Caveats
//!
//! - A purge has neither attempt nor token, so it is not sent again after an unknown outcome.
//! - A connection carries [`tenure_api::frame::IN_FLIGHT`] requests, long waits included. A client
//!   with more of them dials a further connection; there is no pool beyond that.
//! - No heartbeats of its own: a holder calls [`Client::extend`] well within its lease.
//! - Frames are neither encrypted nor authenticated.

#![warn(missing_docs)]

mod client;
mod connection;
mod error;
mod operations;
mod route;
mod settle;
pub mod wire;

pub use client::{Client, Config};
pub use connection::{Connection, ConnectionError, DialError, DialTimeouts, NotSent};
pub use error::{CallError, Obstacle};
pub use operations::{
    Acquisition, Conclusion, Extension, Purgation, Withdrawal, new_acquire, new_attempt,
};
pub use wire::Broken;
