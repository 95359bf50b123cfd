//! Measures a cluster: how many operations a second, how late, and what each costs.
//!
//! A closed loop: each of the concurrent clients asks, waits for the answer, and asks again, until
//! the window closes. So latencies are those of callers that slow down with the cluster, not of a
//! fixed rate. The loop knows no store; a [`System`] is one connection to one, be it Tenure over
//! its native protocol, over HTTP, in batches, or (the binary `tenure-compare`) etcd or Redis.
//!
//! # What is measured, and how
//!
//! - *Latency* runs from before the request is encoded and sent until its answer is decoded. A call
//!   belongs to the window in which it began, and windows wait for their last calls, so a stall at
//!   the end is in the tail. Clients have warmed up before the first window opens.
//! - *Operations*: each acquire, each complete and each extend is one. A call in a batch counts as
//!   many as the batch has commands; they share its latency.
//! - *Processor time* is user and system time as `/proc/PID/stat` has it, of the servers with all
//!   their children, and of this process. It covers kernel time of sockets and files, to 10 ms.
//! - *Bytes and flushes* are those of the whole disk below the data directory, from its `stat` in
//!   `/sys`; null on file systems that have no disk of their own.
//! - *Noise* is what the processors did for neither: `noise_cores` of 0.3 means that a third of one
//!   was busy with something else.
//!
//! # How to read it
//!
//! On one machine client and servers share the processors, so throughput is about 1 / (server +
//! client CPU an operation) once that is exhausted, and flushes bound it before. Compare ratios of
//! one sitting only: absolute figures move by a factor of two with the disk's mood, while medians
//! over interleaved rounds move by some percent. A difference below 5 % is noise.
//!
//! # Other stores
//!
//! `scripts/bench` installs etcd, ZooKeeper, NATS, Redis and PostgreSQL, and measures them and
//! Tenure in turn, each with an fsync before each answer. Redis and PostgreSQL are one process and
//! not replicated. None of the others runs expiry during the load. ZooKeeper's `sync` and read is
//! not strictly linearizable, nor is a read of NATS (its stream leader answers without asking a
//! majority); NATS now and then refuses an uncontended update (`10164`), which counts as an error.

mod batch;
mod device;
pub mod http;
mod load;
mod meters;
mod native;
mod procfs;
mod system;
mod tally;

pub use batch::Batch;
pub use device::Device;
pub use http::Http;
pub use load::{CLIENTS_MAX, Load, Running, Workload};
pub use meters::{Costs, Meters, Reading};
pub use native::Native;
pub use system::{Acquired, LEASE_MS, SCOPE, System, TTL_MS, fresh_key};
pub use tally::{Tally, rounded};
