"""The operations: what each sends, and what its answers settle.

- After a send whose outcome is unknown, a call stays unknown until ``acquired``, ``replay``,
  ``completed``, ``already_complete``, ``extended`` or ``released`` settles it. Refusals do not,
  ``too_late`` and ``in_progress`` among them.
- For a release that is sent again, ``absent`` and ``stolen`` both count as released: the record is
  not held by that token, which is what was asked.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, TypeVar
from urllib.parse import quote

from tenure.answers import (
    Absent,
    Acquired,
    Acquisition,
    Answer,
    At,
    Completed,
    Extended,
    InProgress,
    LeaseExpired,
    Payload,
    Purged,
    Record,
    RecordComplete,
    RecordInProgress,
    Released,
    Replay,
    TimedOut,
    TookOver,
    Waited,
)
from tenure.call import (
    ANSWERS,
    Call,
    Limits,
    Repeat,
    Reply,
    Request,
    conclude_refusal,
    deliver,
    refusal,
)
from tenure.clock import ClusterClock
from tenure.commands import Acquire, Command, Complete, Extend, Release
from tenure.errors import (
    FingerprintMismatch,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
    TenureError,
    TooLate,
    Unavailable,
)
from tenure.route import Route

T = TypeVar("T")

SLACK = 1.0
"""Seconds that an acquire's own deadline lies behind the call's."""


@dataclass(frozen=True)
class Cluster:
    """What operations share: the way to a cluster, and its time."""

    route: Route
    clock: ClusterClock
    holder: str


def acquire(cluster: Cluster, command: Acquire, limits: Limits) -> Call[Acquisition]:
    """Its sends die with the call: a delayed one must not take a lease that nobody uses."""
    if command.holder is None:
        command = replace(command, holder=cluster.holder)
    if command.not_after_ms is None:
        not_after_ms = cluster.clock.after(limits.wait + limits.timeout + SLACK)
        command = replace(command, not_after_ms=not_after_ms)
    body = command.body()

    def with_wait(left: float) -> dict[str, Any]:
        return {**body, "wait_ms": int(left * 1000)} if left > 0 else body

    request = Request("POST", "/v1/acquire", with_wait, Repeat.NAMED)
    try:
        reply = yield from deliver(request, cluster.route, limits)
        answer = settle(cluster, command, reply)
    except OutcomeUnknown as unknown:
        unknown.attempt = command.attempt
        raise
    assert isinstance(answer, (Acquired, Replay, InProgress))
    return answer


def complete(cluster: Cluster, command: Complete, limits: Limits) -> Call[Completed]:
    """Ends an action with its result."""
    answer = yield from _command(cluster, command, limits)
    assert isinstance(answer, Completed)
    return answer


def release(cluster: Cluster, command: Release, limits: Limits) -> Call[Released]:
    """Ends an action without a trace."""
    answer = yield from _command(cluster, command, limits)
    assert isinstance(answer, Released)
    return answer


def extend(cluster: Cluster, command: Extend, limits: Limits) -> Call[Extended]:
    """The holder's heartbeat."""
    answer = yield from _command(cluster, command, limits)
    assert isinstance(answer, Extended)
    return answer


def _command(cluster: Cluster, command: Command, limits: Limits) -> Call[Answer]:
    body = command.body()
    path = f"/v1/{type(command).__name__.lower()}"
    request = Request("POST", path, lambda _: body, Repeat.NAMED)
    reply = yield from deliver(request, cluster.route, limits)
    return settle(cluster, command, reply)


def batch(
    cluster: Cluster, commands: Sequence[Command], limits: Limits
) -> Call[list[Answer | TenureError]]:
    """Independent commands in one log entry, each with an outcome in its place."""
    commands = [
        replace(command, holder=cluster.holder)
        if isinstance(command, Acquire) and command.holder is None
        else command
        for command in commands
    ]
    body = {"commands": [{type(one).__name__.lower(): one.body()} for one in commands]}
    request = Request("POST", "/v1/batch", lambda _: body, Repeat.NAMED)
    reply = yield from deliver(request, cluster.route, limits)
    results = reply.body.get("results")
    if not isinstance(results, list) or len(results) != len(commands):
        raise OutcomeUnknown("the node's answer is not one to this batch")
    return [_settle_part(cluster, one, reply, part) for one, part in zip(commands, results)]


