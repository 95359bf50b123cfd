"""Which node a send goes to: the leader where it is known, else the next endpoint.

Any node takes any request and forwards it, so a wrong guess costs a hop, no more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from urllib.parse import urlsplit

from tenure.errors import InvalidArgument

HINT_REST = 1.0
"""Seconds for which a leader's address that failed is not preferred again."""


@dataclass(frozen=True)
class Address:
    """Where a node listens."""

    host: str
    port: int
    tls: bool = False

    @property
    def authority(self) -> str:
        """As a Host header spells it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def parse(endpoint: str) -> Address:
    """Reads ``host:port``, ``http://host:port`` or ``https://host``."""
    try:
        url = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        port = url.port
    except ValueError:
        raise InvalidArgument(f"{endpoint!r} is no host:port", "endpoints") from None
    tls = url.scheme == "https"
    has_more = url.path not in ("", "/") or url.query or url.fragment or url.username
    if url.scheme not in ("http", "https") or not url.hostname or has_more:
        raise InvalidArgument(f"{endpoint!r} is no host:port", "endpoints")
    if port is None and not (tls or "://" in endpoint):
        raise InvalidArgument(f"{endpoint!r} has no port", "endpoints")
    return Address(url.hostname, port or (443 if tls else 80), tls)


class Route:
    """The endpoints of one cluster, and what is known of them. Shared by threads."""

    def __init__(
        self, endpoints: Sequence[str], *, follow_leader: bool, cluster_id: str | None
    ) -> None:
        if isinstance(endpoints, str):
            endpoints = endpoints.split(",")
        self._endpoints = [parse(endpoint.strip()) for endpoint in endpoints]
        if not self._endpoints:
            raise InvalidArgument("at least one is needed", "endpoints")
        # A leader's address is a bare one: behind TLS or a gateway it would lead around them.
        self._follows = follow_leader and not any(known.tls for known in self._endpoints)
        self._lock = Lock()
        self._next = 0
        self._leader: Address | None = None
        self._unpreferred_until: dict[Address, float] = {}
        self._rests_until: dict[Address, float] = {}
        self._cluster_id = cluster_id

    def pick(self) -> tuple[Address, float]:
        """The best address to ask, and the seconds for which it asked to be left alone."""
        now = time.monotonic()
        with self._lock:
            turns = self._endpoints[self._next :] + self._endpoints[: self._next]
            if self._leader is not None:
                turns.insert(0, self._leader)
            rests = [max(0.0, self._rests_until.get(turn, 0.0) - now) for turn in turns]
            return min(zip(turns, rests), key=lambda pair: pair[1])

    def heard(self, leader: str | None) -> None:
        """Takes in who leads, as said beside an answer."""
        if leader is None or not self._follows:
            return
        try:
            address = parse(leader)
        except InvalidArgument:
            return
        with self._lock:
            if self._unpreferred_until.get(address, 0.0) <= time.monotonic():
                self._leader = address

    def leave(self, address: Address, rest: float = 0.0) -> None:
        """Goes on with another endpoint; ``address`` is left alone for ``rest`` seconds."""
        now = time.monotonic()
        with self._lock:
            self._unpreferred_until[address] = now + HINT_REST
            if rest > 0:
                self._rests_until[address] = now + rest
            if self._leader == address:
                self._leader = None
            if self._endpoints[self._next] == address:
                self._next = (self._next + 1) % len(self._endpoints)

    def belongs(self, cluster_id: str) -> bool:
        """Whether a node of this cluster is meant: the first one reached decides."""
        with self._lock:
            if self._cluster_id is None:
                self._cluster_id = cluster_id
            return self._cluster_id == cluster_id
