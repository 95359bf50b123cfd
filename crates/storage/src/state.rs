//! The state of a node: records, deadline index and clock, applied entry by entry.
//!
//! - **A1** The state is written behind, one batch a generation, which holds all changes since the
//!   one before it and `applied`: the state on disk is always that of an exact prefix of the log.
//! - **A2** The state on disk is never ahead of the log on disk: a step first waits until the log
//!   is durable through its last entry.
//! - **A3** Record, log id and clock of one read come from one version.
//! - **A4** Who waits is told of a step after it can be read and before its answers go out.
//! - **A5** An installed snapshot replaces records, log id and clock together.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use tenure_state_machine::{Name, Record, snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::disk::{Database, Disk, Layout};
use crate::fail::FailStop;
use crate::log::LogStore;
use crate::observe::{Observer, StateCounters};
use crate::open::{DirLock, STATE};
use crate::snapshot::{Receiver, Snapshot, Snapshots};
use crate::txn;
use crate::types::{Applied, LogId, SnapshotMeta, StoredMembership, TypeConfig, command_bytes};
use crate::work::Workers;

mod behind;
mod first;
mod found;
mod hot;
mod meta;
mod records;
mod steps;
mod switch;

use behind::Behind;
pub(crate) use first::FirstPlace;
#[cfg(test)]
pub(crate) use hot::batch;
pub(crate) use hot::{Changed, Hot};
pub(crate) use meta::Meta;
pub use records::Page;
#[cfg(test)]
pub(crate) use steps::names;

type OpenraftSnapshot = openraft::alias::SnapshotOf<TypeConfig, Arc<Snapshot>>;

/// The state of one node. Clones are the same state; dropping the last one waits for its writer.
#[derive(Debug, Clone)]
pub struct StateStore {
    shared: Arc<Shared>,
    log: LogStore,
    behind: Arc<Behind>,
    workers: Workers,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    /// Generations of the state, by number; the highest is the one.
    dir: PathBuf,
    live: RwLock<Live>,
    /// What the database is at. Held while it is written to, before `live` where both are.
    writing: Mutex<Meta>,
    /// Held while a checkpoint is made or an installed snapshot takes over.
    switch: tokio::sync::Mutex<()>,
    snapshots: Snapshots,
    current: Mutex<Option<Arc<Snapshot>>>,
    applied: watch::Sender<Applied>,
    observer: OnceLock<Arc<dyn Observer>>,
    counters: StateCounters,
    fail: FailStop,
    _lock: DirLock,
}

#[derive(Debug)]
struct Live {
    db: Arc<dyn Database>,
    meta: Meta,
    /// What the database does not have yet, and what it was given last.
    hot: Hot,
    generation: u64,
    first_place: FirstPlace,
}

