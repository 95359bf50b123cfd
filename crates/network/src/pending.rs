//! Requests of one connection that wait for the log, without a task for each.
//!
//! - **X1** Who takes a request out of the table answers it, so it is answered once: with what was
//!   decided, or, when its time is up, with what can be said then (P2 of the proposer).
//! - **X2** A request is claimed for an entry only while it is in the table. What was taken out
//!   before is never proposed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::propose::ProposeError;
use crate::route::Reach;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Its id, to its client.
    pub(crate) id: u64,
    /// When it must be answered.
    pub(crate) deadline: Instant,
    /// How far it may go.
    pub(crate) reach: Reach,
    /// What it is, to metrics.
    pub(crate) operation: &'static str,
    /// Its place on the connection, and its room in memory.
    pub(crate) _permits: [OwnedSemaphorePermit; 2],
}

/// How far a request has come.
#[derive(Debug)]
enum Stage {
    /// It waits for an entry.
    Queued,
    /// It is in one: from here on it may commit.
    Proposed,
    /// It was refused here, and somebody else is asked, who keeps to its deadline.
    Sought(AbortHandle),
}

/// The requests that wait, by the number that each got here.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    table: Mutex<Table>,
    /// A deadline came in that is earlier than all others.
    earlier: Notify,
    /// Nothing waits any more.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Table {
    waiting: BTreeMap<u64, (Waiting, Stage)>,
    last: u64,
    /// No deadline is before this one; none when there is no request.
    earliest: Option<Instant>,
}

impl Pending {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a request, and gives its number.
    pub(crate) fn insert(&self, waiting: Waiting) -> u64 {
        let deadline = waiting.deadline;
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        table.waiting.insert(number, (waiting, Stage::Queued));
        if table.earliest.is_none_or(|earliest| deadline < earliest) {
            table.earliest = Some(deadline);
            drop(table);
            self.earlier.notify_one();
        }
        number
    }

    /// X2: whether it still waits, and is part of an entry from now on.
    pub(crate) fn claim(&self, number: u64) -> bool {
        match self.table().waiting.get_mut(&number) {
            Some((_, stage)) => {
                *stage = Stage::Proposed;
                true
            }
            None => false,
        }
    }

    /// Notes who asks somebody else, and ends the task if nobody waits for it any more.
    pub(crate) fn sought(&self, number: u64, task: AbortHandle) {
        match self.table().waiting.get_mut(&number) {
            Some((_, stage)) => *stage = Stage::Sought(task),
            None => task.abort(),
        }
    }

    /// Whether it still waits.
    pub(crate) fn waits(&self, number: u64) -> bool {
        self.table().waiting.contains_key(&number)
    }

    /// X1: gives it to who has its answer.
    pub(crate) fn take(&self, number: u64) -> Option<Waiting> {
        let mut table = self.table();
        let (waiting, _) = table.waiting.remove(&number)?;
        if table.waiting.is_empty() {
            self.emptied.notify_one();
        }
        Some(waiting)
    }

    /// The deadline of a request, and how far it may go.
    pub(crate) fn get(&self, number: u64) -> Option<(Instant, Reach)> {
        let table = self.table();
        table.waiting.get(&number).map(|(waiting, _)| (waiting.deadline, waiting.reach))
    }

