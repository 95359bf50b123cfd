//! Who waits for which record, in order of arrival.
//!
//! - **W1** A waiter is registered only after a pass that was itself linearizable, and looks at
//!   the record once more after it is registered, so no change is missed.
//! - **W2** A change of a record wakes the front of its queue alone. The front looks: a free record
//!   it takes, and when it leaves it wakes the next. A result is passed down the queue, so many
//!   waiters at a time that other records hardly notice.
//! - **W3** A waiter that is dropped leaves its queue at once.
//! - **W4** Re-sending an attempt takes over the place that the attempt has in the queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_state_machine::{Attempt, Name, Token};
use tenure_storage::{Changes, Observer};
use tokio::sync::Notify;

use crate::leader_time::LeaderTime;

/// All waiters of one node.
#[derive(Debug)]
pub(crate) struct Waiters {
    queues: Mutex<HashMap<Name, Queue>>,
    count: AtomicUsize,
    max: usize,
    time: Arc<LeaderTime>,
}

/// How many waiters a result wakes at once; each that leaves wakes one more.
const SHARED_AT_ONCE: usize = 64;

/// Who waits for one record. Places are numbered in order of arrival.
#[derive(Debug, Default)]
struct Queue {
    acquirers: BTreeMap<u64, Waiter>,
    /// Where each attempt stands.
    places: HashMap<Attempt, u64>,
    /// They watch, and do not stand in the queue.
    watchers: BTreeMap<u64, Waiter>,
    next: u64,
    /// The result that is being passed down, and the place up to which it is.
    shared: Option<(Token, u64)>,
}

#[derive(Debug)]
struct Waiter {
    attempt: Option<Attempt>,
    wake: Arc<Notify>,
}

/// A place among the waiters; dropping it gives it up (W3).
#[derive(Debug)]
pub(crate) struct Place {
    waiters: Arc<Waiters>,
    name: Name,
    number: u64,
    watches: bool,
    wake: Arc<Notify>,
}

/// There are as many waiters as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyWaiters;

