"""What a holder knows of its lease, whoever sends its heartbeats.

A lease is counted from *before* the send of the acquire or heartbeat that was answered last, on a
clock that goes on while the machine sleeps, and ends here a little earlier than on the cluster:
whoever steals it finds that its holder has known.
"""

from __future__ import annotations

from tenure import clock
from tenure.answers import Acquired
from tenure.errors import LeaseLost

MARGIN = 0.05
"""Part of a lease by which its holder gives it up early, for clocks that run at other rates."""


class Term:
    """The lease of one token, as its holder sees it."""

    def __init__(self, acquired: Acquired, lease: float) -> None:
        self.lease = lease
        self.token = acquired.token
        self.deadline = 0.0
        self.next_beat = 0.0
        self.lost: LeaseLost | None = None
        self.concluded = False
        """The record is released or COMPLETE, or not held any more: there is nothing to release."""
        self.kept = False
        """The action ran: the record is not to be released."""
        self.renew(acquired.sent_at)

    def renew(self, sent_at: float) -> None:
        """A send at ``sent_at`` was answered."""
        self.deadline = max(self.deadline, sent_at + self.lease * (1 - MARGIN))
        self.next_beat = sent_at + self.lease / 3

    def left(self) -> float:
        """Seconds for which the lease is surely held."""
        return self.deadline - clock.now()

    def look(self) -> LeaseLost | None:
        """Why the lease must be taken for lost, if so. Once lost, it stays lost."""
        if self.lost is None and self.left() <= 0:
            self.lost = LeaseLost("expired")
        return self.lost

    def give_up(self) -> None:
        """No more heartbeats can be sent: the lease is as good as lost."""
        if self.lost is None:
            self.lost = LeaseLost("expired")

    def lose(self, lost: LeaseLost) -> bool:
        """Takes in a definite ``lease_lost``. False if that is this token's own completion."""
        self.concluded = True
        if lost.reason == "completed" and lost.current_token == self.token:
            return False
        if self.lost is None or self.lost.reason == "expired":
            self.lost = lost
        return True