    /// Returns requests whose time is up.
    pub(crate) async fn overdue(&self) -> Vec<(Waiting, ProposeError)> {
        loop {
            let earliest = self.table().earliest;
            let due = async {
                match earliest {
                    Some(earliest) => sleep_until(earliest).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.earlier.notified() => continue,
            }
            let overdue = self.table().take_overdue(Instant::now());
            if !overdue.is_empty() {
                self.emptied.notify_one();
                return overdue;
            }
        }
    }

    /// Returns when nothing waits.
    pub(crate) async fn emptied(&self) {
        while !self.table().waiting.is_empty() {
            self.emptied.notified().await;
        }
    }

    /// Nobody waits for anything any more.
    pub(crate) fn close(&self) {
        for (_, stage) in std::mem::take(&mut self.table().waiting).into_values() {
            if let Stage::Sought(task) = stage {
                task.abort();
            }
        }
    }
}

impl Stage {
    /// P2 of the proposer: without an answer, only what was not in an entry is certain.
    fn silence(&self) -> ProposeError {
        match self {
            Self::Queued => ProposeError::TooLate,
            Self::Proposed | Self::Sought(_) => ProposeError::Unknown,
        }
    }
}

impl Table {
    fn take_overdue(&mut self, now: Instant) -> Vec<(Waiting, ProposeError)> {
        let is_over = |(waiting, stage): &(Waiting, Stage)| {
            waiting.deadline <= now && !matches!(stage, Stage::Sought(_))
        };
        let over = self.waiting.extract_if(.., |_, entry| is_over(entry));
        let over = over.map(|(_, (waiting, stage))| (waiting, stage.silence())).collect();
        let left = self.waiting.values().filter(|(_, stage)| !matches!(stage, Stage::Sought(_)));
        self.earliest = left.map(|(waiting, _)| waiting.deadline).min();
        over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio::task::{JoinError, JoinHandle};
    use tokio::time::advance;

    use super::*;

    fn waiting(id: u64, ms: u64) -> Waiting {
        let permit = || Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Waiting {
            id,
            deadline: Instant::now() + Duration::from_millis(ms),
            reach: Reach::Cluster,
            operation: "acquire",
            _permits: [permit(), permit()],
        }
    }

    /// Ids of what is overdue after so many milliseconds, and what is said of each.
    async fn overdue(pending: &Pending, ms: u64) -> Vec<(u64, ProposeError)> {
        let over = tokio::time::timeout(Duration::from_millis(ms), pending.overdue()).await;
        let over = over.unwrap_or_default().into_iter();
        over.map(|(waiting, why)| (waiting.id, why)).collect()
    }

    /// What a task comes to, within a second.
    async fn ended(task: JoinHandle<()>) -> Result<(), JoinError> {
        tokio::time::timeout(Duration::from_secs(1), task).await.expect("the task goes on")
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_in_an_entry_in_time_never_will_be() {
        let pending = Pending::default();
        let (first, second) = (pending.insert(waiting(7, 100)), pending.insert(waiting(8, 100)));
        assert!(pending.claim(second));
        assert_eq!(overdue(&pending, 99).await, []);
        assert_eq!(
            overdue(&pending, 2).await,
            [(7, ProposeError::TooLate), (8, ProposeError::Unknown)]
        );
        assert!(!pending.claim(first) && pending.take(second).is_none());
        assert_eq!(overdue(&pending, 1000).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_before_all_others_is_kept_though_it_came_last() {
        let pending = Arc::new(Pending::default());
        pending.insert(waiting(1, 5000));
        let waits = Arc::clone(&pending);
        let waits = tokio::spawn(async move { overdue(&waits, 1000).await });
        tokio::task::yield_now().await;
        pending.insert(waiting(2, 100));
        assert_eq!(waits.await.unwrap(), [(2, ProposeError::TooLate)]);
        assert_eq!(overdue(&pending, 4800).await, []);
        assert_eq!(overdue(&pending, 101).await, [(1, ProposeError::TooLate)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_elsewhere_keeps_to_the_deadline_himself() {
        let pending = Pending::default();
        let number = pending.insert(waiting(1, 100));
        let task = tokio::spawn(std::future::pending::<()>());
        pending.sought(number, task.abort_handle());
        advance(Duration::from_millis(200)).await;
        assert_eq!(overdue(&pending, 1000).await, []);
        pending.close();
        assert!(ended(task).await.unwrap_err().is_cancelled());
        assert!(pending.take(number).is_none() && !pending.claim(number));
        let late = tokio::spawn(std::future::pending::<()>());
        pending.sought(number, late.abort_handle());
        assert!(ended(late).await.unwrap_err().is_cancelled(), "nobody would have ended it");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_told_when_nothing_waits_any_more() {
        let pending = Arc::new(Pending::default());
        let waits = Arc::clone(&pending);
        pending.insert(waiting(1, 100));
        let number = pending.insert(waiting(2, 1000));
        let waits = tokio::spawn(async move { waits.emptied().await });
        assert_eq!(overdue(&pending, 200).await.len(), 1);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        assert_eq!(pending.take(number).map(|waiting| waiting.id), Some(2));
        ended(waits).await.unwrap();
    }
}
