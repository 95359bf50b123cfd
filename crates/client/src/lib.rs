//! Runs an action once, wherever it is asked for; or routes single commands to the leader, and says
//! what may be concluded from what came of them.
//!
//! There are three ways in. [`Client::once`] is the whole of it: acquire, run under heartbeats,
//! record the result, or be handed it. [`Client::lease`] gives a [`Lease`], a guard with
//! heartbeats, for actions of another shape. [`Client::acquire`] and its like are the bare
//! commands.
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
//! use tenure_client::{Client, Done, OnceError};
//!
//! # async fn send_mail(_: u64) -> std::io::Result<()> { Ok(()) }
//! # async fn deliver() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().endpoints(["127.0.0.1:7701"]).holder("worker-3").build()?;
//! let sent = client.once("mail", "order-1").run(|lease| async move {
//!     // The sink refuses a token smaller than one it has seen.
//!     send_mail(lease.token().get()).await?;
//!     Ok::<_, std::io::Error>("sent".to_owned())
//! });
//! match sent.await {
//!     Ok(Done::Ran(receipt)) => println!("{receipt}"),
//!     Ok(Done::Replayed(receipt)) => println!("{receipt} before"),
//!     Err(OnceError::Action(error)) => println!("failed, and released: {error}"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! With a guard, for an action that is no future:
//!
//! ```no_run
//! # async fn work() {}
//! # async fn rebuild(client: tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_client::Leased;
//!
//! match client.lease("index", "rebuild").acquire().await? {
//!     Leased::Held(lease) => {
//!         tokio::select! {
//!             () = work() => { lease.complete(None).await?; }
//!             lost = lease.lost() => println!("stopped: {lost}"),
//!         }
//!     }
//!     Leased::Replay(done) => println!("done before, at {} ms", done.completed_ms),
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
//! And of leases and actions:
//!
//! - **G1** A holder may act until a moment counted from *before* the send of the last heartbeat
//!   that succeeded: the lease, less a margin, on a clock that runs on during suspension
//!   ([`BootTime`]). Nobody can have stolen the record by then. From that moment on the lease is
//!   lost for ever, whatever a later answer says.
//! - **G2** Only what is definite ends a lease before that: `lease_lost`. Refusals, lost
//!   connections and silence do not; the next heartbeat follows soon, at another node if need be.
//! - **G3** No heartbeat revives a lease that has expired: each carries the last known deadline as
//!   its `not_after_ms`. Nor does an acquire of [`LeaseRequest`] take a record after its call's
//!   deadline, where the client knows cluster time.
//! - **G4** After a guard is dropped, no heartbeat of it is put together. One that has left already
//!   is waited for before the release goes out.
//! - **G5** Once an action has returned a value, nothing releases its record any more: it is
//!   recorded, or handed back with its lease, or expires.
//! - **G6** Calls of one client for one record and fingerprint that overlap make one acquire at a
//!   time; a result goes only to those that waited while it was made.
//! - **G7** All leases of a client share one task and one timer; heartbeats that are due together
//!   share a frame.
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
//! - A lease is time, and time is only liveness. An action that does not look (it blocks its thread,
//!   or its process is stopped) goes on after its lease is lost: [`LeaseHandle::is_lost`] looks at
//!   the clock itself, and a sink that compares tokens is what keeps late writes out.
//! - Heartbeats run on the runtime in which the first lease was acquired. An action that blocks all
//!   of its threads stops them.
//! - An acquire that is dropped, or ends `Unknown`, may hold the record for one lease.
//! - Linux only: the clock is its `CLOCK_BOOTTIME`.
//! - Frames are neither encrypted nor authenticated.

#![warn(missing_docs)]

mod boottime;
mod builder;
mod client;
mod cluster_time;
mod codec;
mod connection;
mod error;
mod flight;
mod heartbeat;
mod held;
mod lease;
mod net;
mod once;
mod once_error;
mod operations;
mod request;
mod route;
mod send;
mod settle;
pub mod wire;

pub use boottime::{BootTime, ManualBootTime, RealBootTime, Sleep};
pub use builder::ClientBuilder;
pub use client::{Client, Config, Retry};
pub use codec::{Codec, CodecError};
pub use connection::{Connection, ConnectionError, DialError, DialTimeouts, NotSent};
pub use error::{CallError, Obstacle};
pub use held::Lost;
pub use lease::{AdoptError, CompleteError, Lease, LeaseHandle};
pub use net::{Connecting, Net, ReadHalf, Socket, Tcp, WriteHalf};
pub use once::{Done, Once, UNWRITTEN};
pub use once_error::OnceError;
pub use operations::{
    Acquisition, Conclusion, Extension, Purgation, Withdrawal, new_acquire, new_attempt,
};
pub use request::{LeaseError, LeaseRequest, Leased};
pub use tenure_state_machine::{Fingerprint, Holder, Name, Payload, Token};
pub use wire::Broken;
