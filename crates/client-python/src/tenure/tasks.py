"""Drives calls over asyncio's streams. Cancelling a task closes its connection: the node then
drops a waiter from its queue."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from typing import TypeVar

from tenure.call import Call, Event, Failed, Send
from tenure.hello import IDLE_CONNECTIONS, IDLE_SECONDS, check, hello, is_stale
from tenure.http1 import NotHttp, Reader, Response, request
from tenure.route import Address, Route

T = TypeVar("T")


class _Connection:
    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self.reader = reader
        self.writer = writer
        self.rested_since = 0.0

    def close(self) -> None:
        self.writer.transport.abort()

    def is_stale(self) -> bool:
        raw = self.writer.get_extra_info("socket")
        ended = self.writer.is_closing() or self.reader.at_eof()
        return ended or raw is None or is_stale(raw.fileno())

    async def exchange(self, data: bytes, until: float) -> Response:
        """Raises OSError or NotHttp, and is of no use then."""
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            self.close()

        left = max(0.0, until - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left, give_up)
        try:
            self.writer.write(data)
            await self.writer.drain()
            reader = Reader()
            while True:
                response = reader.feed(await self.reader.read(65536))
                if response is not None:
                    return response
        except (OSError, NotHttp):
            if late:
                raise OSError("timed out") from None
            raise
        finally:
            timer.cancel()


class Tasks:
    """Connections to a cluster, shared by the tasks of one event loop at a time."""

    def __init__(self, route: Route, dial_timeout: float, tls: ssl.SSLContext | None) -> None:
        self._route = route
        self._dial_timeout = dial_timeout
        self._tls = tls
        self._resting: list[_Connection] = []
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None

    def close(self) -> None:
        """Closes what rests."""
        while self._resting:
            self._resting.pop().close()

    async def drive(self, call: Call[T]) -> T:
        """Runs a call to its end."""
        event: Event = None
        try:
            while True:
                step = call.send(event)
                event = None
                if isinstance(step, Send):
                    event = await self._send(step)
                else:
                    await asyncio.sleep(step.seconds)
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            call.close()

    async def _send(self, step: Send) -> Event:
        until = time.monotonic() + step.budget
        connection = self._take(step.address)
        if connection is None:
            dialled = await self._dial(step.address, until)
            if not isinstance(dialled, _Connection):
                return dialled
            connection = dialled
        data = request(step.method, step.address.authority, step.path, step.body)
        try:
            response = await connection.exchange(data, until)
        except (OSError, NotHttp) as error:
            connection.close()
            return Failed(True, str(error) or type(error).__name__)
        except BaseException:
            connection.close()
            raise
        self._give(connection, response)
        return response

    async def _dial(self, address: Address, until: float) -> _Connection | Response | Failed:
        """A connection whose node was heard, or what to answer in place of the send."""
        until = min(until, time.monotonic() + self._dial_timeout)
        tls = (self._tls or ssl.create_default_context()) if address.tls else None
        opening = asyncio.ensure_future(
            asyncio.open_connection(address.host, address.port, ssl=tls)
        )
        try:
            await asyncio.wait({opening}, timeout=max(0.001, until - time.monotonic()))
        finally:
            if not opening.done():
                opening.cancel()
        if opening.cancelled() or not opening.done():
            return Failed(False, "timed out")
        try:
            reader, writer = opening.result()
        except (OSError, UnicodeError) as error:
            return Failed(False, str(error) or type(error).__name__)
        connection = _Connection(address, reader, writer)
        try:
            response = await connection.exchange(hello(address), until)
        except (OSError, NotHttp) as error:
            connection.close()
            return Failed(False, str(error) or type(error).__name__)
        except BaseException:
            connection.close()
            raise
        obstacle = check(response, self._route)
        if obstacle is None and response.keeps:
            return connection
        connection.close()
        return obstacle or Failed(False, "the node closes connections after one answer")

    def _take(self, address: Address) -> _Connection | None:
        home = (os.getpid(), asyncio.get_running_loop())
        if self._home != home:
            # Streams of another loop, or of the parent of a fork.
            self._home, self._resting = home, []
        for place in range(len(self._resting) - 1, -1, -1):
            if self._resting[place].address == address:
                connection = self._resting.pop(place)
                rested = time.monotonic() - connection.rested_since
                if rested < IDLE_SECONDS and not connection.is_stale():
                    return connection
                connection.close()
        return None

    def _give(self, connection: _Connection, response: Response) -> None:
        connection.rested_since = time.monotonic()
        if response.keeps and len(self._resting) < IDLE_CONNECTIONS:
            self._resting.append(connection)
        else:
            connection.close()
