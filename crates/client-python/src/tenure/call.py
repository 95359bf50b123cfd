"""A logical call, without I/O: one deadline, sent as often as it takes.

:func:`deliver` is a generator: it yields what is to be done (:class:`Send`, :class:`Pause`) and is
sent what came of it. Threads and asyncio drive the same one.
"""

from __future__ import annotations

import enum
import json
import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Callable, TypeVar, Union

from tenure import clock
from tenure.errors import (
    Forbidden,
    InvalidArgument,
    OutcomeUnknown,
    PayloadTooLarge,
    Refused,
    StorageFull,
    TenureError,
    Unavailable,
)
from tenure.http1 import Response
from tenure.route import Address, Route

PAUSE_MIN = 0.01
"""First pause between two sends of a call, in seconds."""
PAUSE_MAX = 0.5
"""Longest pause between two sends, unless a node asks for a longer one."""


@dataclass(frozen=True)
class Send:
    """Send this to ``address``, and have its answer within ``budget`` seconds."""

    address: Address
    method: str
    path: str
    body: bytes | None
    budget: float


@dataclass(frozen=True)
class Pause:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True)
class Failed:
    """A send without an answer. ``sent``: a byte of it was handed to a socket, or may have been."""

    sent: bool
    why: str


Event = Union[Response, Failed, None]
T = TypeVar("T")
Call = Generator[Union[Send, Pause], Event, T]


class Repeat(enum.Enum):
    """How a request may be sent again."""

    READ = enum.auto()
    """It changes nothing: always."""
    NAMED = enum.auto()
    """It carries attempts or tokens: always, and an unknown send leaves the call unsettled."""
    NAMELESS = enum.auto()
    """It carries neither: not after an unknown send."""


@dataclass(frozen=True)
class Limits:
    """How long a call may take, in seconds. ``timeout`` comes on top of ``wait``."""

    timeout: float
    send_timeout: float
    wait: float = 0.0


@dataclass(frozen=True)
class Request:
    """What is sent. ``body`` makes the body from the seconds of waiting that are left."""

    method: str
    path: str
    body: Callable[[float], dict[str, Any] | None]
    repeat: Repeat


@dataclass(frozen=True)
class Reply:
    """The answer that ends a call: an outcome, or a refusal by a record's rules."""

    status: int
    body: dict[str, Any]
    unsettled: bool
    """An earlier send may have committed, or still may."""
    sent_at: float
    """:func:`tenure.clock.now` before the send that was answered."""


ANSWERS = {"in_progress", "too_late", "lease_lost", "fingerprint_mismatch", "absent"}
"""Codes that the rules of a record decide: answers, not obstacles."""
UNPROPOSED = {"no_leader", "shutting_down", "not_leader"}
"""Codes of a node that proposed nothing: another may."""


def deliver(request: Request, route: Route, limits: Limits) -> Call[Reply]:
    """Sends until an answer concludes the call, or the deadline passes."""
    waits_until = time.monotonic() + limits.wait
    deadline = waits_until + limits.timeout
    unsettled = False
    pause = PAUSE_MIN
    obstacle = "the deadline had passed before the first send"
    while True:
        address, rest = route.pick()
        if rest == 0:
            now = time.monotonic()
            wait = max(0.0, waits_until - now)
            budget = min(wait + limits.send_timeout, deadline - now)
            if budget <= 0:
                break
            body = _encode(request.body(wait))
            sent_at = clock.now()
            event = yield Send(address, request.method, request.path, body, budget)
            if isinstance(event, Response):
                route.heard(event.headers.get("x-tenure-leader"))
                reply = _read_json(event)
                code = reply.get("code")
                if event.status == 200:
                    return Reply(event.status, reply, unsettled, sent_at)
                if code in ANSWERS:
                    return Reply(event.status, reply, unsettled, sent_at)
                obstacle = f"{address} answered {event.status} {code or 'without a code'}"
                asked_pause = _seconds(event.headers.get("retry-after"))
                if code in UNPROPOSED:
                    route.leave(address, asked_pause)
                elif code == "overloaded":
                    rest = asked_pause
                elif code == "outcome_unknown" or not isinstance(code, str):
                    # Without a code it is not a node that answered, but something in between.
                    unsettled |= request.repeat is not Repeat.READ
                    route.leave(address)
                else:
                    raise conclude_refusal(refusal(code, reply), code, unsettled, request.repeat)
            else:
                assert event is not None
                obstacle = f"{address}: {event.why}"
                unsettled |= event.sent and request.repeat is not Repeat.READ
                route.leave(address)
        if unsettled and request.repeat is Repeat.NAMELESS:
            break
        rest = max(rest, pause * random.uniform(0.5, 1.0))  # noqa: S311 - it spreads load
        if time.monotonic() + rest >= deadline:
            break
        yield Pause(rest)
        pause = min(pause * 2, PAUSE_MAX)
    if unsettled:
        raise OutcomeUnknown(obstacle)
    raise Unavailable(f"no node took the request in time; the last obstacle: {obstacle}")


def refusal(code: str, problem: dict[str, Any]) -> TenureError:
    """A refusal that sending again would not change."""
    detail = str(problem.get("detail") or problem.get("title") or code)
    if code == "invalid_argument":
        named = problem.get("field")
        return InvalidArgument(detail, named if isinstance(named, str) else None)
    if code == "payload_too_large":
        limit, size = problem.get("limit"), problem.get("size")
        if isinstance(limit, int) and isinstance(size, int):
            return PayloadTooLarge(limit, size)
    if code == "forbidden":
        return Forbidden(detail)
    if code == "storage_full":
        return StorageFull(detail)
    return Refused(detail, code)


def conclude_refusal(
    error: TenureError, code: str, unsettled: bool, repeat: Repeat = Repeat.NAMED
) -> TenureError:
    """What a call may conclude from such a refusal."""
    if repeat is not Repeat.READ and (unsettled or code == "internal"):
        return OutcomeUnknown(str(error), seen=error)
    return error


def _encode(body: dict[str, Any] | None) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"it makes no JSON in UTF-8: {error}") from error


def _read_json(response: Response) -> dict[str, Any]:
    try:
        value = json.loads(response.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _seconds(retry_after: str | None) -> float:
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    return 0.0