impl StateStore {
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        workers: &Workers,
        data_dir: &Path,
        log: LogStore,
        fail: FailStop,
        lock: DirLock,
    ) -> io::Result<Self> {
        let (snapshots, current) = Snapshots::open(Arc::clone(&disk), data_dir.join("snapshots"))?;
        let dir = data_dir.join(STATE);
        let generation = switch::newest_generation(&*disk, &dir)?;
        let db = disk.open(&dir.join(generation.to_string()), Layout::State)?;
        let live = Live::load(db, generation)?;
        check_not_ahead(&live.meta, &log, current.as_deref())?;
        let applied = watch::Sender::new(live.meta.applied());
        let writing = Mutex::new(live.meta.clone());
        let shared = Shared {
            disk,
            dir,
            live: RwLock::new(live),
            writing,
            switch: tokio::sync::Mutex::new(()),
            snapshots,
            current: Mutex::new(current),
            applied,
            observer: OnceLock::new(),
            counters: StateCounters::default(),
            fail,
            _lock: lock,
        };
        let shared = Arc::new(shared);
        let behind = Arc::new(Behind::start(workers, Arc::clone(&shared))?);
        Ok(Self { shared, log, behind, workers: workers.clone() })
    }

    /// Sets who is told of changes. Only the first call counts.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        drop(self.shared.observer.set(observer));
    }

    /// What this state has done since it was opened.
    #[must_use]
    pub fn counters(&self) -> StateCounters {
        self.shared.counters.clone()
    }

    /// Up to where the state is applied.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.shared.live().meta.applied()
    }

    /// Follows [`StateStore::applied`].
    #[must_use]
    pub fn watch_applied(&self) -> watch::Receiver<Applied> {
        self.shared.applied.subscribe()
    }

    /// Ids that were members once and are none now.
    #[must_use]
    pub fn removed_members(&self) -> BTreeSet<u64> {
        self.shared.live().meta.removed.clone()
    }

    /// The record as stored, and the moment it was read at (A3).
    ///
    /// # Errors
    /// The disk's own, after which the node stops; as of all reads below.
    pub fn read(&self, name: &Name) -> io::Result<(Option<Arc<Record>>, Applied)> {
        let live = self.shared.live();
        let record = txn::look_at_record(&*live.db, &live.hot, name);
        Ok((self.shared.sound(record)?, live.meta.applied()))
    }

    /// Does what may wait for the disk where it holds nobody up: to its end, even if nobody waits
    /// for it.
    ///
    /// # Errors
    /// What the work says.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let state = self.clone();
        self.workers.run(move || work(&state)).await
    }

    /// The oldest deadline of all records, in milliseconds of cluster time. Blocks for a write, as
    /// do the other looks at many records.
    ///
    /// # Errors
    /// The disk's own.
    pub fn first_deadline_ms(&self) -> io::Result<Option<u64>> {
        let (db, first_place) = self.shared.deadlines()?;
        self.shared.sound(txn::first_deadline_ms(&*db, &first_place))
    }

    /// How many records are due at `clock_ms`, at most `limit`.
    ///
    /// # Errors
    /// The disk's own.
    pub fn count_due(&self, clock_ms: u64, limit: u64) -> io::Result<u64> {
        let (db, first_place) = self.shared.deadlines()?;
        self.shared.sound(txn::count_due(&*db, &first_place, clock_ms, limit))
    }

    /// Records as stored, in the order of names, that `wanted` says yes to; and the name to go on
    /// after, if there may be more. `wanted` must not call the state.
    ///
    /// # Errors
    /// The disk's own.
    #[expect(clippy::type_complexity, reason = "a page and what it was read at, used once")]
    pub fn list(
        &self,
        page: Page<'_>,
        mut wanted: impl FnMut(&Record, Applied) -> bool,
    ) -> io::Result<(Vec<(Name, Record)>, Option<Name>, Applied)> {
        // A3: while this lock is held, the database is at what it says.
        let at = self.shared.write_behind()?;
        let db = Arc::clone(&self.shared.live().db);
        let applied = at.applied();
        let mut at = Some(at);
        let found = records::list(&*db, applied, page, &mut || drop(at.take()), &mut wanted);
        let (found, more) = self.shared.sound(found)?;
        Ok((found, more, applied))
    }

    /// The last finished snapshot.
    #[must_use]
    pub fn current_snapshot(&self) -> Option<Arc<Snapshot>> {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Index and term of the last entry that a snapshot covers, and a hash of the state in it that
    /// is equal wherever the state is.
    ///
    /// # Errors
    /// The disk's own, or a damaged snapshot.
    pub fn hash(&self, snapshot: &Snapshot) -> io::Result<(u64, u64, String)> {
        let db = self.shared.disk.open_checkpoint(snapshot.dir(), Layout::State)?;
        let meta = Meta::read(&*db)?;
        let hash = snapshot::hash(|sink| records::write_logical(&*db, meta.counters, sink))?;
        let applied = meta.applied();
        Ok((applied.index, applied.term, hash))
    }

    /// Starts to take in a snapshot from another node.
    ///
    /// # Errors
    /// The disk's own.
    pub fn receive_snapshot(&self) -> io::Result<Receiver> {
        self.shared.snapshots.receive()
    }

    /// Finishes a snapshot that was received whole: its files are durable when this returns. It is
    /// this node's only once it is installed; dropped before, its files go.
    ///
    /// # Errors
    /// The disk's own, or files that are no snapshot of `meta`.
    pub fn finish_received(
        &self,
        received: Receiver,
        meta: &SnapshotMeta,
    ) -> io::Result<Arc<Snapshot>> {
        self.shared.snapshots.received(received, meta)
    }

    /// Applies one step of entries.
    async fn step(&self, step: Vec<EntryResponder<TypeConfig>>) -> io::Result<()> {
        let Some(last) = step.last().map(|(entry, _)| entry.log_id) else { return Ok(()) };
        self.log.durable_through(last.index).await?;
        let started = Instant::now();
        let entries = u64::try_from(step.len()).unwrap_or(u64::MAX);
        let (answered, young_bytes) = self.shared.apply(step)?;
        self.shared.counters.entries.inc_by(entries);
        self.shared.counters.seconds.observe(started.elapsed().as_secs_f64());
        for (responder, answers) in answered {
            responder.send(answers);
        }
        self.behind.relieve(young_bytes).await
    }

    async fn install(&self, meta: &SnapshotMeta, snapshot: Arc<Snapshot>) -> io::Result<()> {
        // A2: what openraft truncated for this snapshot is on disk first.
        self.log.durable_whole().await?;
        let _switch = self.shared.switch.lock().await;
        let shared = Arc::clone(&self.shared);
        let meta = meta.clone();
        self.workers.run(move || shared.switch_to(&meta, &snapshot)).await
    }
}

