//! Single flight: calls of one client for one record take turns, and share what the first to
//! succeed brings home.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_state_machine::{Fingerprint, Name, Payload};
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard};

/// What calls must have in common to share a result. Those with other fingerprints ask the
/// cluster, which judges them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    name: Name,
    fingerprint: Option<String>,
}

/// A result that was stored, or read.
pub(crate) type Landed = Option<Arc<Payload>>;

/// Locked by the call whose turn it is; filled by the one that brings a result.
type Flight = Arc<TurnMutex<Option<Landed>>>;

/// The calls of a client that are under way.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<Key, Flight>>);

impl Flights {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat among the calls for a record.
    pub(crate) fn join(self: &Arc<Self>, name: &Name, fingerprint: Option<&Fingerprint>) -> Seat {
        let fingerprint = fingerprint.map(|print| print.as_str().to_owned());
        let key = Key { name: name.clone(), fingerprint };
        let flight = Arc::clone(self.lock().entry(key.clone()).or_default());
        Seat { flights: Arc::clone(self), key, flight }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

/// A call's place. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Seat {
    flights: Arc<Flights>,
    key: Key,
    flight: Flight,
}

/// The right to act for all who wait. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    // Before the seat, whose drop counts who is left.
    landed: OwnedMutexGuard<Option<Landed>>,
    seat: Seat,
}

impl Seat {
    /// Waits for its turn, in the order of arrival.
    pub(crate) async fn turn(self) -> Turn {
        let landed = Arc::clone(&self.flight).lock_owned().await;
        Turn { landed, seat: self }
    }
}

impl Turn {
    /// What an earlier call of the flight brought home.
    pub(crate) fn landed(&self) -> Option<Landed> {
        self.landed.clone()
    }

    /// Hands a result to all who wait. Who comes later asks the cluster: the record may have
    /// expired by then.
    pub(crate) fn land(mut self, result: Landed) {
        *self.landed = Some(result);
        let mut flights = self.seat.flights.lock();
        if flights.get(&self.seat.key).is_some_and(|known| Arc::ptr_eq(known, &self.seat.flight)) {
            flights.remove(&self.seat.key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        let is_known = flights.get(&self.key).is_some_and(|known| Arc::ptr_eq(known, &self.flight));
        // The map's and this one: nobody else can take a further one while the map is locked.
        if is_known && Arc::strong_count(&self.flight) == 2 {
            flights.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::new("mail", "order-1").unwrap()
    }

    #[tokio::test]
    async fn those_who_wait_share_what_lands_and_those_who_come_later_do_not() {
        let flights = Arc::new(Flights::default());
        let first = flights.join(&name(), None).turn().await;
        assert!(first.landed().is_none());
        let second = flights.join(&name(), None);
        first.land(None);
        let late = flights.join(&name(), None);
        assert_eq!(second.turn().await.landed(), Some(None));
        assert_eq!(late.turn().await.landed(), None);
        assert_eq!(flights.len(), 0, "nobody is under way");
    }

    #[tokio::test]
    async fn a_turn_that_brings_nothing_is_passed_on() {
        let flights = Arc::new(Flights::default());
        let first = flights.join(&name(), None).turn().await;
        let (given_up, second) = (flights.join(&name(), None), flights.join(&name(), None));
        drop(given_up);
        drop(first);
        assert_eq!(flights.len(), 1);
        assert!(second.turn().await.landed().is_none());
        assert_eq!(flights.len(), 0);
    }

    #[tokio::test]
    async fn other_fingerprints_are_other_flights() {
        let flights = Arc::new(Flights::default());
        let print = Fingerprint::new("0123456789abcdef").unwrap();
        let _first = flights.join(&name(), None).turn().await;
        let _other = flights.join(&name(), Some(&print)).turn().await;
        assert_eq!(flights.len(), 2);
    }
}
