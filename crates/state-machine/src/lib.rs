//! The rules of a record: pure, deterministic, total.
//!
//! A caller *acquires* a record named by (scope, key), runs its action under a lease, and
//! *completes* the record with the result, which every duplicate is handed instead of running
//! again. Every transition is a [`Command`] in a log [`Entry`] that carries the leader's time as
//! its *stamp*; [`apply`] turns entries into state and answers, and does nothing else: no I/O, no
//! clock, no randomness. Whoever applies the same entries has the same state, byte for byte.
//!
//! # Example
//!
//! ```
//! use tenure_state_machine::*;
//!
//! let mut counters = Counters::default();
//! let mut store = MemoryStore::default();
//! let mut at = |stamp_ms, command| {
//!     let entry = Entry { stamp_ms, commands: vec![command] };
//!     apply(&mut counters, &mut store, &entry).map(|done| done.answers)
//! };
//!
//! let name = Name::new("mail", "order-1")?;
//! let acquire = |attempt: &str| -> Result<Command, Invalid> {
//!     Ok(Command::Acquire(Acquire {
//!         name: name.clone(),
//!         attempt: Attempt::new(attempt)?,
//!         holder: Holder::default(),
//!         lease_ms: command::lease_ms(None)?,
//!         ttl_ms: command::ttl_ms(None)?,
//!         fingerprint: None,
//!         not_after_ms: None,
//!     }))
//! };
//!
//! let first = at(1000, acquire("a")?)?;
//! assert!(matches!(first[..], [Answer::Acquired { lease_until_ms: 31_000, .. }]));
//! let duplicate = at(2000, acquire("b")?)?;
//! assert!(matches!(duplicate[..], [Answer::InProgress { retry_after_ms: 29_000, .. }]));
//! let steal = at(31_000, acquire("b")?)?;
//! assert!(matches!(&steal[..], [Answer::Acquired { took_over: Some(_), .. }]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rules
//!
//! - **R1** A deadline d has passed iff clock >= d: [`time::has_passed`].
//! - **R2** COMPLETE past its ttl, or IN_PROGRESS past ttl *and* lease, is absent: [`visible`].
//! - **R3** complete, release and extend need the record IN_PROGRESS with their token. An expired
//!   lease alone never refuses its holder.
//! - **R4** Each acquisition takes a token larger than every earlier one in the cluster.
//! - **R5** Refusals change no record. One that went through the log still moves the clock.
//! - **R6** The ttl counts from the acquire, and again from the completion. extend never touches it.
//! - **R7** extend never shortens a lease; it revives an expired one that nobody stole.
//! - **R8** The same attempt, or the token of a completion, gets the same answer again.
//! - **R9** Fingerprints are compared only when both sides carry one.
//! - **R10** After `not_after_ms` a command changes nothing.
//! - **R11** A purge deletes a bounded number of purgeable records, oldest deadline first.
//! - **R12** apply is total and deterministic.
//!
//! # Invariants
//!
//! Asserted where they can break, checked after every step of the random walk, quoted by number.
//!
//! - **I1** At most one holder per name at any index.
//! - **I2** Tokens strictly increase over the whole log.
//! - **I3** The clock never goes back.
//! - **I4** A lease ends only by release, completion, steal or purge.
//! - **I5** No answer depends on whether a purge has run.
//! - **I6** A refusal changes no record and takes no token.
//! - **I7** The same entries give byte-equal logical snapshots: [`snapshot`].
//! - **I8** apply is total: its only error is the store's own I/O, and that stops the node.
//! - **I9** A restored snapshot of index i and the entries after i give what all entries give.
//! - **I10** The deadline index and the records agree exactly.
//!
//! # What is durable when
//!
//! Nothing, here. A [`Store`] decides that; the contract is that all changes of an entry become
//! durable together with its log id.
//!
//! # Caveats
//!
//! - Exclusivity of *effects* needs a sink that compares tokens. A lease is time, and time is
//!   only liveness: a paused holder may wake up after its lease was stolen.
//! - A command that comes from outside is checked by its types and [`Command::check`]; apply
//!   trusts the log.
//! - Scopes have no settings of their own, and a command is about one record: there is no
//!   transaction over two.

mod answer;
mod apply;
pub mod codec;
pub mod command;
mod invalid;
pub mod limits;
mod name;
mod payload;
mod record;
pub mod seeded;
pub mod snapshot;
mod store;
mod text;
pub mod time;
mod token;

pub use answer::{Answer, Answers, At, Completion, LeaseLost, Replay, TookOver};
pub use apply::{AcquireVerdict, Counters, apply, judge_acquire};
pub use command::{Acquire, Command, Complete, Entry, Extend, Purge, Release};
pub use invalid::Invalid;
pub use name::{Name, check_scope};
pub use payload::Payload;
pub use record::{Record, State, visible};
pub use store::{MemoryStore, Store};
pub use text::{Attempt, Fingerprint, Holder};
pub use token::Token;
