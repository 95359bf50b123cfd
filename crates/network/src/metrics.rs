//! What a node counts, as Prometheus reads it.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tenure_api::Refusal;
use tenure_api::frame::{Ask, Change, Decided, Reply, Waited};
use tenure_state_machine::{Answer, Command};
use tenure_storage::{LogCounters, StateCounters};

/// Counters of one node. Names start with `tenure_`.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    operations: Family<Operation, Counter>,
    steals: Counter,
    leases_lost: Counter,
    commands_per_entry: Histogram,
    /// Leader changes that this node has seen.
    pub(crate) leader_changes: Counter,
    /// Requests sent on to the leader.
    pub(crate) forwarded: Counter,
    gauges: Gauges,
}

/// Read when they are asked for.
#[derive(Debug, Default)]
struct Gauges {
    waiters: Unsigned,
    purge_backlog: Unsigned,
    first_index: Unsigned,
    last_index: Unsigned,
    committed_index: Unsigned,
    applied_index: Unsigned,
    snapshot_index: Unsigned,
    clock_ms: Unsigned,
    term: Unsigned,
    leads: Unsigned,
}

type Unsigned = Gauge<u64, AtomicU64>;

/// The state of a node at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    pub(crate) waiters: u64,
    pub(crate) purge_backlog: u64,
    pub(crate) first_index: u64,
    pub(crate) last_index: u64,
    pub(crate) committed_index: u64,
    pub(crate) applied_index: u64,
    pub(crate) snapshot_index: u64,
    pub(crate) clock_ms: u64,
    pub(crate) term: u64,
    pub(crate) leads: bool,
}

/// What was asked, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: Word,
    outcome: Word,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelValue for Word {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

impl Metrics {
    pub(crate) fn new(log: &LogCounters, state: &StateCounters) -> Self {
        let mut registry = Registry::with_prefix("tenure");
        let metrics = Self {
            operations: Family::default(),
            steals: Counter::default(),
            leases_lost: Counter::default(),
            commands_per_entry: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            leader_changes: Counter::default(),
            forwarded: Counter::default(),
            gauges: Gauges::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        r.register("operations", "Answered requests by outcome", metrics.operations.clone());
        r.register("steals", "Expired leases taken over", metrics.steals.clone());
        r.register("leases_lost", "Tokens refused as lost", metrics.leases_lost.clone());
        r.register(
            "commands_per_entry",
            "Commands that share a log entry",
            metrics.commands_per_entry.clone(),
        );
        r.register("leader_changes", "Leaders seen", metrics.leader_changes.clone());
        r.register("forwarded", "Requests sent on to the leader", metrics.forwarded.clone());
        r.register("log_syncs", "Synced batches of the log", log.syncs.clone());
        r.register("log_entries", "Log entries written", log.entries.clone());
        r.register("log_bytes", "Bytes of log entries written", log.bytes.clone());
        r.register("log_sync_seconds", "Writing and syncing a batch", log.seconds.clone());
        r.register("apply_entries", "Log entries applied", state.entries.clone());
        r.register("apply_commands", "Commands applied", state.commands.clone());
        r.register("apply_seconds", "Applying a batch of entries", state.seconds.clone());
        r.register("snapshots_built", "Snapshots built", state.snapshots_built.clone());
        r.register(
            "snapshots_installed",
            "Snapshots received and installed",
            state.snapshots_installed.clone(),
        );
        metrics.gauges.register(r);
        Self { registry, ..metrics }
    }

    /// Counts an entry on its way into the log.
    pub(crate) fn entry_proposed(&self, commands: usize) {
        self.commands_per_entry.observe(f64::from(u32::try_from(commands).unwrap_or(u32::MAX)));
    }

    /// Counts an answered request, on the node that its client asked.
    pub(crate) fn answered(&self, ask: &Ask, reply: Result<&Reply, &Refusal>) {
        match (ask, reply) {
            (Ask::Batch(commands), Ok(Reply::Batch(results))) => {
                for (command, result) in commands.iter().zip(results) {
                    self.settled(command_name(command), result.as_ref());
                }
            }
            (_, Ok(Reply::Answer(decided))) => self.settled(ask_name(ask), Ok(decided)),
            (_, Ok(reply)) => self.count(ask_name(ask), reply_name(reply)),
            (_, Err(refused)) => self.count(ask_name(ask), refusal(refused)),
        }
    }

    /// Counts an answered command, on the node that its client asked.
    pub(crate) fn settled(&self, operation: &'static str, outcome: Result<&Decided, &Refusal>) {
        self.count(operation, outcome.map_or_else(refusal, |decided| self.decided(decided)));
    }

    fn count(&self, operation: &'static str, outcome: &'static str) {
        let operation = Operation { operation: Word(operation), outcome: Word(outcome) };
        self.operations.get_or_create(&operation).inc();
    }

    fn decided(&self, decided: &Decided) -> &'static str {
        match &decided.answer {
            Answer::Acquired { resumed: true, .. } => "resumed",
            Answer::Acquired { took_over: Some(_), .. } => {
                self.steals.inc();
                "stolen"
            }
            Answer::Acquired { .. } => "acquired",
            Answer::Replay(_) => "replay",
            Answer::InProgress { .. } => "in_progress",
            Answer::FingerprintMismatch { .. } => "fingerprint_mismatch",
            Answer::Completed(_) => "completed",
            Answer::AlreadyComplete(_) => "already_complete",
            Answer::Released => "released",
            Answer::Extended { .. } => "extended",
            Answer::LeaseLost(_) => {
                self.leases_lost.inc();
                "lease_lost"
            }
            Answer::Purged { .. } => "purged",
            Answer::TooLate => "too_late",
        }
    }

    /// The text format, as of now.
    pub(crate) fn render(&self, position: Position) -> String {
        self.gauges.set(position);
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            // Writing to a string does not fail; an empty page would look like a healthy node.
            tracing::error!("the metrics could not be written");
        }
        text
    }
}

