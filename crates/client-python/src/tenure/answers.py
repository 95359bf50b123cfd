"""What calls answer: one class an outcome, with every field of it.

Times ending in ``_ms`` are milliseconds of cluster time, or of a span of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union


@dataclass(frozen=True)
class At:
    """Where and when it was decided. ``slot`` is None for a read."""

    index: int
    slot: int | None
    term: int
    now_ms: int


@dataclass(frozen=True)
class Payload:
    """A stored result. *No payload* (None) differs from an empty one."""

    body: bytes = b""
    type: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_text(cls, text: str) -> Payload:
        """Text, in UTF-8."""
        return cls(text.encode(), "text/plain; charset=utf-8")

    @classmethod
    def of_json(cls, value: object) -> Payload:
        """JSON. Raises TypeError or ValueError for what is none, NaN and infinities included."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return cls(text.encode(), "application/json")


@dataclass(frozen=True)
class TookOver:
    """Whose expired lease was stolen."""

    token: int
    holder: str
    acquired_ms: int


@dataclass(frozen=True)
class Acquired:
    """The caller holds the record and runs the action."""

    token: int
    lease_until_ms: int
    ttl_until_ms: int
    resumed: bool
    """This attempt held the record already."""
    took_over: TookOver | None
    at: At
    attempt: str
    sent_at: float = field(default=0.0, compare=False)
    """:func:`tenure.clock.now` before the send that was answered: the lease began after it."""


@dataclass(frozen=True)
class Replay:
    """The action is done: here is its result."""

    token: int
    payload: Payload | None
    completed_ms: int
    expires_ms: int
    at: At


@dataclass(frozen=True)
class InProgress:
    """Another attempt holds the record."""

    retry_after_ms: int
    """What is left of the holder's lease."""
    holder: str
    token: int
    fingerprint_differs: bool
    """Both requests carry fingerprints, and these differ."""
    at: At


@dataclass(frozen=True)
class Completed:
    """The record is COMPLETE."""

    token: int
    completed_ms: int
    expires_ms: int
    already_complete: bool
    """By the same token, before: the first payload and times stay."""
    at: At


@dataclass(frozen=True)
class Released:
    """The record is gone, without a trace."""

    at: At


@dataclass(frozen=True)
class Extended:
    """The lease is longer now, or as long as it was."""

    token: int
    lease_until_ms: int
    at: At
    sent_at: float = field(default=0.0, compare=False)
    """As :attr:`Acquired.sent_at`."""


@dataclass(frozen=True)
class Purged:
    """A purge ran. ``more``: further records are purgeable."""

    deleted: int
    more: bool
    at: At


@dataclass(frozen=True)
class Absent:
    """There is no such record."""

    at: At


@dataclass(frozen=True)
class LeaseExpired:
    """The record is IN_PROGRESS, and its holder's lease has run out."""

    at: At


@dataclass(frozen=True)
class TimedOut:
    """The record is still IN_PROGRESS at the end of the wait."""

    retry_after_ms: int
    at: At


@dataclass(frozen=True)
class RecordInProgress:
    """A record that is held."""

    token: int
    holder: str
    acquired_ms: int
    lease_until_ms: int
    lease_left_ms: int
    ttl_until_ms: int
    fingerprint: str | None
    at: At


@dataclass(frozen=True)
class RecordComplete:
    """A record with its result."""

    token: int
    holder: str
    completed_ms: int
    expires_ms: int
    payload: Payload | None
    fingerprint: str | None
    at: At


Acquisition = Union[Acquired, Replay, InProgress]
Record = Union[RecordInProgress, RecordComplete, Absent]
Waited = Union[Replay, Absent, LeaseExpired, TimedOut]
Answer = Union[Acquired, Replay, InProgress, Completed, Released, Extended]
