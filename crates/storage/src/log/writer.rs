//! The one writer of a log: turns what has gathered into one synced batch.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use openraft::storage::IOFlushed;
use tenure_state_machine::seeded::{SeededBug, seeded};
use tokio::sync::oneshot;

use crate::disk::{Batch, Durability, Family};
use crate::types::TypeConfig;
use crate::work::{Queue, Work, Worker, Workers};

use super::Shared;
use super::stored::{self, COMMITTED};

/// A group is closed when it has so many bytes: one sync of it takes some tens of milliseconds.
const GROUP_BYTES: usize = 8 * 1024 * 1024;

/// The way to the writer. Dropping it waits until the writer has done what it was handed.
#[derive(Debug)]
pub(super) struct Writer(Worker<Write>);

/// A write on its way to the writer.
pub(super) struct Write {
    sequence: u64,
    entries: u64,
    batch: Batch,
    done: Done,
}

/// Who learns of a write.
pub(super) enum Done {
    /// openraft, once it is on disk.
    Append(IOFlushed<TypeConfig>),
    /// Who called, once it is on disk.
    Reply(oneshot::Sender<io::Result<()>>),
}

impl Writer {
    pub(super) fn start(workers: &Workers, shared: Arc<Shared>) -> io::Result<Self> {
        workers.start("log", Groups(shared)).map(Self)
    }

    pub(super) fn send(
        &self,
        sequence: u64,
        entries: u64,
        batch: Batch,
        done: Done,
    ) -> io::Result<()> {
        self.0.hand(Write { sequence, entries, batch, done }).ok_or_else(stopped)
    }
}

/// The error of a write that the writer will not do any more.
pub(super) fn stopped() -> io::Error {
    io::Error::other("the log's writer has stopped")
}

/// Writes group by group; ends with the last handle of the log, or at the first failure (L5).
struct Groups(Arc<Shared>);

impl Work for Groups {
    type Item = Write;

    fn work(&mut self, first: Write, more: &mut Queue<Write>) -> ControlFlow<()> {
        let shared = &self.0;
        let (group, mut batch) = gather(first, more);
        let entries = group.iter().map(|write| write.entries).sum();
        let written = shared.fail.check().and_then(|()| {
            let last = group.last().map_or(0, |write| write.sequence);
            add_committed(shared, last, &mut batch)?;
            let bytes = batch.bytes;
            shared.counters.time(entries, bytes, || shared.db.write(batch, durability()))
        });
        let written = if seeded(SeededBug::FsyncErrorIgnored) { Ok(()) } else { written };
        let written = shared.fail.guard("the log could not be written", written);
        finish(shared, group, &written);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn end(&mut self) {
        let shared = &self.0;
        let mut last = Batch::default();
        let written = shared.fail.check().and_then(|()| add_committed(shared, u64::MAX, &mut last));
        if written.is_ok() && !last.changes.is_empty() {
            let written = shared.db.write(last, Durability::Buffered);
            drop(shared.fail.guard("the log could not be written", written));
        }
    }
}

/// L2: a group is on disk before it is reported.
fn durability() -> Durability {
    if seeded(SeededBug::AcknowledgedBeforeFsync) {
        return Durability::Buffered;
    }
    Durability::Synced
}

/// The committed id needs no sync of its own: without it a restart applies a little less until a
/// leader says more. But on disk it never goes before its entry.
fn add_committed(shared: &Shared, sequence: u64, batch: &mut Batch) -> io::Result<()> {
    if let Some(committed) = shared.write().take_committed(sequence) {
        batch.put(Family::Meta, COMMITTED, stored::seal(&committed)?);
    }
    Ok(())
}

/// What has gathered since the last group, as one batch.
fn gather(first: Write, writes: &mut Queue<Write>) -> (Vec<Write>, Batch) {
    let mut group = vec![first];
    let mut batch = Batch::default();
    while let Some(write) = group.last_mut() {
        batch.extend(std::mem::take(&mut write.batch));
        if batch.bytes >= GROUP_BYTES {
            break;
        }
        match writes.try_recv() {
            Ok(next) => group.push(next),
            Err(_) => break,
        }
    }
    (group, batch)
}

/// Tells who waits for a group that was synced, or could not be (L2).
fn finish(shared: &Shared, group: Vec<Write>, written: &io::Result<()>) {
    let result = || match written {
        Ok(()) => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    if let (Ok(()), Some(last)) = (written, group.last()) {
        shared.durable.send_replace(last.sequence);
        shared.write().forget(last.sequence);
    }
    for write in group {
        match write.done {
            Done::Append(flushed) => flushed.io_completed(result()),
            // Who does not wait any more does not need to know.
            Done::Reply(reply) => drop(reply.send(result())),
        }
    }
}
