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
//! - *`--client once`*: a cycle is one call of `once()` and counts as its two commands. A heartbeat
//!   is a guard that keeps its lease of 30 s for a third of that, so 1000 a second are 10 000
//!   guards, and 50 us of the client for each are 5 % of a processor; its latency says nothing.
//! - *Processor time* is user and system time as `/proc/PID/stat` has it, of the servers with all
//!   their children, and of this process. It covers kernel time of sockets and files, to 10 ms.
//! - *Bytes and flushes* are those of the whole disk below the data directory, from its `stat` in
//!   `/sys`; null on file systems that have no disk of their own.
//! - *Noise* is what the processors did for neither: `noise_cores` of 0.3 means that a third of one
//!   was busy with something else.
//!
//! # How to read it
//!
//! On one machine client and servers share the processors, so throughput is about the number of
//! processors / (server + client CPU an operation) once those are exhausted, and flushes bound it
//! before. A follower's CPU counts as much as the leader's.
//!
//! *Noise*: absolute figures move by a factor of two with the disk's mood and the neighbours of a
//! virtual machine, so compare ratios of one sitting only, medians over interleaved rounds, and
//! look at `noise_cores` first. A difference of less than 5 % is none.
//!
//! # Disturbances
//!
//! `--during` measures a quiet window, then one in which something else goes on, and gives both
//! p99s and their ratio; the other figures are those of the disturbed window. Snapshots are asked
//! of the nodes in turn, back to back. A purge works off the records of `--fill`, which were stored
//! so that all come due when the disturbed window opens; it closes when they are gone. Restarts
//! kill a follower as a crash would, and go on to the next when all are ready; the servers' CPU is
//! not known then, nor while nodes join. Who joins is sent a snapshot if the log does not go back to
//! its beginning, as after a million records: by then the nodes cut it. `--waiters` lets acquires wait for one other record in all windows.
//!
//! # Other stores
//!
//! `scripts/bench` installs etcd, ZooKeeper, NATS, Redis and PostgreSQL, and measures them and
//! Tenure in turn, each with an fsync before each answer. Redis and PostgreSQL are one process and
//! not replicated. None of the others runs expiry during the load. ZooKeeper's `sync` and read is
//! not strictly linearizable, nor is a read of NATS (its stream leader answers without asking a
//! majority); NATS now and then refuses an uncontended update (`10164`), which counts as an error.
//!
//! # Parts alone
//!
//! Micro-benchmarks are in the crates that they measure. The profile `release` has RocksDB
//! compiled already; each file takes `--bench NAME` and what criterion takes after `--`:
//!
//! ```text
//! cargo bench --profile release -p tenure-state-machine   # apply, codec
//! cargo bench --profile release -p tenure-storage         # log append, state apply, records
//! ```
//!
//! # What it came to
//!
//! `scripts/bench --rounds 1`: two cores, a disk that syncs in 0.2 ms, all in one sitting without
//! noise. The first figure is operations a second, the others are ratios of Tenure's to a peer's.
//!
//! | | clients | ops/s | etcd | ZooKeeper | NATS | Redis (alone) | PostgreSQL (alone) |
//! |---|---|---|---|---|---|---|---|
//! | cycle | 1 | 1 440 | 1.5 | 2.3 | 1.6 | 0.34 | 0.31 |
//! | cycle | 64 | 44 100 | 5.9 | 10 | 3.7 | 0.85 | 2.6 |
//! | cycle | 256 | 59 000 | 5.5 | 3.7 | 2.6 | 0.64 | 4.0 |
//! | duplicates | 64 | 76 700 | 8.6 | 6.4 | 6.0 | 1.2 | 3.0 |
//! | duplicates | 256 | 133 500 | 9.4 | 6.9 | 7.6 | 0.97 | 4.4 |
//! | heartbeat | 64 | 54 600 | 7.9 | 3.2 | 4.4 | 0.81 | 3.3 |
//! | heartbeat | 256 | 117 500 | 11 | 4.2 | 4.5 | 0.87 | 8.0 |
//!
//! That was the build before its flushes went past the page cache. A half cycle at 256 clients takes 27 us of
//! CPU, the client's included, and 1.4 KB in 0.023 flushes over three nodes until compactions begin,
//! 3 KB with them; its p99 of 12 ms is below etcd's p50 of 23 ms. With 10 million records cycles
//! come half as often as with 10 000, and a node has 690 bytes of disk for each, its log included.
//! In other sittings, with builds before: p99 while snapshots are taken is 1.5 times the quiet
//! one, while followers are killed and come back 2.0 times, while 200 000 records are purged 1.1
//! times; 10 000 waiters on one key change nothing for others. Over HTTP 29 000 commands a second
//! come from 64 clients one by one, and 108 000 in batches. `once()` takes 8 % more CPU at 64
//! clients than bare commands, 4 % at 256, and 10 000 guards take 3.7 % of a core.
//!
//! Of the two processors a fifth is idle at 256 clients, though never both at once but for 4 % of
//! the time: one thread of one node works, and the others wait for what it says. So what shortens
//! the leader's path counts twice.
//!
//! A lone client waits for two syncs in a row of hops between threads, and three nodes on two cores
//! do three times the work of one: that is what is left to Redis.
//!
//! # What was tried
//!
//! Each row is a change that was measured against the build before it, in one sitting, with three
//! processes and the client on two cores and 256-byte payloads. CPU is that of all four. The build
//! that this began with took 95 us for one half of a cycle at 64 clients, and 62 us at 256.
//!
//! | what | us at 64 clients | us at 256 | kept? |
//! |---|---|---|---|
//! | one entry in flight instead of four | 85 to 70 | 52 to 45 | no: one slow sync stops all; gathering (below) gives more |
//! | jemalloc instead of the C library's `malloc` | -15 % | -20 % | yes, for RocksDB too |
//! | mimalloc | -5 % | -5 % | no |
//! | state written behind, 8 MiB a generation | 78 to 62 | 62 to 43 | yes, but at 2 MiB: 8 MiB stalls for 40 ms at p99 |
//! | a cache of hot records alone, each apply still written | noise | noise | no: the write costs, not the read |
//! | one worker thread a node when three share two cores | -10 % | -10 % | yes: `tenure dev`, and `--worker-threads` |
//! | an entry gathers while another is on its way, the committed id goes with the next group, who writes answers yields first | 72 to 56 | 43 to 31 | yes: 14.7 to 2.1 futex calls of the leader an entry, 28.7 to 5.3 sends |
//! | wait up to 1 ms for company, rare futures boxed | 57 to 41 | 36 to 33 | yes |
//! | read rounds shared by all that ask meanwhile | duplicates: 40 to 36 | noise | yes |
//! | no task for a command that goes to the log, one timer for the deadlines of a connection | 30.1 to 27.9 | 25.0 to 23.6 | yes: 9 % more operations, 14 % more heartbeats |
//! | tallies of the bench shared by its clients | not measured | noise | yes: 256 histograms were 38 MB |
//! | a faster hash than SipHash for hot records | not measured | noise | no: what costs is memory far away |
//! | hints for sorted inserts into the memtable | not measured | noise | no |
//! | 16 or 8 MiB a memtable instead of 64 | not measured | noise: inserts -20 %, compaction takes it back | no |
//! | no compression of the first levels | not measured | 24 to 25.5 | no: and twice the bytes |
//! | 4 MiB of log entries kept in memory instead of 64, 1 of records instead of 8 | not measured | noise | no |
//! | the next entry goes when 64 or 96 commands wait, one or two others on their way | not measured | noise | no |
//! | two worker threads a node | not measured | 24.4 to 26.1 | no |
//! | jemalloc with two arenas, or larger thread caches | not measured | noise | no |
//! | messages to followers before the leader's own sync | noise | noise | no |
//! | what a read found in the database is kept for the next look | not measured | duplicates: 16.3 to 12.9 | yes: each looked three times |
//! | an acquire that a read answers waits in the connection's table, without a task | duplicates: 21.9 to 17.3 | duplicates: 13.0 to 10.9 | yes |
//! | an encoding is measured once and has room, so have answers and generations; smaller memtable filters | 27.0 to 26.0 | 21.3 to 20.7 | yes |
//! | the release build optimized as a whole, one unit a crate, instead of incremental | 31 to 28; duplicates: 19.6 to 17.3 | 24.5 to 22.5; duplicates: 12.9 to 10.6 | yes |
//! | checksums by the CPU's instructions in RocksDB | not measured | not measured | yes: 2 % of a profile |
//!
//! Short runs on an empty store hide what flushes and compactions cost: with a million records half
//! of all CPU is the state database's, more than half of that its threads behind. These rows are of
//! 25 s at 256 clients after `--fill 1000000`, or of 15 s after `--fill 10000000`; us are those of
//! servers and client:
//!
//! | what | ops/s | us | p99 ms | kept? |
//! |---|---|---|---|---|
//! | flushes and compactions past the page cache | 41 500 to 44 000 | 40.0 to 37.5 | 31.5 to 17.2 | yes |
//! | the same, a base level of 512 MiB, 8 files to begin with | 44 000 to 41 600 | 37.5 to 38.9 | 17.2 to 17.6 | no |
//! | the same, no compression of what is flushed | 44 000 to 43 900 | 37.5 to 36.6 | 17.2 to 17.6 | no: noise, and results that compress take twice the bytes |
//! | the same, results in blob files | 44 000 to 44 500 | 37.5 to 38.2 | 17.2 to 14.6 | not so: a fifth less written, a fifth more room; see below |
//! | universal compaction, 50 % stale, 10 million | 33 700 and 34 700 to 41 500 and 20 700 | 52 to 40 and 90 | 41 to 34 and 55 | no: it rewrites all at once |
//! | a base level of 1 GiB, 8 files, 10 million | 33 700 and 34 700 to 17 100 and 38 800 | 52 to 105 and 44 | 41 to 83 and 37 | no: as lumpy |
//! | the records of a step are asked for together | 50 000 to 51 400 | 33.0 to 31.7 | 14.5 to 14 | yes |
//! | results in blob files, whose oldest quarter is collected (RocksDB's default) | 51 400 to 52 800 | 31.7 to 32 | 14 to 13 | no |
//! | the oldest tenth is | 51 400 to 60 000 | 31.7 to 27 | 14 to 12 | yes: the oldest twentieth, or none, gives no more |
//! | both, 10 million | 28 000 to 55 000 | 53 to 31 | 19 to 11.6 | and 450 bytes of disk a record instead of 690 |
//! | LZ4 of blob files | noise | noise | noise | yes: results that compress take less |
//! | RocksDB's threads at nice 10 | 32 700 to 33 600; at 64 clients 17 500 to 17 700 | noise | noise | no |
//!
//! The purge of a backlog of 400 000 or more, beside 256 clients whose quiet rate was 22 000 to
//! 30 000 operations a second on a slower day:
//!
//! | what | ops/s meanwhile | p99, times the quiet one | kept? |
//! |---|---|---|---|
//! | each record is read and checked | 9 000 | 4.5 | no: its result is read from a file that no page cache has |
//! | the deadline index decides, nothing is written first | 21 200 | 1.4 | yes |
//! | 500 records an entry instead of 250 | 13 000 | 2.0 | yes: it keeps up with what is stored |
//! | and what is due is not sorted twice | 18 100 | 1.4 | yes: 27 000 records a second |
//!
//! # Caveats
//!
//! - A closed loop hides what an overload would show: callers that keep coming.
//! - Loopback has no latency; three nodes on one disk share its flushes.
//! - Processor time has the resolution of 10 ms: windows of a second or more.
//! - Clients of one process share two or more threads; at `--concurrency 1` latency includes their
//!   waking up.

#![warn(missing_docs)]

mod batch;
mod bench;
mod device;
pub mod disturb;
mod fill;
pub mod http;
mod load;
mod meters;
mod native;
mod once;
mod payloads;
mod procfs;
mod progress;
mod results;
mod system;
mod tally;
mod waiters;

pub use batch::Batch;
pub use bench::{Bench, Settings, Via, Window};
pub use device::Device;
pub use fill::fill;
pub use http::Http;
pub use load::{CLIENTS_MAX, Load, Running, Workload};
pub use meters::{Costs, Meters, Reading};
pub use native::Native;
pub use payloads::{Payloads, random_bytes};
pub use results::{Disturbed, Filled, Results};
pub use system::{Acquired, LEASE_MS, SCOPE, System, TTL_MS, fresh_key};
pub use tally::{Tally, rounded};
pub use waiters::Waiters;
