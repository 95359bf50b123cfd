"""The client for threads."""

from __future__ import annotations

import functools
import inspect
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union, overload

from tenure import operations
from tenure.answers import (
    Acquired,
    Acquisition,
    Answer,
    Completed,
    Extended,
    Payload,
    Purged,
    Record,
    Released,
    Replay,
    Waited,
)
from tenure.call import Limits
from tenure.clock import ClusterClock
from tenure.codec import Codec, Json, decode
from tenure.commands import (
    Acquire,
    Command,
    Complete,
    Duration,
    Extend,
    Release,
    new_attempt,
    seconds,
)
from tenure.errors import (
    AlreadyComplete,
    AlreadyInProgress,
    InvalidArgument,
    PayloadTooLarge,
    ResultNotSerializable,
    TenureError,
)
from tenure.lease import Lease, current
from tenure.once import (
    Flight,
    Flights,
    Options,
    Outcome,
    Ran,
    Replayed,
    encode,
    flight_name,
    not_recorded,
    shrink,
)
from tenure.route import Route
from tenure.threads import Threads

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

LEASE = 30.0
"""Seconds of a lease where none is given, as on the cluster."""

Text = Union[str, Callable[..., str]]


class Settings:
    """What clients have in common: a way to a cluster, and their limits."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        timeout: Duration = 10.0,
        holder: str | None = None,
        send_timeout: Duration = 4.0,
        dial_timeout: Duration = 1.0,
        cluster_id: str | None = None,
        follow_leader: bool = True,
        codec: Codec | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.holder = f"{socket.gethostname()}:{os.getpid()}"[:128] if holder is None else holder
        self.codec: Codec = Json() if codec is None else codec
        self._timeout = seconds(timeout, "timeout")
        self._send_timeout = seconds(send_timeout, "send_timeout")
        self._dial_timeout = seconds(dial_timeout, "dial_timeout")
        route = Route(endpoints, follow_leader=follow_leader, cluster_id=cluster_id)
        self._cluster = operations.Cluster(route, ClusterClock(), self.holder)
        self._open(route, tls)

    def _open(self, route: Route, tls: ssl.SSLContext | None) -> None:
        raise NotImplementedError

    def _limits(self, timeout: Duration | None, wait: Duration = 0.0) -> Limits:
        whole = self._timeout if timeout is None else seconds(timeout, "timeout")
        return Limits(whole, self._send_timeout, seconds(wait, "wait"))

    def _options(
        self,
        lease: Duration,
        ttl: Duration | None,
        wait: Duration,
        codec: Codec | None,
        shrink: Callable[[Any], Any] | None,
        timeout: Duration | None,
    ) -> Callable[[str | None], Options]:
        limits = self._limits(timeout, wait)
        held, kept = seconds(lease, "lease"), None if ttl is None else seconds(ttl, "ttl")
        used = self.codec if codec is None else codec
        return lambda fingerprint: Options(
            held, kept, limits.wait, fingerprint, used, shrink, limits.timeout
        )


class Client(Settings):
    """A cluster, to the threads of a process. Make one and share it.

    ``endpoints`` are HTTP addresses (``host:port``, or ``https://…`` of a gateway) of some nodes.
    ``timeout`` is how long a call may take, all sends and pauses included; a ``wait`` comes on top.
    ``holder`` says who acquires, for people. ``send_timeout`` is how long one send may go
    unanswered, ``dial_timeout`` how long a connection may take. ``cluster_id`` names the cluster
    that is meant, else it is that of the first node reached. Unless ``follow_leader`` is false,
    sends go straight to the leader once a node has named it. ``codec`` turns results of
    :meth:`once` into payloads, JSON by default. ``tls`` is for ``https`` endpoints.
    """

    def _open(self, route: Route, tls: ssl.SSLContext | None) -> None:
        self._threads = Threads(route, self._dial_timeout, tls)
        self._flights = Flights()

    def close(self) -> None:
        """Closes connections at rest. The client can still be used."""
        self._threads.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(
        self,
        scope: str,
        key: str,
        *,
        lease: Duration | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        fingerprint: str | None = None,
        attempt: str | None = None,
        timeout: Duration | None = None,
    ) -> Acquisition:
        """Takes a record, or learns who has it, after waiting for it up to ``wait`` seconds.

        One attempt is drawn for the call, however often it is sent, unless ``attempt`` names one:
        that of an :class:`OutcomeUnknown`, or one that was stored before.
        """
        command = Acquire(
            scope, key, lease, ttl, fingerprint=fingerprint, attempt=attempt or new_attempt()
        )
        limits = self._limits(timeout, wait)
        return self._threads.drive(operations.acquire(self._cluster, command, limits))

    def complete(
        self,
        scope: str,
        key: str,
        token: int,
        payload: Payload | None = None,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Completed:
        """Ends an action with its result. When this returns, a majority has it on disk."""
        return self._complete(Complete(scope, key, token, payload, ttl), timeout)

    def release(
        self, scope: str, key: str, token: int, *, timeout: Duration | None = None
    ) -> Released:
        """Ends an action without a trace."""
        return self._release(Release(scope, key, token), timeout)

    def extend(
        self,
        scope: str,
        key: str,
        token: int,
        lease: Duration,
        *,
        timeout: Duration | None = None,
    ) -> Extended:
        """The holder's heartbeat: the lease lasts ``lease`` seconds from now, or longer."""
        call = operations.extend(
            self._cluster, Extend(scope, key, token, lease), self._limits(timeout)
        )
        return self._threads.drive(call)

    def get(
        self, scope: str, key: str, *, stale: bool = False, timeout: Duration | None = None
    ) -> Record:
        """Reads a record. ``stale``: as whatever node is asked has it."""
        call = operations.get(self._cluster, scope, key, stale, self._limits(timeout))
        return self._threads.drive(call)

    def wait(
        self, scope: str, key: str, wait: Duration, *, timeout: Duration | None = None
    ) -> Waited:
        """Waits up to ``wait`` seconds until a record is COMPLETE, absent, or its lease expired."""
        call = operations.wait(self._cluster, scope, key, self._limits(timeout, wait))
        return self._threads.drive(call)

    def purge(self, limit: int | None = None, *, timeout: Duration | None = None) -> Purged:
        """Deletes purgeable records. Nodes do so by themselves."""
        return self._threads.drive(operations.purge(self._cluster, limit, self._limits(timeout)))

    def batch(
        self, commands: Sequence[Command], *, timeout: Duration | None = None
    ) -> list[Answer | TenureError]:
        """Runs independent commands in one log entry. Each has its answer or error in its place."""
        call = operations.batch(self._cluster, commands, self._limits(timeout))
        return self._threads.drive(call)

    def lease(
        self,
        scope: str,
        key: str,
        *,
        lease: Duration = LEASE,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        fingerprint: str | None = None,
        timeout: Duration | None = None,
    ) -> Lease:
        """Acquires, for a ``with`` statement that heartbeats and releases at its end.

        Raises :class:`AlreadyComplete` or :class:`AlreadyInProgress` if there is none to be had.
        """
        command = Acquire(scope, key, lease, ttl, fingerprint=fingerprint)
        acquired = self._acquired(command, self._limits(timeout, wait))
        if isinstance(acquired, Replay):
            raise AlreadyComplete(acquired)
        return Lease(self, command, acquired, seconds(lease, "lease"))

    @overload
    def once(
        self,
        scope: str,
        key: str,
        fn: Callable[[], T],
        *,
        lease: Duration = ...,
        ttl: Duration | None = ...,
        wait: Duration = ...,
        fingerprint: str | None = ...,
        codec: Codec | None = ...,
        shrink: Callable[[T], Any] | None = ...,
        timeout: Duration | None = ...,
    ) -> Outcome[T]: ...

    @overload
    def once(
        self,
        scope: str,
        key: Text,
        fn: None = ...,
        *,
        lease: Duration = ...,
        ttl: Duration | None = ...,
        wait: Duration = ...,
        fingerprint: Text | None = ...,
        codec: Codec | None = ...,
        shrink: Callable[[Any], Any] | None = ...,
        timeout: Duration | None = ...,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    def once(
        self,
        scope: str,
        key: Text,
        fn: Callable[[], Any] | None = None,
        *,
        lease: Duration = LEASE,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        fingerprint: Text | None = None,
        codec: Codec | None = None,
        shrink: Callable[[Any], Any] | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Runs ``fn`` once for its name: duplicates are handed what it returned.

        With ``fn``: runs it, or not, and returns :class:`Ran` or :class:`Replayed`. Without: a
        decorator, whose function returns the value; ``key`` and ``fingerprint`` may then be
        functions of its arguments.

        Acquires, waiting up to ``wait`` seconds for another holder's result; heartbeats at a third
        of the lease; completes with what ``fn`` returned, encoded by ``codec``. If ``fn`` raises,
        the record is released and the error goes on. If the complete fails, nothing is released:
        :class:`NotRecorded` carries the value. ``shrink`` makes less of a result over the limit.
        """
        options = self._options(lease, ttl, wait, codec, shrink, timeout)
        if fn is not None:
            return self._once(scope, fixed(key, "key"), fn, options(fixed_or_none(fingerprint)))

        def decorate(action: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(action)
            def run(*args: Any, **kwargs: Any) -> Any:
                named = key(*args, **kwargs) if callable(key) else key
                printed = fingerprint(*args, **kwargs) if callable(fingerprint) else fingerprint
                call = functools.partial(action, *args, **kwargs)
                return self._once(scope, named, call, options(printed)).value

            return run

        return decorate

    def _once(self, scope: str, key: str, fn: Callable[[], Any], options: Options) -> Outcome[Any]:
        name = flight_name(scope, key, options.fingerprint)
        wait_until = time.monotonic() + options.wait
        while True:
            flight, leads = self._flights.board(name)
            if not leads:
                followed = self._flights.follow(flight, wait_until, options, self.holder)
                if followed is None:
                    continue
                return followed
            try:
                limits = self._limits(options.timeout, max(0.0, wait_until - time.monotonic()))
                outcome = self._fly(flight, options.acquire(scope, key), fn, options, limits)
            except BaseException as error:
                flight.crash(error)
                raise
            else:
                return outcome
            finally:
                self._flights.end(name)

    def _fly(
        self,
        flight: Flight,
        command: Acquire,
        fn: Callable[[], Any],
        options: Options,
        limits: Limits,
    ) -> Outcome[Any]:
        acquired = self._acquired(command, limits)
        if isinstance(acquired, Replay):
            outcome = Replayed(decode(options.codec, acquired.payload))
            flight.land(acquired.payload)
            return outcome
        self._flights.acquired(flight, acquired.token)
        with Lease(self, command, acquired, options.lease) as held:
            outer = current.set(held)
            try:
                value = fn()
                if inspect.iscoroutine(value):
                    # It has not begun: released, nothing happened.
                    value.close()
                    raise TypeError("a coroutine function is for tenure.AsyncClient")
                held.keep()
            finally:
                current.reset(outer)
            flight.ran = True
            flight.land(self._record(held, value, options))
        return Ran(value)

    def _record(self, held: Lease, value: object, options: Options) -> Payload | None:
        payload, failure = encode(options.codec, value)
        try:
            try:
                held.complete(payload, timeout=options.timeout)
            except PayloadTooLarge as error:
                payload = shrink(options, value, error)
                held.complete(payload, timeout=options.timeout)
        except Exception as error:
            raise not_recorded(value, held.token, error) from error
        if failure is not None:
            raise ResultNotSerializable(value=value, token=held.token) from failure
        return payload

    def _acquired(self, command: Acquire, limits: Limits) -> Acquired | Replay:
        answer = self._threads.drive(operations.acquire(self._cluster, command, limits))
        return held_or_replayed(answer)

    def _complete(self, command: Complete, timeout: Duration | None) -> Completed:
        call = operations.complete(self._cluster, command, self._limits(timeout))
        return self._threads.drive(call)

    def _release(self, command: Release, timeout: Duration | None) -> Released:
        return self._threads.drive(
            operations.release(self._cluster, command, self._limits(timeout))
        )


def held_or_replayed(answer: Acquisition) -> Acquired | Replay:
    """Turns an InProgress into its error."""
    if isinstance(answer, (Acquired, Replay)):
        return answer
    raise AlreadyInProgress(
        answer.retry_after_ms, answer.holder, answer.token, answer.fingerprint_differs
    )


def fixed(text: Text, name: str) -> str:
    """A text that is no function: there are no arguments to give one."""
    if callable(text):
        raise InvalidArgument("a function of arguments is for the decorator", name)
    return text


def fixed_or_none(text: Text | None) -> str | None:
    """As :func:`fixed`."""
    return None if text is None else fixed(text, "fingerprint")
