"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import ssl
import time
from collections.abc import Awaitable, Coroutine, Sequence
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    TypeVar,
    overload,
)

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
from tenure.client import LEASE, Settings, Text, fixed, fixed_or_none, held_or_replayed
from tenure.codec import Codec, decode
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
    LeaseLost,
    PayloadTooLarge,
    ResultNotSerializable,
    TenureError,
)
from tenure.lease import beat_limits, current, definite_loss, next_look, pause_after_failure
from tenure.once import (
    Flight,
    Name,
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
from tenure.tasks import Tasks
from tenure.term import Term

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

log = logging.getLogger("tenure")


class AsyncLost(asyncio.Event):
    """As :class:`tenure.lease.Lost`, for tasks."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self._term = term

    def is_set(self) -> bool:
        """Whether the lease must be taken for lost."""
        return super().is_set() or self._term.look() is not None


class AsyncLease:
    """As :class:`tenure.Lease`, for ``async with``: heartbeats come from a task."""

    def __init__(
        self, client: AsyncClient, command: Acquire, acquired: Acquired, lease: float
    ) -> None:
        self._client = client
        self._term = Term(acquired, lease)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.scope = command.scope
        self.key = command.key
        self.acquired = acquired
        self.lost = AsyncLost(self._term)

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

    async def complete(
        self,
        payload: Payload | None = None,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Completed:
        """As :meth:`tenure.Lease.complete`."""
        self.keep()
        command = Complete(self.scope, self.key, self.token, payload, ttl)
        try:
            completed = await self._client._complete(command, timeout)
        except LeaseLost as lost:
            self._lose(lost)
            raise
        self._term.concluded = True
        self.close()
        return completed

    async def release(self, *, timeout: Duration | None = None) -> Released:
        """Ends the action without a trace, and the heartbeats."""
        self.close()
        self._term.concluded = True
        return await self._client._release(Release(self.scope, self.key, self.token), timeout)

    def close(self) -> None:
        """Ends the heartbeats, no more: the lease runs out. None is sent once this returns."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def __aenter__(self) -> AsyncLease:
        self._watch()
        self._task = asyncio.ensure_future(self._beat())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not (self._term.concluded or self._term.kept):
                await self.release()
        except TenureError as failure:
            # The block's own error says more; without one, the caller is to know.
            if error is None:
                raise
            log.warning("%s was not released, its lease runs out: %s", self.scope, failure)
        finally:
            self.close()

    def _watch(self) -> None:
        """Looks at the deadline when it passes, heartbeat under way or not."""
        if self._term.look() is not None:
            self.lost.set()
        else:
            left = max(0.001, self._term.left())
            self._timer = asyncio.get_running_loop().call_later(left, self._watch)

    async def _beat(self) -> None:
        try:
            while not self._term.concluded:
                await self._beat_once()
        except Exception:
            # Without heartbeats the lease runs out: whoever waits for that must be told.
            log.exception("heartbeats of %s broke off", self.scope)
            self._term.give_up()
            self.lost.set()

    async def _beat_once(self) -> None:
        term = self._term
        limits = beat_limits(term, self._client._send_timeout)
        if limits is None:
            await asyncio.sleep(next_look(term))
            return
        command = Extend(self.scope, self.key, self.token, term.lease)
        call = operations.extend(self._client._cluster, command, limits)
        try:
            term.renew((await self._client._tasks.drive(call)).sent_at)
        except TenureError as error:
            lost = definite_loss(error)
            if lost is not None:
                self._lose(lost)
            else:
                log.info("no heartbeat for %s: %s", self.scope, error)
                await asyncio.sleep(pause_after_failure(term))

    def _lose(self, lost: LeaseLost) -> None:
        if self._term.lose(lost):
            self.lost.set()
        self.close()


class AsyncFlights:
    """The flights of a client, for the tasks of an event loop."""

    def __init__(self) -> None:
        self._flights: dict[tuple[Name, int], tuple[Flight, asyncio.Event]] = {}

    def board(self, name: Name) -> tuple[Flight, bool]:
        """The flight of this name in this event loop, and whether the caller leads it."""
        here = (name, id(asyncio.get_running_loop()))
        if here in self._flights:
            return self._flights[here][0], False
        flight = Flight()
        self._flights[here] = flight, asyncio.Event()
        return flight, True

    def end(self, name: Name) -> None:
        """Lets those go who wait."""
        self._flights.pop((name, id(asyncio.get_running_loop())))[1].set()

    def acquired(self, name: Name, flight: Flight, token: int) -> None:
        """Lets those go who wait for the acquire alone."""
        here = (name, id(asyncio.get_running_loop()))
        flight.token = token
        self._flights[here][1].set()
        self._flights[here] = flight, asyncio.Event()

    async def follow(
        self, name: Name, flight: Flight, wait_until: float, options: Options, holder: str
    ) -> Replayed[Any] | None:
        """Waits for a flight. None: the caller has a try of its own."""
        here = (name, id(asyncio.get_running_loop()))
        while not flight.landed:
            patience = flight.patience(wait_until, options.timeout)
            if patience <= 0:
                raise flight.busy(options, holder)
            step = asyncio.ensure_future(self._flights[here][1].wait())
            try:
                await asyncio.wait({step}, timeout=patience)
            finally:
                step.cancel()
        return flight.outcome(wait_until - time.monotonic(), options.codec)


class AsyncClient(Settings):
    """As :class:`tenure.Client`, for the tasks of an event loop."""

    def _open(self, route: Route, tls: ssl.SSLContext | None) -> None:
        self._tasks = Tasks(route, self._dial_timeout, tls)
        self._flights = AsyncFlights()

    async def aclose(self) -> None:
        """Closes connections at rest. The client can still be used."""
        self._tasks.close()
        # The loop closes sockets in its next round.
        await asyncio.sleep(0)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def acquire(
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
        return await self._tasks.drive(operations.acquire(self._cluster, command, limits))

    async def complete(
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
        return await self._complete(Complete(scope, key, token, payload, ttl), timeout)

    async def release(
        self, scope: str, key: str, token: int, *, timeout: Duration | None = None
    ) -> Released:
        """Ends an action without a trace."""
        return await self._release(Release(scope, key, token), timeout)

    async def extend(
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
        return await self._tasks.drive(call)

    async def get(
        self, scope: str, key: str, *, stale: bool = False, timeout: Duration | None = None
    ) -> Record:
        """Reads a record. ``stale``: as whatever node is asked has it."""
        call = operations.get(self._cluster, scope, key, stale, self._limits(timeout))
        return await self._tasks.drive(call)

    async def wait(
        self, scope: str, key: str, wait: Duration, *, timeout: Duration | None = None
    ) -> Waited:
        """Waits up to ``wait`` seconds until a record is COMPLETE, absent, or its lease expired."""
        call = operations.wait(self._cluster, scope, key, self._limits(timeout, wait))
        return await self._tasks.drive(call)

    async def purge(self, limit: int | None = None, *, timeout: Duration | None = None) -> Purged:
        """Deletes purgeable records. Nodes do so by themselves."""
        return await self._tasks.drive(
            operations.purge(self._cluster, limit, self._limits(timeout))
        )

    async def batch(
        self, commands: Sequence[Command], *, timeout: Duration | None = None
    ) -> list[Answer | TenureError]:
        """Runs independent commands in one log entry. Each has its answer or error in its place."""
        call = operations.batch(self._cluster, commands, self._limits(timeout))
        return await self._tasks.drive(call)

    async def lease(
        self,
        scope: str,
        key: str,
        *,
        lease: Duration = LEASE,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        fingerprint: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncLease:
        """Acquires, for an ``async with`` statement that heartbeats and releases at its end.

        Raises :class:`AlreadyComplete` or :class:`AlreadyInProgress` if there is none to be had.
        """
        command = Acquire(scope, key, lease, ttl, fingerprint=fingerprint)
        limits = self._limits(timeout, wait)
        acquired = await self._acquired(command, limits)
        if isinstance(acquired, Replay):
            raise AlreadyComplete(acquired)
        return AsyncLease(self, command, acquired, seconds(lease, "lease"))

    @overload
    def once(
        self,
        scope: str,
        key: str,
        fn: Callable[[], Awaitable[T]],
        *,
        lease: Duration = ...,
        ttl: Duration | None = ...,
        wait: Duration = ...,
        fingerprint: str | None = ...,
        codec: Codec | None = ...,
        shrink: Callable[[T], Any] | None = ...,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcome[T]]: ...

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
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

    def once(
        self,
        scope: str,
        key: Text,
        fn: Callable[[], Awaitable[Any]] | None = None,
        *,
        lease: Duration = LEASE,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        fingerprint: Text | None = None,
        codec: Codec | None = None,
        shrink: Callable[[Any], Any] | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Runs the coroutine function ``fn`` once: duplicates are handed what it returned.

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

        def decorate(action: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
            @functools.wraps(action)
            async def run(*args: Any, **kwargs: Any) -> Any:
                named = key(*args, **kwargs) if callable(key) else key
                printed = fingerprint(*args, **kwargs) if callable(fingerprint) else fingerprint
                call = functools.partial(action, *args, **kwargs)
                return (await self._once(scope, named, call, options(printed))).value

            return run

        return decorate

    async def _once(
        self, scope: str, key: str, fn: Callable[[], Awaitable[Any]], options: Options
    ) -> Outcome[Any]:
        name = flight_name(scope, key, options.fingerprint)
        wait_until = time.monotonic() + options.wait
        while True:
            flight, leads = self._flights.board(name)
            if not leads:
                followed = await self._flights.follow(
                    name, flight, wait_until, options, self.holder
                )
                if followed is None:
                    continue
                return followed
            try:
                limits = self._limits(options.timeout, max(0.0, wait_until - time.monotonic()))
                outcome = await self._fly(
                    name, flight, options.acquire(scope, key), fn, options, limits
                )
            except BaseException as error:
                flight.crash(error)
                raise
            else:
                return outcome
            finally:
                self._flights.end(name)

    async def _fly(
        self,
        name: Name,
        flight: Flight,
        command: Acquire,
        fn: Callable[[], Awaitable[Any]],
        options: Options,
        limits: Limits,
    ) -> Outcome[Any]:
        acquired = await self._acquired(command, limits)
        if isinstance(acquired, Replay):
            outcome = Replayed(decode(options.codec, acquired.payload))
            flight.land(acquired.payload)
            return outcome
        self._flights.acquired(name, flight, acquired.token)
        async with AsyncLease(self, command, acquired, options.lease) as held:
            outer = current.set(held)
            try:
                running: Any = fn()
                # A plain function has run by now, and is not to run again.
                value = await running if inspect.isawaitable(running) else running
                held.keep()
            finally:
                current.reset(outer)
            flight.ran = True
            flight.land(await self._record(held, value, options))
        return Ran(value)

    async def _record(self, held: AsyncLease, value: object, options: Options) -> Payload | None:
        payload, failure = encode(options.codec, value)
        try:
            try:
                await held.complete(payload, timeout=options.timeout)
            except PayloadTooLarge as error:
                payload = shrink(options, value, error)
                await held.complete(payload, timeout=options.timeout)
        except Exception as error:
            raise not_recorded(value, held.token, error) from error
        if failure is not None:
            raise ResultNotSerializable(value=value, token=held.token) from failure
        return payload

    async def _acquired(self, command: Acquire, limits: Limits) -> Acquired | Replay:
        answer = await self._tasks.drive(operations.acquire(self._cluster, command, limits))
        return held_or_replayed(answer)

    async def _complete(self, command: Complete, timeout: Duration | None) -> Completed:
        call = operations.complete(self._cluster, command, self._limits(timeout))
        return await self._tasks.drive(call)

    async def _release(self, command: Release, timeout: Duration | None) -> Released:
        return await self._tasks.drive(
            operations.release(self._cluster, command, self._limits(timeout))
        )