def _settle_part(
    cluster: Cluster, command: Command, reply: Reply, part: Any
) -> Answer | TenureError:
    try:
        status, body = part["status"], part["body"]
        code = body.get("code")
        if status != 200 and code not in ANSWERS:
            if code == "outcome_unknown":
                return OutcomeUnknown("the node proposed it, and has no word of it")
            return conclude_refusal(refusal(str(code), body), str(code), reply.unsettled)
        return settle(cluster, command, replace(reply, status=status, body=body))
    except (KeyError, TypeError, AttributeError):
        return OutcomeUnknown("the node's answer is not one to this command")
    except OutcomeUnknown as unknown:
        if isinstance(command, Acquire):
            unknown.attempt = command.attempt
        return unknown
    except TenureError as error:
        return error


def get(cluster: Cluster, scope: str, key: str, stale: bool, limits: Limits) -> Call[Record]:
    """Reads a record."""
    path = f"/v1/scopes/{_segment(scope, 'scope')}/keys/{_segment(key, 'key')}"
    path += "?consistency=stale" if stale else ""
    request = Request("GET", path, lambda _: None, Repeat.READ)
    reply = yield from deliver(request, cluster.route, limits)
    return _read(reply, _record)


def wait(cluster: Cluster, scope: str, key: str, limits: Limits) -> Call[Waited]:
    """Waits until a record is COMPLETE, absent, or its lease has expired."""

    def body(left: float) -> dict[str, Any]:
        return {"scope": scope, "key": key, "timeout_ms": int(left * 1000)}

    request = Request("POST", "/v1/wait", body, Repeat.READ)
    reply = yield from deliver(request, cluster.route, limits)
    return _read(reply, _waited)


def purge(cluster: Cluster, limit: int | None, limits: Limits) -> Call[Purged]:
    """Deletes purgeable records. Not sent again after an unknown send: it has no name."""
    body = {} if limit is None else {"limit": limit}
    request = Request("POST", "/v1/purge", lambda _: body, Repeat.NAMELESS)
    reply = yield from deliver(request, cluster.route, limits)
    try:
        deleted, more = reply.body["deleted"], reply.body["more"]
        return Purged(deleted, more, _at(reply.body))
    except (KeyError, TypeError):
        raise OutcomeUnknown("the node's answer is not one to a purge") from None


def settle(cluster: Cluster, command: Command, reply: Reply) -> Answer:
    """What a logical call may conclude from the answer to one send."""
    try:
        answer = _meaning(command, reply)
    except (KeyError, TypeError, ValueError):
        raise OutcomeUnknown("the node's answer is not one to this command") from None
    if not isinstance(answer, TenureError) and answer.at.slot is not None:
        cluster.clock.heard(answer.at.now_ms)
    if reply.unsettled and isinstance(command, Release) and isinstance(answer, LeaseLost):
        released_before = answer.reason in ("absent", "stolen")
        answer = Released(_at(reply.body)) if released_before else answer
    if reply.unsettled and isinstance(answer, (TenureError, InProgress)):
        detail = "an earlier send had no answer, and this one does not tell what became of it"
        raise OutcomeUnknown(f"{detail}: {reply.body.get('code')}", seen=answer)
    if isinstance(answer, TenureError):
        raise answer
    return answer


