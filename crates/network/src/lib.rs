//! Everything between sockets and the log: the only crate that listens or dials peers.
//!
//! A node takes requests on two ports: JSON over HTTP for people and other languages, frames for
//! Rust clients and for peers. Whatever node is asked, the leader answers: a command goes through
//! the log, a read through a read index, and both are judged at the cluster clock of the state
//! that they see. Time enters in one place, the stamp of an entry, and only a leader that is
//! *anchored* has one.
//!
//! # The life of an acquire
//!
//! 1. `routes` or `serve_client` reads and checks it; `route` finds who answers: this node,
//!    or one hop away (`forward`).
//! 2. `local` looks at the record. If nothing would change it takes a read index and answers;
//!    else it hands the command to `propose`.
//! 3. `propose` gathers what waits into one entry, stamps it with `leader_time`, and gives it
//!    to openraft, which sends it through `dial` to the peers' `serve_peer`.
//! 4. Committed and applied, its answer goes back; `wait` wakes who waits for what changed.
//! 5. Refused as `in_progress` with time left to wait, it queues up in `wait`, and tries again
//!    when the record is free, its holder's lease has run out, or its own time is up.
//!
//! # Invariants
//!
//! They stand at the head of the module that keeps them, and are quoted by number:
//!
//! - **P1..P4** (`propose`) stamps, batches, and what *refused* and *unknown* mean.
//! - **Q1..Q3** (`local`) at which time answers are judged, and that reads are linearizable.
//! - **T1..T4** (`leader_time`) what a leader and a follower know of time.
//! - **W1..W4** (`wait`) no missed wake-up, order of arrival, nothing left behind.
//! - **N1, N2** (`dial`) votes and acknowledgements that count.
//! - **V1, V2** (`serve_peer`) who may take part in Raft, and when a reading of time counts.
//!
//! # What is durable when
//!
//! An answer to a command that changed something is given after its entry is on the disks of a
//! majority and applied here. A read is given after a majority has confirmed, later than the
//! request, that this node leads. A vote or an acknowledgement of a voter counts after this node
//! has recorded, durably, that it has seen that voter.
//!
//! # Caveats
//!
//! - Neither port encrypts or authenticates. Whoever reaches the RPC port can speak as a peer.
//! - The queue of waiters is the leader's memory: after a change of leaders it forms anew, in the
//!   order in which clients ask again.
//! - A listing is stale by design; it says at which index.
//! - Leadership is confirmed by messages, never by a clock lease: a read costs a round trip to a
//!   majority, shared by all reads that wait for it.
//! - The purger is paced for a backlog of millions, not for the least delay after a ttl: R2 makes
//!   that invisible.

mod budget;
pub mod clock;
mod config;
mod dial;
mod flow;
mod forward;
mod http;
mod leader_time;
mod local;
mod members;
mod metrics;
mod node;
pub mod peer;
mod pending;
mod propose;
mod purge;
mod read_index;
mod roles;
mod route;
mod routes;
mod rpc;
mod serve_client;
mod serve_peer;
mod shared;
mod socket;
mod stale;
mod trim;
mod wait;

pub use config::Config;
pub use node::{Admission, Node, Setup, StartError};
pub use socket::{Listener, PeerTcp};