impl Waiters {
    pub(crate) fn new(max: usize, time: Arc<LeaderTime>) -> Arc<Self> {
        Arc::new(Self { queues: Mutex::default(), count: AtomicUsize::new(0), max, time })
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a place at the end of the queue, or the one that the attempt has (W4).
    pub(crate) fn queue_up(
        self: &Arc<Self>,
        name: &Name,
        attempt: &Attempt,
    ) -> Result<Place, TooManyWaiters> {
        self.register(name, Some(attempt.clone()))
    }

    /// Watches a record without standing in its queue.
    pub(crate) fn watch(self: &Arc<Self>, name: &Name) -> Result<Place, TooManyWaiters> {
        self.register(name, None)
    }

    fn register(
        self: &Arc<Self>,
        name: &Name,
        attempt: Option<Attempt>,
    ) -> Result<Place, TooManyWaiters> {
        let wake = Arc::new(Notify::new());
        let watches = attempt.is_none();
        let mut queues = self.lock();
        // Who has a place already takes no other.
        let has_place = attempt.as_ref().zip(queues.get(name));
        let has_place =
            has_place.is_some_and(|(attempt, queue)| queue.places.contains_key(attempt));
        if self.count() >= self.max && !has_place {
            return Err(TooManyWaiters);
        }
        let queue = queues.entry(name.clone()).or_default();
        let next = queue.next;
        let number = match &attempt {
            Some(attempt) => *queue.places.entry(attempt.clone()).or_insert(next),
            None => next,
        };
        queue.next = next.max(number + 1);
        let waiters = if watches { &mut queue.watchers } else { &mut queue.acquirers };
        let waiter = Waiter { attempt, wake: Arc::clone(&wake) };
        match waiters.insert(number, waiter) {
            Some(older) => older.wake.notify_one(),
            None => {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(queues);
        Ok(Place { waiters: Arc::clone(self), name: name.clone(), number, watches, wake })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everybody: this node does not lead any more, or any record may have changed.
    pub(crate) fn wake_all(&self) {
        self.lock().values().for_each(Queue::wake_all);
    }
}

impl Queue {
    /// W2.
    fn wake_front(&self) {
        self.wake_next();
        self.watchers.values().for_each(|waiter| waiter.wake.notify_one());
    }

    fn wake_next(&self) {
        if let Some(front) = self.acquirers.values().next() {
            front.wake.notify_one();
        }
    }

    /// W2: passes the result of `token` on to `count` more acquirers.
    fn share(&mut self, token: Token, count: usize) {
        let from = match self.shared {
            Some((shared, upto)) if shared == token => upto,
            _ => 0,
        };
        let mut upto = from;
        for (place, waiter) in self.acquirers.range(from..).take(count) {
            waiter.wake.notify_one();
            upto = place + 1;
        }
        self.shared = Some((token, upto));
    }

    fn wake_all(&self) {
        let all = self.acquirers.values().chain(self.watchers.values());
        all.for_each(|waiter| waiter.wake.notify_one());
    }
}

impl Observer for Waiters {
    fn changed(&self, changes: &Changes<'_>) {
        self.time.applied(changes.applied.clock_ms);
        if self.count() == 0 {
            return;
        }
        let queues = self.lock();
        match changes.names {
            None => queues.values().for_each(Queue::wake_all),
            Some(names) => {
                names.iter().filter_map(|name| queues.get(name)).for_each(Queue::wake_front);
            }
        }
    }
}

impl Place {
    /// Returns when there may be something to see.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Whether it is this waiter's turn.
    pub(crate) fn is_front(&self) -> bool {
        let queues = self.waiters.lock();
        let front = queues.get(&self.name).and_then(|queue| queue.acquirers.keys().next());
        front == Some(&self.number)
    }

    /// Whether the same attempt, sent again, stands here now (W4).
    pub(crate) fn is_superseded(&self) -> bool {
        let queues = self.waiters.lock();
        let waiter = queues.get(&self.name).and_then(|queue| queue.acquirers.get(&self.number));
        !self.watches && waiter.is_none_or(|waiter| !Arc::ptr_eq(&waiter.wake, &self.wake))
    }

    /// Passes on what this one saw: the record is COMPLETE by `token`.
    pub(crate) fn share(&self, token: Token) {
        if let Some(queue) = self.waiters.lock().get_mut(&self.name)
            && queue.shared.is_none_or(|(shared, _)| shared != token)
        {
            queue.share(token, SHARED_AT_ONCE);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.waiters.lock();
        let Some(queue) = queues.get_mut(&self.name) else { return };
        let waiters = if self.watches { &mut queue.watchers } else { &mut queue.acquirers };
        let mine =
            waiters.get(&self.number).is_some_and(|waiter| Arc::ptr_eq(&waiter.wake, &self.wake));
        if !mine {
            return;
        }
        let was_front = !self.watches && waiters.keys().next() == Some(&self.number);
        let gone = waiters.remove(&self.number);
        if let Some(attempt) = gone.and_then(|waiter| waiter.attempt) {
            queue.places.remove(&attempt);
        }
        self.waiters.count.fetch_sub(1, Ordering::Relaxed);
        if was_front {
            queue.wake_next();
        }
        if let Some((token, _)) = queue.shared.filter(|_| !self.watches) {
            queue.share(token, 1);
        }
        if queue.acquirers.is_empty() && queue.watchers.is_empty() {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tenure_storage::Applied;

    use super::*;
    use crate::clock::ManualClock;

    fn waiters(max: usize) -> Arc<Waiters> {
        Waiters::new(max, Arc::new(LeaderTime::new(Arc::new(ManualClock::default()))))
    }

    fn name(key: &str) -> Name {
        Name::new("s", key).unwrap()
    }

    fn attempt(text: &str) -> Attempt {
        Attempt::new(text).unwrap()
    }

    fn change(waiters: &Waiters, names: &[Name]) {
        waiters.changed(&Changes { applied: Applied::default(), names: Some(names) });
    }

    fn is_woken(place: &Place) -> bool {
        place.woken().now_or_never().is_some()
    }

    #[test]
    fn a_change_wakes_the_front_alone_and_the_next_when_it_leaves() {
        let waiters = waiters(10);
        let (k, other) = (name("k"), name("other"));
        let first = waiters.queue_up(&k, &attempt("a")).unwrap();
        let second = waiters.queue_up(&k, &attempt("b")).unwrap();
        let elsewhere = waiters.queue_up(&other, &attempt("c")).unwrap();
        change(&waiters, std::slice::from_ref(&k));
        assert!(is_woken(&first) && first.is_front());
        assert!(!is_woken(&second) && !is_woken(&elsewhere));
        drop(first);
        assert!(is_woken(&second) && second.is_front());
    }

    #[test]
    fn a_waiter_in_the_middle_leaves_without_waking_anybody() {
        let waiters = waiters(10);
        let k = name("k");
        let first = waiters.queue_up(&k, &attempt("a")).unwrap();
        let second = waiters.queue_up(&k, &attempt("b")).unwrap();
        let third = waiters.queue_up(&k, &attempt("c")).unwrap();
        drop(second);
        assert!(!is_woken(&first) && !is_woken(&third));
        drop(first);
        assert!(is_woken(&third) && third.is_front());
    }

    #[test]
    fn the_same_attempt_sent_again_keeps_its_place() {
        let waiters = waiters(10);
        let k = name("k");
        let first = waiters.queue_up(&k, &attempt("a")).unwrap();
        let second = waiters.queue_up(&k, &attempt("b")).unwrap();
        let again = waiters.queue_up(&k, &attempt("a")).unwrap();
        assert!(first.is_superseded() && is_woken(&first));
        drop(first);
        assert!(again.is_front() && !second.is_front());
        assert_eq!(waiters.count(), 2);
        drop((again, second));
        assert_eq!(waiters.count(), 0);
        assert!(waiters.lock().is_empty());
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let waiters = waiters(1);
        let place = waiters.watch(&name("k")).unwrap();
        assert_eq!(waiters.queue_up(&name("k"), &attempt("a")).err(), Some(TooManyWaiters));
        drop(place);
        let place = waiters.queue_up(&name("k"), &attempt("a")).unwrap();
        let again = waiters.queue_up(&name("k"), &attempt("a")).unwrap();
        assert!(place.is_superseded() && again.is_front());
    }

    #[test]
    fn a_result_is_passed_down_the_queue_without_waking_all_at_once() {
        let waiters = waiters(1000);
        let k = name("k");
        let queued = |i: usize| waiters.queue_up(&k, &attempt(&format!("a{i}"))).unwrap();
        let mut places: Vec<Place> = (0..200).map(queued).collect();
        let token = Token::new(7).unwrap();
        places[0].share(token);
        places[1].share(token);
        let woken = places.iter().filter(|place| is_woken(place)).count();
        assert_eq!(woken, SHARED_AT_ONCE);
        // Each that leaves wakes one more, until all have been.
        let mut served = SHARED_AT_ONCE;
        while places.len() > SHARED_AT_ONCE {
            drop(places.remove(0));
            served += places.iter().filter(|place| is_woken(place)).count();
        }
        assert!(served >= 200, "{served}");
    }

    #[tokio::test(start_paused = true)]
    async fn watchers_see_every_change_and_stand_in_nobodys_way() {
        let waiters = waiters(10);
        let k = name("k");
        let watcher = waiters.watch(&k).unwrap();
        let first = waiters.queue_up(&k, &attempt("a")).unwrap();
        assert!(first.is_front());
        change(&waiters, std::slice::from_ref(&k));
        tokio::time::timeout(Duration::from_secs(1), watcher.woken()).await.unwrap();
        assert!(is_woken(&first));
    }
}
