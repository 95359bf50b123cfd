//! `Idempotency-Key` for axum and any other tower stack: a request runs once, and its retries are
//! handed its response.
//!
//! A client names a request by a key of its own, and sends the same key when it sends the request
//! again, because a connection broke, a server died, or somebody clicked twice. [`IdempotencyLayer`]
//! stands before the handlers and keeps a Tenure record for each key: the first request acquires
//! it, runs, and completes it with the response; others get that response, on any instance of the
//! service. It follows the IETF draft `draft-ietf-httpapi-idempotency-key-header`.
//!
//! # Example
//!
//! ```no_run
//! use axum::http::request::Parts;
//! use axum::{Router, routing::post};
//! use tenure_client::Client;
//! use tenure_idempotency::IdempotencyLayer;
//!
//! /// Left in the request by the authentication, which is a layer outside of this one.
//! #[derive(Clone)]
//! struct Account(String);
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().endpoints(["127.0.0.1:7701"]).holder("payments-1").build()?;
//! let account = |parts: &Parts| parts.extensions.get::<Account>().map(|account| account.0.clone());
//! let layer = IdempotencyLayer::builder(client, "payments", account).build()?;
//! let service = Router::new()
//!     .route("/payments", post(async || "paid"))
//!     .layer(layer.clone());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, service).await?;
//! layer.drain().await;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/payments.rs` is a service to try it on with curl.
//!
//! # What is covered
//!
//! POST and PATCH, unless [`IdempotencyBuilder::methods`] says otherwise. A request of another
//! method, or one without a key where that is [`IdempotencyBuilder::optional`], passes through: its
//! body is not touched, and neither is its response's.
//!
//! A record's scope is the service's name and a hash of the principal, its key is the client's: so
//! nobody is handed the response of somebody else, whatever key he guesses, and names of people
//! (which may be long, and have colons in them) do not get into scopes, which are logged. Its
//! fingerprint is the SHA-256 of method, path with query, and body, byte for byte as received.
//!
//! # Invariants
//!
//! - **I1** A handler runs for a covered request only while that holds the record of its principal
//!   and key. Requests that come meanwhile do not run: they are told to come back, or wait.
//! - **I2** Whatever is refused before the record is held has run nothing. A store that does not
//!   answer is such a refusal: the layer never runs a handler without a record.
//! - **I3** Once a handler has answered with a status that is stored, its record is never released.
//!   It is recorded before the response is sent. If that cannot be done in time (the client's
//!   timeout), the response is sent with `Idempotency-Recorded: false`, and recording goes on
//!   for five minutes, with the lease kept; if the record cannot be reached for so long, or another
//!   request has stolen it, it may run again, or has.
//! - **I4** A response whose status is not stored (5xx), an error of the service and a panic leave
//!   no trace: the record is released, and then the response, error or panic goes on.
//! - **I5** What is replayed has the status, the kept header fields and the body of the first
//!   response, byte for byte, until its ttl has passed; then the key is new.
//! - **I6** When the lease is lost, the handler's future is dropped, before anybody can have
//!   stolen the record, and the answer is 503.
//! - **I7** A handler runs in a task of its own. Who hangs up does not stop it: its response is
//!   recorded, and the retry has it. Who hangs up before it runs leaves the queue, and nothing runs.
//! - **I8** A request holds at most [`IdempotencyBuilder::request_limit`] bytes of its own and
//!   [`IdempotencyBuilder::response_limit`] of its response in memory (twice, while it is
//!   recorded), and no more than [`IdempotencyBuilder::running_limit`] requests are past their body.
//!
//! # Answers
//!
//! Every one that is not a handler's is an RFC 9457 problem (`application/problem+json`) with `type`
//! (`urn:tenure:problem:<code>`), `title`, `status`, `detail`, `code`, `retryable` and `outcome`:
//! `refused` when no handler ran for this request, `unknown` when one did, to its end or in part.
//!
//! | status | code | when | outcome | what a client does |
//! |---|---|---|---|---|
//! | the handler's | | it ran, and is recorded (or its status is released) | | |
//! | the handler's, with `Idempotency-Recorded: false` | | it ran, and could not be recorded in time | | nothing: a retry may run again |
//! | the first one's, with `Idempotent-Replayed: true` | | an earlier request was run | | |
//! | 400 | `key_missing` | no key, and one is required | refused | send one |
//! | 400 | `key_malformed` | no structured-field string of 1 to 255 characters, or several | refused | quote it |
//! | 400 | `body_broken` | the request's body broke off | refused | retry |
//! | 403 | `no_principal` | nobody in whose name it could be kept | refused | authenticate |
//! | 409, `Retry-After` | `in_progress` | the first request is being run | refused | retry |
//! | 409 | `response_not_kept` | it was run, and its response was too large to keep: `response_status` is its status | refused | read what it made by other means |
//! | 413 | `body_too_large` | the body is over the limit | refused | send less |
//! | 422 | `key_reused` | the key came with another method, path, query or body | refused | take a new key |
//! | 500 | `record_unreadable` | the record is not this layer's, or of a later version | refused | |
//! | 500 | `response_broken` | the handler answered, and its body broke off; duplicates get `response_not_kept` | unknown | |
//! | 500 | `internal` | a defect, logged | refused | |
//! | 503, `Retry-After` | `store_unreachable` | no answer from the store before a handler ran | refused | retry |
//! | 503, `Retry-After` | `too_many_running` | the limit of handlers is reached | refused | retry |
//! | 503, `Retry-After` | `shutting_down` | the layer drains | refused | retry |
//! | 503, `Retry-After` | `lease_lost` | the lease was lost while the handler ran | unknown | retry |
//!
//! `Retry-After` is whole seconds: what is left of the holder's lease, and at most
//! [`RETRY_AFTER`] if [`IdempotencyBuilder::retry_after`] says nothing else.
//!
//! # What is stored
//!
//! Status, header fields and body, as a payload that people can read with `tenure get`. Not stored
//! are fields of one connection or one message, which a replay is not (Connection and what it
//! names, Keep-Alive, Transfer-Encoding, Trailer, TE, Upgrade, Proxy-Authenticate,
//! Proxy-Connection; Content-Length and Date, which the server gives each message), and Set-Cookie:
//! a session is for who was answered then. A replay, hours later, would bring back one that has
//! ended or was rotated since, and a cookie is a secret that would lie in the store for a day.
//! [`IdempotencyBuilder::unstored_headers`] changes the latter.
//!
//! A response over the limit (1 MiB of body, or 15 KiB of fields) is sent as it is, streaming, and
//! its record is completed with a mark in its place: refusing to run again is what a key is for, and
//! a response can be had by other means (a GET), while an effect cannot be taken back. To release
//! it would make every retry of a large response run again; not to send it would lose what was done.
//!
//! # Caveats
//!
//! - A lease is time, and time is only liveness. A handler that blocks its thread, or whose process
//!   is stopped, goes on after its lease is lost. Exclusive effects need a sink that refuses a
//!   token smaller than one it has seen: handlers find a `tenure_client::LeaseHandle` among the
//!   request's extensions, and its `token()`.
//! - A process that dies after the effect and before the record is completed has its request run
//!   again, a lease later. What must not, goes into the sink under the key, or the token.
//! - A response that is stored is read to its end before it is sent. Event streams and downloads do
//!   not belong behind this layer.
//! - Trailers, extensions of a response, and protocol upgrades (1xx) are not kept.
//! - Header fields of a request are not part of its fingerprint; nor is a prefix that
//!   `Router::nest` takes off before the layer sees the path. Put it outside of the nest, or give
//!   each nested router a layer with a service name of its own.
//! - Layers outside of this one see replays (authentication and rate limits belong there, and
//!   compression); layers inside see first requests alone.
//! - Handlers of clients that are gone live as long as the runtime does: call
//!   [`IdempotencyLayer::drain`] before it ends.
//! - Requests that wait ([`IdempotencyBuilder::wait`]) count as running.
//! - Whoever can read the cluster can read responses: see the client's caveats.

#![warn(missing_docs)]

mod body;
mod fingerprint;
mod key;
mod layer;
mod problem;
mod run;
mod service;
mod settings;
mod stored;

pub use body::ReplyBody;
pub use key::IDEMPOTENCY_KEY;
pub use layer::IdempotencyLayer;
pub use run::IDEMPOTENCY_RECORDED;
pub use service::{IDEMPOTENT_REPLAYED, Idempotent};
pub use settings::{IdempotencyBuilder, REQUEST_BYTES, RETRY_AFTER, RUNNING};
