"""Commands as values: what :meth:`tenure.Client.batch` takes. Durations are seconds or timedeltas.

A command that names nothing of a duration leaves it to the cluster: a lease of 30 s, a ttl of 24 h.
"""

from __future__ import annotations

import base64
import math
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Union

from tenure.answers import Payload
from tenure.errors import InvalidArgument

Duration = Union[float, timedelta]


def seconds(duration: Duration, name: str) -> float:
    """A duration in seconds; not negative, and finite."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not math.isfinite(value) or value < 0:
        raise InvalidArgument("must be a finite number of seconds, not negative", name)
    return value


def milliseconds(duration: Duration, name: str) -> int:
    """A duration in whole milliseconds, never silently rounded."""
    exact = seconds(duration, name) * 1000
    whole = round(exact)
    if abs(exact - whole) > 1e-6:
        raise InvalidArgument("must be a whole number of milliseconds", name)
    return whole


def new_attempt() -> str:
    """A fresh attempt: a random UUID. One for each logical try, whatever becomes of its sends."""
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Acquire:
    """Take a record. Draws its attempt when it is made: sending it again is the same try."""

    scope: str
    key: str
    lease: Duration | None = None
    ttl: Duration | None = None
    holder: str | None = None
    fingerprint: str | None = None
    not_after_ms: int | None = None
    attempt: str = field(default_factory=new_attempt)

    def body(self) -> dict[str, Any]:
        """As the API spells it."""
        return _given(
            scope=self.scope,
            key=self.key,
            attempt=self.attempt,
            holder=self.holder,
            lease_ms=None if self.lease is None else milliseconds(self.lease, "lease"),
            ttl_ms=None if self.ttl is None else milliseconds(self.ttl, "ttl"),
            fingerprint=self.fingerprint,
            not_after_ms=self.not_after_ms,
        )


@dataclass(frozen=True)
class Complete:
    """End an action with its result."""

    scope: str
    key: str
    token: int
    payload: Payload | None = None
    ttl: Duration | None = None
    not_after_ms: int | None = None

    def body(self) -> dict[str, Any]:
        """As the API spells it."""
        payload = None
        if self.payload is not None:
            payload = _given(
                type=self.payload.type, body=base64.b64encode(self.payload.body).decode()
            )
            if self.payload.attributes:
                payload["attributes"] = dict(self.payload.attributes)
        return _given(
            scope=self.scope,
            key=self.key,
            token=self.token,
            ttl_ms=None if self.ttl is None else milliseconds(self.ttl, "ttl"),
            payload=payload,
            not_after_ms=self.not_after_ms,
        )


@dataclass(frozen=True)
class Release:
    """End an action without a trace."""

    scope: str
    key: str
    token: int
    not_after_ms: int | None = None

    def body(self) -> dict[str, Any]:
        """As the API spells it."""
        return _given(
            scope=self.scope, key=self.key, token=self.token, not_after_ms=self.not_after_ms
        )


@dataclass(frozen=True)
class Extend:
    """The holder's heartbeat."""

    scope: str
    key: str
    token: int
    lease: Duration
    not_after_ms: int | None = None

    def body(self) -> dict[str, Any]:
        """As the API spells it."""
        return _given(
            scope=self.scope,
            key=self.key,
            token=self.token,
            lease_ms=milliseconds(self.lease, "lease"),
            not_after_ms=self.not_after_ms,
        )


Command = Union[Acquire, Complete, Release, Extend]


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
