"""A lease that is held while a block runs, with heartbeats from a thread."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from tenure import clock, operations
from tenure.answers import Acquired, Completed, Payload, Released
from tenure.call import Limits
from tenure.commands import Acquire, Complete, Duration, Extend, Release
from tenure.errors import LeaseLost, OutcomeUnknown, TenureError
from tenure.term import Term
from tenure.threads import Cancel, Cancelled

if TYPE_CHECKING:
    from tenure.aio import AsyncLease
    from tenure.client import Client

log = logging.getLogger("tenure")

current: ContextVar[Lease | AsyncLease | None] = ContextVar("tenure_lease", default=None)


class Lost(threading.Event):
    """Set when the lease must be taken for lost, and never cleared.

    :meth:`is_set` looks at the clock as well, so it is right even if the thread is late.
    """

    def __init__(self, term: Term) -> None:
        super().__init__()
        self._term = term

    def is_set(self) -> bool:
        """Whether the lease must be taken for lost."""
        return super().is_set() or self._term.look() is not None


class Lease:
    """A held record. Use it in a ``with`` statement: heartbeats begin on entry.

    On exit the record is released, unless it was completed or :meth:`keep` was called. A complete
    that was tried keeps it, whatever became of it: the action ran.
    """

    def __init__(self, client: Client, command: Acquire, acquired: Acquired, lease: float) -> None:
        self._client = client
        self._term = Term(acquired, lease)
        self._cancel = Cancel()
        self._thread: threading.Thread | None = None
        self.scope = command.scope
        self.key = command.key
        self.acquired = acquired
        self.lost = Lost(self._term)

    @property
    def token(self) -> int:
        """The fencing token: give it to a sink that refuses smaller ones than it has seen."""
        return self._term.token

    @property
    def deadline(self) -> float:
        """Until when the lease is surely held, on :func:`tenure.clock.now`."""
        return self._term.deadline

    def check(self) -> None:
        """Raises :class:`LeaseLost` if the lease must be taken for lost."""
        lost = self._term.look()
        if lost is not None:
            raise LeaseLost(lost.reason, lost.current_token)

    def keep(self) -> None:
        """From here on the exit does not release the record."""
        self._term.kept = True

    def complete(
        self,
        payload: Payload | None = None,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Completed:
        """Ends the action with its result, and the heartbeats.

        After :class:`PayloadTooLarge` the lease is held as before: complete again with less.
        """
        self.keep()
        command = Complete(self.scope, self.key, self.token, payload, ttl)
        try:
            completed = self._client._complete(command, timeout)
        except LeaseLost as lost:
            self._lose(lost)
            raise
        self._term.concluded = True
        self.close()
        return completed

    def release(self, *, timeout: Duration | None = None) -> Released:
        """Ends the action without a trace, and the heartbeats."""
        self.close()
        self._term.concluded = True
        return self._client._release(Release(self.scope, self.key, self.token), timeout)

    def close(self) -> None:
        """Ends the heartbeats, no more: the lease runs out. None is sent once this returns."""
        self._cancel.cancel()

    def __enter__(self) -> Lease:
        self._thread = threading.Thread(target=self._beat, name="tenure-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not (self._term.concluded or self._term.kept):
                self.release()
        except TenureError as failure:
            # The block's own error says more; without one, the caller is to know.
            if error is None:
                raise
            log.warning("%s was not released, its lease runs out: %s", self.scope, failure)
        finally:
            self.close()

    def _beat(self) -> None:
        try:
            while not self._term.concluded:
                self._beat_once()
        except Cancelled:
            pass
        except Exception:
            # Without heartbeats the lease runs out: whoever waits for that must be told.
            log.exception("heartbeats of %s broke off", self.scope)
            self._term.give_up()
            threading.Event.set(self.lost)

    def _beat_once(self) -> None:
        term = self._term
        if term.look() is not None:
            threading.Event.set(self.lost)
        limits = beat_limits(term, self._client._send_timeout)
        if limits is None:
            self._cancel.pause(next_look(term))
            return
        command = Extend(self.scope, self.key, self.token, term.lease)
        call = operations.extend(self._client._cluster, command, limits)
        try:
            term.renew(self._client._threads.drive(call, self._cancel).sent_at)
        except TenureError as error:
            lost = definite_loss(error)
            if lost is not None:
                self._lose(lost)
            else:
                log.info("no heartbeat for %s: %s", self.scope, error)
                self._cancel.pause(pause_after_failure(term))

    def _lose(self, lost: LeaseLost) -> None:
        if self._term.lose(lost):
            threading.Event.set(self.lost)
        self.close()


PAUSE = 0.05
"""Longest pause after a heartbeat that failed, in seconds."""
LEAST = 0.01
"""Seconds that are too few for a send."""


def next_look(term: Term) -> float:
    """How long to wait until the next heartbeat or the deadline, whichever is first."""
    until = term.next_beat if term.lost is not None else min(term.next_beat, term.deadline)
    return max(0.001, until - clock.now())


def pause_after_failure(term: Term) -> float:
    """Short beside a lease, so that there is another try; never none, so that nobody is flooded;
    not beyond the deadline, which is to be noticed when it passes."""
    pause = max(0.005, min(PAUSE, term.lease / 10))
    return pause if term.lost is not None else max(0.001, min(pause, term.left()))


def beat_limits(term: Term, send_timeout: float) -> Limits | None:
    """How long a heartbeat may take that is due now. None: it is too early, or too late for one
    that ends before the deadline. One send takes a third of a lease at most, so that a node that
    hangs leaves time for another."""
    if clock.now() < term.next_beat:
        return None
    timeout = term.lease / 3 if term.lost is not None else term.left()
    if term.lost is None and timeout < LEAST:
        return None
    return Limits(max(timeout, LEAST), min(send_timeout, max(term.lease / 3, LEAST)))


def definite_loss(error: TenureError) -> LeaseLost | None:
    """Whether a failed heartbeat says for certain that the token holds nothing now. It does so even
    if what became of an earlier send of it is not known."""
    seen = error.seen if isinstance(error, OutcomeUnknown) else error
    return seen if isinstance(seen, LeaseLost) else None
