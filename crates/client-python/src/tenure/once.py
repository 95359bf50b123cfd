"""Running an action once: what threads and asyncio have in common."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Optional, TypeVar, Union

from tenure.answers import Payload
from tenure.codec import Codec, decode, without_result
from tenure.commands import Acquire
from tenure.errors import (
    AlreadyInProgress,
    NotRecorded,
    PayloadTooLarge,
    ResultTooLarge,
    TenureError,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Ran(Generic[T]):
    """The action ran here. ``value`` is what it returned."""

    value: T


@dataclass(frozen=True)
class Replayed(Generic[T]):
    """The action ran before. ``value`` is its stored result."""

    value: T


Outcome = Union[Ran[T], Replayed[T]]


@dataclass(frozen=True)
class Options:
    """How an action is run once. Durations are seconds."""

    lease: float
    ttl: float | None
    wait: float
    fingerprint: str | None
    codec: Codec
    shrink: Callable[[Any], Any] | None
    timeout: float

    def acquire(self, scope: str, key: str) -> Acquire:
        """The command that begins it."""
        return Acquire(scope, key, self.lease, self.ttl, fingerprint=self.fingerprint)


def encode(codec: Codec, value: object) -> tuple[Payload | None, Exception | None]:
    """What to store for a result. If it cannot be serialized, that is stored, and returned too."""
    try:
        return codec.encode(value), None
    except Exception as error:  # noqa: BLE001 - a codec may raise anything
        return without_result(error), error


def shrink(options: Options, value: object, error: PayloadTooLarge) -> Payload | None:
    """A smaller payload for a result over the limit, or :class:`ResultTooLarge`."""
    if options.shrink is None:
        raise error
    return options.codec.encode(options.shrink(value))


def not_recorded(value: object, token: int, error: Exception) -> NotRecorded:
    """What to raise when an action ran and its complete failed."""
    if isinstance(error, PayloadTooLarge):
        return ResultTooLarge(value=value, token=token, limit=error.limit, size=error.size)
    can_commit = isinstance(error, TenureError) and error.can_commit
    return NotRecorded(str(error), value=value, token=token, can_commit=can_commit)


@dataclass
class Flight:
    """One caller of this process runs an action, or learns that it ran; others wait for that."""

    token: int | None = None
    """Set once the record is acquired."""
    ran: bool = False
    """The action has returned."""
    landed: bool = False
    payload: Payload | None = None
    """What is stored, if it ended well: a waiter gets what any other duplicate does."""
    error: TenureError | None = None
    """What those who wait share: everything but an error of the action itself, after which each
    has a try of its own."""
    has_result: bool = False

    def land(self, payload: Payload | None) -> None:
        """It ended with a result."""
        self.payload, self.has_result, self.landed = payload, True, True

    def crash(self, error: BaseException) -> None:
        """It ended with an error."""
        if isinstance(error, TenureError) and (self.token is None or self.ran):
            self.error = error
        self.landed = True

    def outcome(self, wait_left: float, codec: Codec) -> Replayed[Any] | None:
        """What a waiter makes of it. None: it has a try of its own."""
        if self.has_result:
            return Replayed(decode(codec, self.payload))
        if self.error is None or (isinstance(self.error, AlreadyInProgress) and wait_left > 0):
            return None
        raise self.error

    def patience(self, wait_until: float, timeout: float) -> float:
        """Seconds for which to wait on: for the acquire in any case, then as long as is allowed."""
        limit = wait_until if self.token is not None else wait_until + timeout
        return limit - time.monotonic()

    def busy(self, options: Options, holder: str) -> AlreadyInProgress:
        """What a waiter raises whose wait is over."""
        return AlreadyInProgress(int(options.lease * 1000), holder, self.token)


Name = tuple[int, str, str, Optional[str]]


def flight_name(scope: str, key: str, fingerprint: str | None) -> Name:
    """Equal for calls that share a flight. Another fingerprint asks the cluster, and a forked child
    never waits for its parent's threads."""
    return (os.getpid(), scope, key, fingerprint)


@dataclass
class Flights:
    """The flights of a client, for threads."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    flights: dict[Name, Flight] = field(default_factory=dict)

    def board(self, name: Name) -> tuple[Flight, bool]:
        """The flight of this name, and whether the caller leads it."""
        with self.condition:
            flight = self.flights.get(name)
            if flight is not None:
                return flight, False
            flight = self.flights[name] = Flight()
            return flight, True

    def end(self, name: Name) -> None:
        """Lets those go who wait."""
        with self.condition:
            del self.flights[name]
            self.condition.notify_all()

    def acquired(self, flight: Flight, token: int) -> None:
        """Lets those go who wait for the acquire alone."""
        with self.condition:
            flight.token = token
            self.condition.notify_all()

    def follow(
        self, flight: Flight, wait_until: float, options: Options, holder: str
    ) -> Replayed[Any] | None:
        """Waits for a flight. None: the caller has a try of its own."""
        with self.condition:
            while not flight.landed:
                patience = flight.patience(wait_until, options.timeout)
                if patience <= 0:
                    raise flight.busy(options, holder)
                self.condition.wait(patience)
        return flight.outcome(wait_until - time.monotonic(), options.codec)
