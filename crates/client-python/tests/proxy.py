"""A TCP proxy before one node, that breaks what it is told to break."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass
class Seen:
    """A request that went by, and the fault that it met."""

    path: str
    body: dict[str, Any]
    fault: str | None


@dataclass
class Fault:
    """What to do to the next ``times`` requests whose path begins so.

    lose: forward it, await the node's answer, drop that and cut the connection.
    cut: cut the connection, forwarding nothing.
    hold: forward it, and keep the answer back until :attr:`go` is set.
    """

    kind: str
    path: str
    times: int
    go: threading.Event = field(default_factory=threading.Event)
    met: threading.Event = field(default_factory=threading.Event)


class Proxy:
    def __init__(self, target: str) -> None:
        self.target = target
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._down = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def fault(self, kind: str, path: str, times: int = 1) -> Fault:
        fault = Fault(kind, path, times)
        with self._lock:
            self.faults.append(fault)
        return fault

    def go_down(self) -> None:
        """Cuts every connection, and each new one at once."""
        with self._lock:
            self._down = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def come_up(self) -> None:
        with self._lock:
            self._down = False

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Of the requests to a path so far."""
        with self._lock:
            return [seen.body for seen in self.seen if seen.path == path]

    def close(self) -> None:
        for fault in self.faults:
            fault.go.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.go_down()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        host, port = self.target.rsplit(":", 1)
        with self._lock:
            if self._down:
                near.close()
                return
            self._open.add(near)
        try:
            far = socket.create_connection((host, int(port)))
            with near, far, near.makefile("rb") as asked, far.makefile("rb") as answered:
                while self._exchange(near, far, asked.readline, asked.read, answered):
                    pass
        except (OSError, ValueError):
            near.close()
        finally:
            with self._lock:
                self._open.discard(near)

    def _exchange(
        self,
        near: socket.socket,
        far: socket.socket,
        readline: Callable[[], bytes],
        read: Callable[[int], bytes],
        answered: Any,
    ) -> bool:
        head, body = read_message(readline, read)
        if not head:
            return False
        path = head.split(b" ", 2)[1].decode()
        fault = self._note(path, body)
        if fault is not None and fault.kind == "cut":
            fault.met.set()
            return False
        far.sendall(head + body)
        answer = b"".join(read_message(answered.readline, answered.read))
        if fault is not None:
            fault.met.set()
            if fault.kind == "lose":
                return False
            fault.go.wait()
        near.sendall(answer)
        return bool(answer)

    def _note(self, path: str, body: bytes) -> Fault | None:
        with self._lock:
            fault = None
            for known in self.faults:
                if known.times > 0 and path.startswith(known.path):
                    known.times -= 1
                    fault = known
                    break
            seen = Seen(path, json.loads(body) if body else {}, fault.kind if fault else None)
            self.seen.append(seen)
            return fault


def read_message(
    readline: Callable[[], bytes], read: Callable[[int], bytes]
) -> tuple[bytes, bytes]:
    """The head and the body of a request or an answer."""
    head, length = b"", 0
    while True:
        line = readline()
        if not line:
            return b"", b""
        head += line
        if line == b"\r\n":
            return head, read(length)
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