impl Gauges {
    fn register(&self, r: &mut Registry) {
        r.register("waiters", "Requests that wait for a record", self.waiters.clone());
        r.register(
            "purge_backlog",
            "Records due for purging, counted to 100000",
            self.purge_backlog.clone(),
        );
        r.register("log_first_index", "First kept log index", self.first_index.clone());
        r.register("log_last_index", "Last log index", self.last_index.clone());
        r.register("committed_index", "Last committed log index", self.committed_index.clone());
        r.register("applied_index", "Last applied log index", self.applied_index.clone());
        r.register("snapshot_index", "Last index of the snapshot", self.snapshot_index.clone());
        r.register("clock_ms", "The cluster clock, in milliseconds", self.clock_ms.clone());
        r.register("term", "The node's Raft term", self.term.clone());
        r.register("leads", "Whether the node leads", self.leads.clone());
    }

    fn set(&self, position: Position) {
        self.waiters.set(position.waiters);
        self.purge_backlog.set(position.purge_backlog);
        self.first_index.set(position.first_index);
        self.last_index.set(position.last_index);
        self.committed_index.set(position.committed_index);
        self.applied_index.set(position.applied_index);
        self.snapshot_index.set(position.snapshot_index);
        self.clock_ms.set(position.clock_ms);
        self.term.set(position.term);
        self.leads.set(u64::from(position.leads));
    }
}

/// A command, as metrics call it.
pub(crate) fn command_name(command: &Command) -> &'static str {
    match command {
        Command::Acquire(_) => "acquire",
        Command::Complete(_) => "complete",
        Command::Release(_) => "release",
        Command::Extend(_) => "extend",
        Command::Purge(_) => "purge",
    }
}

fn ask_name(ask: &Ask) -> &'static str {
    match ask {
        Ask::Command { command, .. } => command_name(command),
        Ask::Batch(_) => "batch",
        Ask::Get { .. } => "get",
        Ask::Wait { .. } => "wait",
        Ask::List(_) => "list",
        Ask::Change(change) => match change {
            Change::Add(_) => "add_member",
            Change::Promote { .. } => "promote_member",
            Change::Remove { .. } => "remove_member",
            Change::Transfer { .. } => "transfer",
        },
    }
}

fn reply_name(reply: &Reply) -> &'static str {
    match reply {
        Reply::Record { view: None, .. } => "absent",
        Reply::Record { view: Some(_), .. } => "found",
        Reply::Waited { waited, .. } => match waited {
            Waited::Complete(_) => "complete",
            Waited::Absent => "absent",
            Waited::LeaseExpired => "lease_expired",
            Waited::TimedOut { .. } => "timeout",
        },
        Reply::Answer(_) | Reply::Batch(_) | Reply::List { .. } | Reply::Changed(_) => "ok",
    }
}

fn refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::InvalidArgument { .. } => "invalid_argument",
        Refusal::PayloadTooLarge { .. } => "payload_too_large",
        Refusal::NotLeader { .. } => "not_leader",
        Refusal::Overloaded { .. } => "overloaded",
        Refusal::NoLeader => "no_leader",
        Refusal::ShuttingDown => "shutting_down",
        Refusal::OutcomeUnknown => "outcome_unknown",
        Refusal::StorageFull => "storage_full",
        Refusal::Internal { .. } => "internal",
    }
}