def _meaning(command: Command, reply: Reply) -> Answer | TenureError:
    """The answer, or the refusal by the record's rules. KeyError if it answers another command."""
    body = reply.body
    code = body.get("code")
    if code == "too_late":
        return TooLate("the command's not_after_ms has passed")
    if code == "lease_lost" and not isinstance(command, Acquire):
        return LeaseLost(body["reason"], body["current_token"])
    if code == "fingerprint_mismatch" and isinstance(command, Acquire):
        return FingerprintMismatch(body["stored"], body["received"])
    at = _at(body)
    if code == "in_progress" and isinstance(command, Acquire):
        differs = body["fingerprint_differs"]
        return InProgress(body["retry_after_ms"], body["holder"], body["token"], differs, at)
    readers = _READERS[type(command)]
    return readers[body["outcome"]](command, reply, at)


def _acquired(command: Any, reply: Reply, at: At) -> Acquired:
    body = reply.body
    before = body["took_over"]
    took_over = before and TookOver(before["token"], before["holder"], before["acquired_ms"])
    return Acquired(
        body["token"],
        body["lease_until_ms"],
        body["ttl_until_ms"],
        body["resumed"],
        took_over,
        at,
        command.attempt,
        reply.sent_at,
    )


def _replay(_: object, reply: Reply, at: At) -> Replay:
    body = reply.body
    payload = _payload(body["payload"])
    return Replay(body["token"], payload, body["completed_ms"], body["expires_ms"], at)


def _completed(_: object, reply: Reply, at: At) -> Completed:
    body = reply.body
    before = body["outcome"] == "already_complete"
    return Completed(body["token"], body["completed_ms"], body["expires_ms"], before, at)


def _released(_: object, reply: Reply, at: At) -> Released:
    del reply
    return Released(at)


def _extended(_: object, reply: Reply, at: At) -> Extended:
    return Extended(reply.body["token"], reply.body["lease_until_ms"], at, reply.sent_at)


_READERS: dict[type, dict[str, Callable[[Any, Reply, At], Answer]]] = {
    Acquire: {"acquired": _acquired, "replay": _replay},
    Complete: {"completed": _completed, "already_complete": _completed},
    Release: {"released": _released},
    Extend: {"extended": _extended},
}


def _record(reply: Reply) -> Record:
    body = reply.body
    at = _at(body)
    if body.get("code") == "absent":
        return Absent(at)
    if body["state"] == "in_progress":
        return RecordInProgress(
            body["token"],
            body["holder"],
            body["acquired_ms"],
            body["lease_until_ms"],
            body["lease_left_ms"],
            body["ttl_until_ms"],
            body["fingerprint"],
            at,
        )
    return RecordComplete(
        body["token"],
        body["holder"],
        body["completed_ms"],
        body["expires_ms"],
        _payload(body["payload"]),
        body["fingerprint"],
        at,
    )


def _waited(reply: Reply) -> Waited:
    at, outcome = _at(reply.body), reply.body["outcome"]
    if outcome == "complete":
        return _replay(None, reply, at)
    if outcome == "timeout":
        return TimedOut(reply.body["retry_after_ms"], at)
    if outcome == "lease_expired":
        return LeaseExpired(at)
    if outcome != "absent":
        raise KeyError(outcome)
    return Absent(at)


def _read(reply: Reply, read: Callable[[Reply], T]) -> T:
    try:
        return read(reply)
    except (KeyError, TypeError, ValueError):
        raise Unavailable("the node's answer is not one to this request") from None


def _at(body: dict[str, Any]) -> At:
    at = body["at"]
    return At(at["index"], at["slot"], at["term"], at["now_ms"])


def _payload(payload: dict[str, Any] | None) -> Payload | None:
    if payload is None:
        return None
    body = base64.b64decode(payload["body"], validate=True)
    return Payload(body, payload["type"], payload["attributes"])


def _segment(name: str, field: str) -> str:
    """A part of a path. Dots alone would be taken for a folder by what stands in between."""
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidArgument("it is not UTF-8", field) from None
    if not quoted:
        raise InvalidArgument("it is empty", field)
    return {".": "%2E", "..": "%2E%2E"}.get(quoted, quoted)