/// A2, looked at again: an applied entry that is not in the log was lost there.
fn check_not_ahead(meta: &Meta, log: &LogStore, current: Option<&Snapshot>) -> io::Result<()> {
    let Some(applied) = meta.applied else { return Ok(()) };
    let reached = log.last().is_some_and(|last| last >= applied && last.index >= applied.index);
    // A crash may come between the install of a snapshot and the purge of the log up to it.
    if reached || current.is_some_and(|current| current.meta().last_log_id == Some(applied)) {
        return Ok(());
    }
    let ends = log.last().map_or_else(|| "is empty".into(), |last| format!("ends at {last}"));
    let why = format!("{applied} is applied, but the log {ends}: entries were lost");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

impl Shared {
    /// The database, up to date, and where its deadlines begin.
    fn deadlines(&self) -> io::Result<(Arc<dyn Database>, FirstPlace)> {
        drop(self.write_behind()?);
        let live = self.live();
        Ok((Arc::clone(&live.db), live.first_place.clone()))
    }

    fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn live_mut(&self) -> RwLockWriteGuard<'_, Live> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state that cannot be read stops the node.
    fn sound<T>(&self, read: io::Result<T>) -> io::Result<T> {
        self.fail.guard("the state could not be read", read)
    }
}

impl RaftStateMachine<TypeConfig> for StateStore {
    type SnapshotData = Arc<Snapshot>;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let live = self.shared.live();
        Ok((live.meta.applied, (*live.meta.membership).clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let (mut step, mut bytes) = (Vec::new(), 0);
        while let Some(next) = entries.next().await {
            let next = self.shared.fail.guard("an entry could not be read", next)?;
            bytes += command_bytes(&next.0);
            step.push(next);
            if step.len() == steps::STEP_ENTRIES || bytes >= steps::STEP_BYTES {
                let done = self.step(std::mem::take(&mut step)).await;
                self.shared.fail.guard("an entry could not be applied", done)?;
                bytes = 0;
            }
        }
        let done = self.step(step).await;
        self.shared.fail.guard("an entry could not be applied", done)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Arc<Snapshot>,
    ) -> io::Result<()> {
        let installed = self.install(meta, snapshot).await;
        self.shared.fail.guard("a snapshot could not be installed", installed)
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<OpenraftSnapshot>> {
        Ok(self.current_snapshot().map(openraft_snapshot))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateStore {
    type SnapshotData = Arc<Snapshot>;

    async fn build_snapshot(&mut self) -> io::Result<OpenraftSnapshot> {
        let _switch = self.shared.switch.lock().await;
        let shared = Arc::clone(&self.shared);
        let built = self.workers.run(move || shared.build()).await;
        self.shared.fail.guard("a snapshot could not be built", built).map(openraft_snapshot)
    }
}

fn openraft_snapshot(snapshot: Arc<Snapshot>) -> OpenraftSnapshot {
    OpenraftSnapshot { meta: snapshot.meta().clone(), snapshot }
}
