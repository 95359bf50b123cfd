"""What an answer settles, without a cluster: calls are driven by hand."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from tenure import (
    Acquire,
    Acquired,
    AlreadyInProgress,
    Command,
    Complete,
    Completed,
    Extend,
    Extended,
    FingerprintMismatch,
    Forbidden,
    InProgress,
    InvalidArgument,
    LeaseLost,
    NotRecorded,
    OutcomeUnknown,
    PayloadTooLarge,
    Refused,
    Release,
    Released,
    Replay,
    StorageFull,
    TenureError,
    TooLate,
    Unavailable,
    operations,
)
from tenure.call import Call, Event, Failed, Limits, Pause, Send
from tenure.clock import ClusterClock
from tenure.http1 import Response
from tenure.operations import Cluster
from tenure.route import Route

AT = {"index": 7, "slot": 0, "term": 2, "now_ms": 1000}
LIMITS = Limits(timeout=5, send_timeout=1)

ACQUIRED = {
    "outcome": "acquired",
    "token": 7,
    "lease_until_ms": 2000,
    "ttl_until_ms": 9000,
    "resumed": True,
    "took_over": None,
}
REPLAY = {"outcome": "replay", "token": 7, "payload": None, "completed_ms": 1, "expires_ms": 2}
COMPLETED = {"outcome": "already_complete", "token": 7, "completed_ms": 1, "expires_ms": 2}
RELEASED = {"outcome": "released"}
EXTENDED = {"outcome": "extended", "token": 7, "lease_until_ms": 2000}
IN_PROGRESS = {
    "code": "in_progress",
    "retry_after_ms": 1,
    "holder": "h",
    "token": 8,
    "fingerprint_differs": False,
}
TOO_LATE = {"code": "too_late"}


def lost(reason: str) -> dict[str, Any]:
    return {"code": "lease_lost", "reason": reason, "current_token": 8}


def cluster(*endpoints: str) -> Cluster:
    route = Route(endpoints or ("a:1", "b:1"), follow_leader=True, cluster_id=None)
    return Cluster(route, ClusterClock(), "h")


def respond(status: int, body: dict[str, Any], **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, named, json.dumps({**body, "at": AT}).encode(), True)


LOST = Failed(True, "the connection was cut")
UNSENT = Failed(False, "refused")


def drive(call: Call[Any], *events: Event) -> tuple[Any, list[Send], list[float]]:
    """Answers the sends of a call one by one. Gives its result, its sends and its pauses."""
    sends: list[Send] = []
    pauses: list[float] = []
    waiting = list(events)
    event: Event = None
    try:
        while True:
            step = call.send(event)
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                event = None
            else:
                sends.append(step)
                event = waiting.pop(0)
    except StopIteration as done:
        assert not waiting
        return done.value, sends, pauses


def acquire(cluster: Cluster) -> Call[Any]:
    return operations.acquire(cluster, Acquire("s", "k"), LIMITS)


def complete(cluster: Cluster) -> Call[Any]:
    return operations.complete(cluster, Complete("s", "k", 7), LIMITS)


def release(cluster: Cluster) -> Call[Any]:
    return operations.release(cluster, Release("s", "k", 7), LIMITS)


def extend(cluster: Cluster) -> Call[Any]:
    return operations.extend(cluster, Extend("s", "k", 7, 1), LIMITS)


SETTLING = [
    (acquire, ACQUIRED, Acquired),
    (acquire, REPLAY, Replay),
    (complete, COMPLETED, Completed),
    (release, RELEASED, Released),
    (extend, EXTENDED, Extended),
]
REFUSING = [
    (acquire, IN_PROGRESS),
    (acquire, TOO_LATE),
    (acquire, {"code": "fingerprint_mismatch", "stored": "a" * 16, "received": "b" * 16}),
    (complete, TOO_LATE),
    (complete, lost("absent")),
    (complete, lost("stolen")),
    (complete, lost("completed")),
    (release, TOO_LATE),
    (release, lost("completed")),
    (extend, lost("absent")),
    (extend, lost("stolen")),
    (extend, TOO_LATE),
]


@pytest.mark.parametrize(("call", "body", "kind"), SETTLING)
def test_an_outcome_settles_a_call_whatever_became_of_earlier_sends(
    call: Any, body: dict[str, Any], kind: type
) -> None:
    for before in ([], [UNSENT], [LOST], [LOST, LOST]):
        answer, sends, _ = drive(call(cluster()), *before, respond(200, body))
        assert isinstance(answer, kind)
        assert len({send.body for send in sends}) == 1, "the attempt or token changed"


@pytest.mark.parametrize(("call", "body"), REFUSING)
def test_a_refusal_does_not_settle_an_unknown(call: Any, body: dict[str, Any]) -> None:
    for unknown in (LOST, respond(504, {"code": "outcome_unknown"}), Response(502, {}, b"", True)):
        with pytest.raises(OutcomeUnknown) as caught:
            drive(call(cluster()), unknown, respond(409, body))
        assert caught.value.can_commit
        assert caught.value.seen is not None


@pytest.mark.parametrize(("call", "body"), REFUSING)
def test_a_refusal_of_the_first_send_is_an_answer(call: Any, body: dict[str, Any]) -> None:
    for before in ([], [UNSENT], [respond(503, {"code": "no_leader"})]):
        if body is IN_PROGRESS:
            answer, _, _ = drive(call(cluster()), *before, respond(409, body))
            assert isinstance(answer, InProgress)
            continue
        with pytest.raises((LeaseLost, TooLate, FingerprintMismatch)) as refused:
            drive(call(cluster()), *before, respond(409, body))
        assert isinstance(refused.value, TenureError)
        assert not refused.value.can_commit


@pytest.mark.parametrize("reason", ["absent", "stolen"])
def test_a_resent_release_that_finds_nothing_of_its_own_has_released(reason: str) -> None:
    with pytest.raises(LeaseLost):
        drive(release(cluster()), respond(412, lost(reason)))
    answer, _, _ = drive(release(cluster()), LOST, respond(412, lost(reason)))
    assert isinstance(answer, Released)


@pytest.mark.parametrize("body", [{}, RELEASED, {"outcome": "acquired"}, {"outcome": "replay"}])
def test_an_answer_to_another_command_is_no_outcome(body: dict[str, Any]) -> None:
    with pytest.raises(OutcomeUnknown):
        drive(acquire(cluster()), respond(200, body))


def test_a_purge_is_not_sent_again_after_an_unknown() -> None:
    with pytest.raises(OutcomeUnknown):
        drive(operations.purge(cluster(), 5, LIMITS), LOST)
    purged = {"outcome": "purged", "deleted": 1, "more": False}
    answer, sends, _ = drive(operations.purge(cluster(), 5, LIMITS), UNSENT, respond(200, purged))
    assert (answer.deleted, len(sends)) == (1, 2)


def test_another_endpoint_is_tried_and_the_leader_followed() -> None:
    shared = cluster("a:1", "b:1")
    _, sends, _ = drive(acquire(shared), UNSENT, respond(200, ACQUIRED, x_tenure_leader="c:1"))
    assert [send.address.host for send in sends] == ["a", "b"]
    _, sends, _ = drive(complete(shared), UNSENT, respond(200, COMPLETED, x_tenure_leader="c:1"))
    assert [send.address.host for send in sends] == ["c", "b"]
    _, sends, _ = drive(complete(shared), respond(200, COMPLETED))
    assert [send.address.host for send in sends] == ["b"], "a leader that failed rests"


def test_retry_after_is_honoured() -> None:
    busy = respond(429, {"code": "overloaded"}, retry_after="2")
    _, _, pauses = drive(acquire(cluster()), busy, respond(200, ACQUIRED))
    assert pauses == [2.0]
    # A node without a leader rests; another is asked at once.
    headless = respond(503, {"code": "no_leader"}, retry_after="3")
    shared = cluster()
    _, sends, pauses = drive(acquire(shared), headless, respond(200, ACQUIRED))
    assert [send.address.host for send in sends] == ["a", "b"]
    assert max(pauses) < 0.1
    with pytest.raises(Unavailable):
        drive(
            operations.acquire(cluster("a:1"), Acquire("s", "k"), Limits(2, 1)),
            respond(503, {"code": "no_leader"}, retry_after="3"),
        )


def test_an_acquire_dies_with_its_call_once_cluster_time_is_known() -> None:
    shared = cluster()
    _, (send,), _ = drive(acquire(shared), respond(200, ACQUIRED))
    assert "not_after_ms" not in json.loads(send.body or b"")
    _, (send,), _ = drive(acquire(shared), respond(200, ACQUIRED))
    dies = json.loads(send.body or b"")["not_after_ms"]
    assert 7000 <= dies <= 7500, "the stamp, the timeout and a second"
    _, (send,), _ = drive(complete(shared), respond(200, COMPLETED))
    assert "not_after_ms" not in json.loads(send.body or b"")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_argument", InvalidArgument),
        (403, "forbidden", Forbidden),
        (404, "not_found", Refused),
        (413, "payload_too_large", PayloadTooLarge),
        (507, "storage_full", StorageFull),
    ],
)
def test_what_sending_again_would_not_change_ends_a_call(
    status: int, code: str, kind: type[TenureError]
) -> None:
    problem = respond(status, {"code": code, "detail": "why", "limit": 1, "size": 2})
    with pytest.raises(kind) as refused:
        drive(complete(cluster()), UNSENT, problem)
    assert not refused.value.can_commit
    with pytest.raises(OutcomeUnknown) as unknown:
        drive(complete(cluster()), LOST, problem)
    assert isinstance(unknown.value.seen, kind)
    with pytest.raises(kind):
        drive(operations.get(cluster(), "s", "k", False, LIMITS), LOST, problem)


def test_a_defect_of_a_node_leaves_a_write_unknown() -> None:
    with pytest.raises(OutcomeUnknown):
        drive(complete(cluster()), respond(500, {"code": "internal"}))


def test_a_batch_has_an_outcome_in_each_place() -> None:
    results = [
        {"status": 200, "body": {**ACQUIRED, "at": AT}},
        {"status": 412, "body": {**lost("stolen"), "at": AT}},
        {"status": 409, "body": {**IN_PROGRESS, "at": AT}},
        {"status": 413, "body": {"code": "payload_too_large", "limit": 1, "size": 2}},
        {"status": 504, "body": {"code": "outcome_unknown"}},
        None,
    ]
    commands: list[Command] = [
        Acquire("s", "a"),
        Release("s", "b", 7),
        Acquire("s", "c"),
        Complete("s", "d", 7),
        Extend("s", "e", 7, 1),
        Extend("s", "f", 7, 1),
    ]
    for before, expected in (
        ([], "Acquired LeaseLost InProgress PayloadTooLarge OutcomeUnknown OutcomeUnknown"),
        ([LOST], "Acquired Released OutcomeUnknown OutcomeUnknown OutcomeUnknown OutcomeUnknown"),
    ):
        call = operations.batch(cluster(), commands, LIMITS)
        answers, _, _ = drive(call, *before, respond(200, {"results": results}))
        assert " ".join(type(answer).__name__ for answer in answers) == expected


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("why", seen=TooLate("x"), attempt="a"),
        NotRecorded("why", value=[1], token=7, can_commit=True),
        LeaseLost("stolen", 8),
        InvalidArgument("why", "field"),
        AlreadyInProgress(5, "h", 7),
    ],
)
def test_errors_cross_processes(error: TenureError) -> None:
    """One that cannot be unpickled breaks the pool that carries it."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.can_commit == error.can_commit
    assert set(again.__dict__) == set(error.__dict__)
