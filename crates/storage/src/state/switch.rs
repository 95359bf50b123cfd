//! Generations of the state: how a snapshot is built from the live one, and replaces it.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use tenure_state_machine::seeded::{SeededBug, seeded};

use crate::disk::{Database, Disk, Layout, UNFINISHED};
use crate::snapshot::Snapshot;
use crate::types::SnapshotMeta;

use super::hot::Changes;
use super::{FirstPlace, Hot, Live, Meta, Shared};

impl Live {
    pub(super) fn load(db: Arc<dyn Database>, generation: u64) -> io::Result<Self> {
        let meta = Meta::read(&*db)?;
        Ok(Self { db, meta, hot: Hot::default(), generation, first_place: FirstPlace::unknown() })
    }

    /// The frozen generation is in the database, whose deadline index may begin earlier for it.
    /// Gives what is forgotten now.
    pub(super) fn written(&mut self) -> Changes {
        let (first_ms, forgotten) = self.hot.written();
        self.first_place.given(first_ms);
        forgotten
    }
}

impl Shared {
    /// Makes a checkpoint while apply goes on.
    pub(super) fn build(&self) -> io::Result<Arc<Snapshot>> {
        self.fail.check()?;
        let scratch = self.snapshots.scratch()?;
        if seeded(SeededBug::SnapshotOmitsLastKeys) {
            self.claim_written()?;
        } else {
            drop(self.write_behind()?);
        }
        let db = Arc::clone(&self.live().db);
        db.checkpoint(&scratch)?;
        let snapshot = self.snapshots.finish(scratch)?;
        self.keep(&snapshot);
        self.counters.snapshots_built.inc();
        Ok(snapshot)
    }

    /// Where bugs about installed snapshots are seeded.
    fn seed_installed(&self, meta: &mut Meta) {
        if seeded(SeededBug::TokenNotInSnapshot) {
            meta.counters.last_token = 0;
        }
        if seeded(SeededBug::MembershipNotInSnapshot) {
            meta.membership = Arc::clone(&self.live().meta.membership);
        }
    }

    fn keep(&self, snapshot: &Arc<Snapshot>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = current.replace(Arc::clone(snapshot))
            && !Arc::ptr_eq(&old, snapshot)
        {
            old.retire();
        }
    }

    /// A5: a copy of the snapshot becomes the newest generation by one rename; a crash before it
    /// leaves the old state, one after it the new. The snapshot has its name first: a restart in
    /// between finds it newer than the state and installs it again, while a state newer than every
    /// snapshot could not tell where the log begins.
    pub(super) fn switch_to(
        &self,
        meta: &SnapshotMeta,
        snapshot: &Arc<Snapshot>,
    ) -> io::Result<()> {
        self.fail.check()?;
        if snapshot.meta().last_log_id != meta.last_log_id {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "another snapshot was meant"));
        }
        let snapshot = self.snapshots.adopt(snapshot)?;
        let generation = self.live().generation + 1;
        let dir = self.dir.join(generation.to_string());
        let scratch = self.dir.join(format!("{generation}{UNFINISHED}"));
        self.disk.remove(&scratch)?;
        self.disk.copy_checkpoint(snapshot.dir(), &scratch)?;
        self.disk.rename(&scratch, &dir)?;
        let mut live = Live::load(self.disk.open(&dir, Layout::State)?, generation)?;
        self.seed_installed(&mut live.meta);
        let applied = live.meta.applied();
        let old = {
            let mut at = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            *at = live.meta.clone();
            std::mem::replace(&mut *self.live_mut(), live)
        };
        self.keep(&snapshot);
        self.counters.snapshots_installed.inc();
        self.tell(applied, None);
        let old_dir = self.dir.join(old.generation.to_string());
        // Closed before its files go: closing writes.
        drop(old);
        self.disk.remove(&old_dir)
    }
}

/// Removes unfinished and older generations; the first of a new node is 1.
pub(super) fn newest_generation(disk: &dyn Disk, dir: &Path) -> io::Result<u64> {
    let names = disk.list(dir)?;
    let generations = names.iter().filter_map(|name| name.parse::<u64>().ok());
    let newest = generations.clone().max().unwrap_or(1);
    let unfinished = names.iter().filter(|name| name.ends_with(UNFINISHED)).cloned();
    let older = generations.filter(|generation| *generation < newest);
    for name in unfinished.chain(older.map(|generation| generation.to_string())) {
        disk.remove(&dir.join(name))?;
    }
    Ok(newest)
}
