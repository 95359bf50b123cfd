//! One lease as its holder knows it: until when it may act, and whether it is lost.

use std::time::Duration;

use tenure_state_machine::{Command, Extend, LeaseLost, Name, Token};
use tokio::sync::watch;

/// Why a holder may not act any more. Whoever takes over may be acting already, or soon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The cluster said that the token holds nothing.
    #[error("the token holds nothing any more")]
    Taken(LeaseLost),
    /// No heartbeat succeeded in time. The record may still be this token's, but from some moment
    /// on anybody may steal it.
    #[error("no heartbeat succeeded before the lease's deadline")]
    Expired,
    /// The runtime that sent the heartbeats has ended.
    #[error("heartbeats stopped with their runtime")]
    Stopped,
}

/// Durations of one lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// As the cluster is told.
    pub(crate) lease: Duration,
    /// How much earlier than the lease the holder stops.
    pub(crate) margin: Duration,
}

impl Terms {
    /// How long a holder may act after the send of a heartbeat that succeeded.
    pub(crate) fn usable(self) -> Duration {
        self.lease.saturating_sub(self.margin)
    }

    /// From one heartbeat to the next: a third of the lease, and two of them before its end.
    pub(crate) fn interval(self) -> Duration {
        (self.lease / 3).min(self.usable() / 2)
    }

    /// How long one heartbeat may go unanswered: so short that several fit into what is left.
    pub(crate) fn patience(self) -> Duration {
        (self.lease / 5).min(self.usable() / 3).max(Duration::from_millis(1))
    }
}

/// A lease, shared by its guard, its handles and the heartbeats.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) name: Name,
    pub(crate) token: Token,
    pub(crate) terms: Terms,
    condition: watch::Sender<Condition>,
}

#[derive(Debug)]
struct Condition {
    /// On the boot clock: from here on the holder may not act.
    deadline: Duration,
    /// The cluster's deadline, in milliseconds of cluster time, as last heard.
    lease_until_ms: u64,
    /// A heartbeat is on its way.
    beating: bool,
    lost: Option<Lost>,
}

impl Held {
    /// A lease that was granted to a request sent at `sent_at`.
    pub(crate) fn new(
        name: Name,
        token: Token,
        terms: Terms,
        sent_at: Duration,
        lease_until_ms: u64,
    ) -> Self {
        let deadline = sent_at.saturating_add(terms.usable());
        let condition = Condition { deadline, lease_until_ms, beating: false, lost: None };
        Self { name, token, terms, condition: watch::Sender::new(condition) }
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.condition.borrow().deadline
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        self.condition.borrow().lost.clone()
    }

    /// Returns once it is lost; never if it is not.
    pub(crate) async fn until_lost(&self) -> Lost {
        let mut changes = self.condition.subscribe();
        let seen = changes.wait_for(|condition| condition.lost.is_some()).await;
        match seen.ok().and_then(|condition| condition.lost.clone()) {
            Some(lost) => lost,
            // Its sender is `self`, so this does not come.
            None => std::future::pending().await,
        }
    }

    /// Returns once no heartbeat is on its way.
    pub(crate) async fn until_idle(&self) {
        let _ = self.condition.subscribe().wait_for(|condition| !condition.beating).await;
    }

    /// The next heartbeat. It never revives a lease that has expired: its holder has stopped.
    pub(crate) fn extend(&self) -> Command {
        let lease_ms = u64::try_from(self.terms.lease.as_millis()).unwrap_or(u64::MAX);
        Command::Extend(Extend {
            name: self.name.clone(),
            token: self.token,
            lease_ms,
            not_after_ms: Some(self.condition.borrow().lease_until_ms),
        })
    }

    pub(crate) fn set_beating(&self, beating: bool) {
        self.condition.send_if_modified(|condition| {
            let ended = condition.beating && !beating;
            condition.beating = beating;
            ended
        });
    }

    /// Takes in a heartbeat that was sent at `sent_at` and has succeeded by `now`. One that comes
    /// after the deadline is too late: the holder may have seen it pass.
    pub(crate) fn extended(&self, sent_at: Duration, now: Duration, lease_until_ms: u64) {
        self.condition.send_if_modified(|condition| {
            if condition.lost.is_some() {
                return false;
            }
            if condition.deadline <= now {
                condition.lost = Some(Lost::Expired);
                return true;
            }
            let deadline = sent_at.saturating_add(self.terms.usable());
            condition.deadline = condition.deadline.max(deadline);
            condition.lease_until_ms = condition.lease_until_ms.max(lease_until_ms);
            false
        });
    }

    /// It is lost, for the first reason that is given.
    pub(crate) fn lose(&self, lost: Lost) {
        self.condition.send_if_modified(|condition| {
            let first = condition.lost.is_none();
            condition.lost.get_or_insert(lost);
            first
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn held() -> Held {
        let terms = Terms { lease: 30 * SECOND, margin: 3 * SECOND };
        let name = Name::new("mail", "order-1").unwrap();
        Held::new(name, Token::new(1).unwrap(), terms, 100 * SECOND, 31_000)
    }

    #[test]
    fn a_heartbeat_counts_from_its_send_and_never_shortens() {
        let held = held();
        assert_eq!(held.deadline(), 127 * SECOND);
        held.extended(110 * SECOND, 120 * SECOND, 41_000);
        assert_eq!(held.deadline(), 137 * SECOND);
        held.extended(105 * SECOND, 121 * SECOND, 36_000);
        assert_eq!(held.deadline(), 137 * SECOND, "an answer that was overtaken");
        let Command::Extend(extend) = held.extend() else { panic!("a heartbeat extends") };
        assert_eq!(extend.not_after_ms, Some(41_000));
    }

    /// Its holder may have looked at the clock in between, and stopped.
    #[test]
    fn a_heartbeat_that_is_heard_of_at_the_deadline_is_too_late() {
        let held = held();
        held.extended(110 * SECOND, 127 * SECOND, 41_000);
        assert_eq!(held.lost(), Some(Lost::Expired));
        held.lose(Lost::Stopped);
        assert_eq!(held.lost(), Some(Lost::Expired), "the first reason stays");
    }

    #[test]
    fn several_heartbeats_fit_into_a_lease_whatever_its_margin() {
        for (lease, margin) in [(2, 0), (2, 1), (30_000, 3_000), (30_000, 15_000), (86_400_000, 1)]
        {
            let (lease, margin) = (Duration::from_millis(lease), Duration::from_millis(margin));
            let terms = Terms { lease, margin };
            assert!(terms.interval() * 2 <= terms.usable(), "{terms:?}");
            assert!(terms.interval() <= lease / 3, "{terms:?}");
            assert!(terms.patience() <= terms.usable(), "{terms:?}");
        }
    }
}
