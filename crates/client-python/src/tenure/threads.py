"""Drives calls over blocking sockets, one connection a call, kept for the next."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from typing import TypeVar

from tenure.call import Call, Event, Failed, Pause, Send
from tenure.hello import IDLE_CONNECTIONS, IDLE_SECONDS, check, hello, is_stale
from tenure.http1 import NotHttp, Reader, Response, request
from tenure.route import Address, Route

T = TypeVar("T")


class Cancelled(Exception):
    """The call was cancelled: nothing more is sent."""


class Cancel:
    """Ends a call from another thread: once :meth:`cancel` returns, nothing more is sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._socket: socket.socket | None = None

    def cancel(self) -> None:
        """Wakes a call that waits for its answer, too."""
        with self._lock:
            self._cancelled.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def is_set(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled.is_set()

    def pause(self, seconds: float) -> None:
        """Waits so long, or until it is cancelled."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    def send(self, connection: socket.socket, data: bytes) -> None:
        """Sends, unless it was cancelled."""
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled
            self._socket = connection
            connection.sendall(data)

    def release(self) -> None:
        """The exchange is over: its connection is somebody else's."""
        with self._lock:
            self._socket = None


class _Connection:
    def __init__(self, address: Address, raw: socket.socket) -> None:
        self.address = address
        self.socket = raw
        self.rested_since = 0.0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    def exchange(self, data: bytes, until: float, cancel: Cancel | None) -> Response:
        """Raises OSError, NotHttp or Cancelled, and is of no use then."""
        self._limit(until)
        try:
            if cancel is None:
                self.socket.sendall(data)
            else:
                cancel.send(self.socket, data)
            reader = Reader()
            while True:
                self._limit(until)
                response = reader.feed(self.socket.recv(65536))
                if response is not None:
                    return response
        finally:
            if cancel is not None:
                cancel.release()

    def _limit(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self.socket.settimeout(left)


class Threads:
    """Connections to a cluster, shared by threads."""

    def __init__(self, route: Route, dial_timeout: float, tls: ssl.SSLContext | None) -> None:
        self._route = route
        self._dial_timeout = dial_timeout
        self._tls = tls
        self._lock = threading.Lock()
        self._resting: list[_Connection] = []
        self._process = os.getpid()

    def close(self) -> None:
        """Closes what rests."""
        with self._lock:
            resting, self._resting = self._resting, []
        for connection in resting:
            connection.close()

    def drive(self, call: Call[T], cancel: Cancel | None = None) -> T:
        """Runs a call to its end."""
        event: Event = None
        try:
            while True:
                step = call.send(event)
                event = None
                if isinstance(step, Send):
                    event = self._send(step, cancel)
                elif cancel is not None:
                    cancel.pause(step.seconds)
                else:
                    assert isinstance(step, Pause)
                    time.sleep(step.seconds)
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            call.close()

    def _send(self, step: Send, cancel: Cancel | None) -> Event:
        until = time.monotonic() + step.budget
        connection = self._take(step.address)
        if connection is None:
            dialled = self._dial(step.address, until, cancel)
            if not isinstance(dialled, _Connection):
                return dialled
            connection = dialled
        data = request(step.method, step.address.authority, step.path, step.body)
        try:
            response = connection.exchange(data, until, cancel)
        except (OSError, NotHttp) as error:
            connection.close()
            if cancel is not None and cancel.is_set():
                raise Cancelled from error
            return Failed(True, str(error) or type(error).__name__)
        except BaseException:
            # Its answer may still come: nobody else may read it.
            connection.close()
            raise
        self._give(connection, response)
        return response

    def _dial(
        self, address: Address, until: float, cancel: Cancel | None
    ) -> _Connection | Response | Failed:
        """A connection whose node was heard, or what to answer in place of the send."""
        until = min(until, time.monotonic() + self._dial_timeout)
        try:
            left = max(0.001, until - time.monotonic())
            raw = socket.create_connection((address.host, address.port), left)
        except (OSError, UnicodeError) as error:
            return Failed(False, str(error) or type(error).__name__)
        connection = _Connection(address, raw)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                context = self._tls or ssl.create_default_context()
                connection.socket = context.wrap_socket(raw, server_hostname=address.host)
            response = connection.exchange(hello(address), until, cancel)
        except (OSError, NotHttp) as error:
            connection.close()
            if cancel is not None and cancel.is_set():
                raise Cancelled from error
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
        with self._lock:
            if self._process != os.getpid():
                # A fork: these sockets are the parent's.
                self._process, self._resting = os.getpid(), []
            for place in range(len(self._resting) - 1, -1, -1):
                if self._resting[place].address == address:
                    connection = self._resting.pop(place)
                    rested = time.monotonic() - connection.rested_since
                    if rested < IDLE_SECONDS and not is_stale(connection.socket.fileno()):
                        return connection
                    connection.close()
        return None

    def _give(self, connection: _Connection, response: Response) -> None:
        connection.rested_since = time.monotonic()
        with self._lock:
            if response.keeps and len(self._resting) < IDLE_CONNECTIONS:
                self._resting.append(connection)
                return
        connection.close()
