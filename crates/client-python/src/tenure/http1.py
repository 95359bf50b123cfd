"""HTTP/1.1 as bytes: a request is written, an answer read. No sockets, no waiting.

Both shells, threads and asyncio, move bytes between this and their sockets. Bodies are whole and
bounded; the standard library reads the heads.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from typing import IO, Any, cast

HEAD_BYTES = 64 * 1024
"""Most bytes of an answer's head."""
BODY_BYTES = 16 * 1024 * 1024
"""Most bytes of an answer's body: 8 MiB of payloads in base64, and some."""


class NotHttp(Exception):
    """What arrived is no answer, or more than one may be."""


@dataclass(frozen=True)
class Response:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    keeps: bool
    """The connection may carry another request."""


def request(method: str, host: str, path: str, body: bytes | None) -> bytes:
    """The bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tenure-python\r\n"
    if body is None:
        return (head + "\r\n").encode("ascii")
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("ascii") + body


class _Head:
    """Bytes that :class:`HTTPResponse` takes for a socket."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def makefile(self, *_: Any) -> IO[bytes]:
        return BytesIO(self._head)


@dataclass
class Reader:
    """Reads one answer from the bytes of a connection, as they come."""

    _bytes: bytearray = field(default_factory=bytearray)
    _head: HTTPResponse | None = None
    _body: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Response | None:
        """Takes in bytes, none at the stream's end. Gives the answer once it is whole."""
        self._bytes += data
        if self._head is None:
            end = self._bytes.find(b"\r\n\r\n")
            if end < 0:
                if not data or len(self._bytes) > HEAD_BYTES:
                    raise NotHttp("the connection ended before an answer")
                return None
            self._head = _parse_head(bytes(self._bytes[: end + 4]))
            del self._bytes[: end + 4]
        if self._head.chunked:
            ended = self._take_chunks()
        elif self._head.length is None:
            self._body += self._bytes
            self._bytes.clear()
            ended = not data
        else:
            ended = len(self._bytes) >= self._head.length
            if ended:
                self._body += self._bytes[: self._head.length]
                del self._bytes[: self._head.length]
        if max(len(self._bytes), len(self._body), self._head.length or 0) > BODY_BYTES:
            raise NotHttp(f"the answer is longer than {BODY_BYTES} bytes")
        if ended:
            headers = {name.lower(): value for name, value in self._head.getheaders()}
            keeps = not (self._head.will_close or self._bytes)
            return Response(self._head.status, headers, bytes(self._body), keeps)
        if not data:
            raise NotHttp("the connection ended within an answer")
        return None

    def _take_chunks(self) -> bool:
        """Moves whole chunks to the body. True after the last, with its trailers."""
        while True:
            line_end = self._bytes.find(b"\r\n")
            if line_end < 0:
                if len(self._bytes) > HEAD_BYTES:
                    raise NotHttp("a chunk has no size")
                return False
            digits = bytes(self._bytes[:line_end]).split(b";")[0].strip()
            if not digits.isalnum() or len(digits) > 8:
                raise NotHttp("a chunk has no size")
            try:
                size = int(digits, 16)
            except ValueError:
                raise NotHttp("a chunk has no size") from None
            if size == 0:
                trailers_end = self._bytes.find(b"\r\n\r\n", line_end)
                if trailers_end < 0:
                    return False
                del self._bytes[: trailers_end + 4]
                return True
            start = line_end + 2
            if len(self._body) + size > BODY_BYTES:
                raise NotHttp(f"the answer is longer than {BODY_BYTES} bytes")
            if len(self._bytes) < start + size + 2:
                return False
            self._body += self._bytes[start : start + size]
            del self._bytes[: start + size + 2]


def _parse_head(head: bytes) -> HTTPResponse:
    parsed = HTTPResponse(cast("socket.socket", _Head(head)))
    try:
        parsed.begin()
    except (HTTPException, ValueError) as error:
        raise NotHttp("what arrived is no HTTP") from error
    return parsed
