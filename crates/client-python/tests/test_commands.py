"""The commands against a real cluster."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from cluster import wait_for
from tenure import (
    Absent,
    Acquire,
    Acquired,
    AsyncClient,
    Client,
    Complete,
    FingerprintMismatch,
    InProgress,
    InvalidArgument,
    LeaseExpired,
    LeaseLost,
    Payload,
    PayloadTooLarge,
    RecordComplete,
    RecordInProgress,
    Release,
    Replay,
    TimedOut,
    TooLate,
    Unavailable,
)

if TYPE_CHECKING:
    from cluster import Cluster


def acquired(client: Client, key: str, **options: object) -> Acquired:
    answer = client.acquire("mail", key, **options)  # type: ignore[arg-type]
    assert isinstance(answer, Acquired)
    return answer


def test_a_record_s_life(client: Client, key: str) -> None:
    assert isinstance(client.get("mail", key), Absent)
    held = acquired(client, key, lease=20, ttl=timedelta(hours=1), fingerprint="0123456789ABCDEF")
    assert not held.resumed
    assert held.lease_until_ms == held.at.now_ms + 20_000
    busy = client.acquire("mail", key)
    assert isinstance(busy, InProgress)
    assert (busy.holder, busy.token) == ("test", held.token)
    again = client.acquire("mail", key, attempt=held.attempt)
    assert isinstance(again, Acquired)
    assert (again.resumed, again.token) == (True, held.token)
    record = client.get("mail", key)
    assert isinstance(record, RecordInProgress)
    assert record.fingerprint == "0123456789abcdef"
    assert client.extend("mail", key, held.token, 60).lease_until_ms > held.lease_until_ms
    payload = Payload(b"\x00\xff", "image/png", {"pages": "1"})
    done = client.complete("mail", key, held.token, payload, ttl=90)
    assert not done.already_complete
    assert done.expires_ms == done.completed_ms + 90_000
    assert client.complete("mail", key, held.token).already_complete
    replay = client.acquire("mail", key)
    assert isinstance(replay, Replay)
    assert replay.payload == payload
    stale_or_not = client.get("mail", key)
    assert isinstance(stale_or_not, RecordComplete)
    assert stale_or_not.payload == payload
    with pytest.raises(FingerprintMismatch) as mismatch:
        client.acquire("mail", key, fingerprint="f" * 16)
    assert mismatch.value.stored == "0123456789abcdef"
    with pytest.raises(LeaseLost) as lost:
        client.release("mail", key, held.token)
    assert (lost.value.reason, lost.value.current_token) == ("completed", held.token)


def test_a_release_leaves_no_trace_and_a_steal_says_so(client: Client, key: str) -> None:
    first = acquired(client, key)
    client.release("mail", key, first.token)
    assert isinstance(client.get("mail", key), Absent)
    second = acquired(client, key, lease=0.05)
    third = acquired(client, key, wait=5)
    assert third.took_over is not None
    assert third.took_over.token == second.token
    with pytest.raises(LeaseLost) as lost:
        client.extend("mail", key, second.token, 1)
    assert (lost.value.reason, lost.value.current_token) == ("stolen", third.token)
    assert not lost.value.can_commit


def test_names_may_be_anything_that_a_path_can_carry(client: Client, key: str) -> None:
    for name in (".", "..", "a/b", "ключ %2F?#", key):
        held = acquired(client, f"{name}", wait=1)
        record = client.get("mail", name)
        assert isinstance(record, RecordInProgress)
        client.release("mail", name, held.token)


def test_waiting_sees_what_happens(client: Client, key: str) -> None:
    assert isinstance(client.wait("mail", key, 0.1), Absent)
    held = acquired(client, key, lease=0.1)
    assert isinstance(client.wait("mail", key, 5), LeaseExpired)
    client.extend("mail", key, held.token, 60)
    assert isinstance(client.wait("mail", key, 0.05), TimedOut)
    seen: list[object] = []
    waiter = threading.Thread(target=lambda: seen.append(client.acquire("mail", key, wait=20)))
    waiter.start()
    client.complete("mail", key, held.token, Payload.of_text("sent"))
    waiter.join()
    (replay,) = seen
    assert isinstance(replay, Replay)
    assert replay.payload == Payload(b"sent", "text/plain; charset=utf-8")
    assert client.wait("mail", key, 5) == client.acquire("mail", key)


def test_refusals_are_typed(client: Client, key: str) -> None:
    with pytest.raises(InvalidArgument, match="scope"):
        client.acquire("a:b", key)
    for lease in (0, -1, math.nan, math.inf, 0.0005, 1e9):
        with pytest.raises(InvalidArgument, match="lease"):
            client.acquire("mail", key, lease=lease)
    with pytest.raises(InvalidArgument, match="UTF-8"):
        client.acquire("mail", "\ud800")
    with pytest.raises(InvalidArgument):
        client.get("mail", "\ud800")
    with pytest.raises(InvalidArgument):
        client.get("mail", "")
    held = acquired(client, key)
    with pytest.raises(PayloadTooLarge) as large:
        client.complete("mail", key, held.token, Payload(bytes(1024 * 1024 + 1)))
    assert (large.value.limit, large.value.size) == (1024 * 1024, 1024 * 1024 + 1)
    late = Acquire("mail", key, not_after_ms=held.at.now_ms - 1)
    (answer,) = client.batch([late])
    assert isinstance(answer, TooLate)
    assert client.complete("mail", key, held.token, Payload(bytes(1024 * 1024))).token == held.token


def test_a_batch_and_a_purge(client: Client, key: str) -> None:
    held, released, malformed = client.batch(
        [Acquire("mail", key), Release("mail", f"{key}-none", 1), Complete("a:b", key, 1)]
    )
    assert isinstance(held, Acquired)
    assert isinstance(released, LeaseLost)
    assert isinstance(malformed, InvalidArgument)
    assert client.purge(1).deleted <= 1


def test_a_client_without_a_cluster_says_so_in_time(key: str) -> None:
    with Client("127.0.0.1:9", timeout=0.3) as nowhere, pytest.raises(Unavailable) as error:
        nowhere.acquire("mail", key)
    assert not error.value.can_commit


@pytest.mark.parametrize(
    "endpoints", ["", "localhost", "ftp://a:1", "a:b", "http://a:1/path", "[::1", [], "u@a:1"]
)
def test_endpoints_are_checked(endpoints: str) -> None:
    with pytest.raises(InvalidArgument, match="endpoints"):
        Client(endpoints)


def test_another_cluster_is_never_asked(cluster: Cluster, key: str) -> None:
    with Client(cluster.endpoints, cluster_id="another", timeout=0.3) as wrong:
        with pytest.raises(Unavailable, match="another cluster"):
            wrong.acquire("mail", key)


def test_the_same_with_asyncio(cluster: Cluster, key: str) -> None:
    async def life() -> None:
        async with AsyncClient(cluster.endpoints) as client:
            held = await client.acquire("mail", key, lease=20)
            assert isinstance(held, Acquired)
            waiting = asyncio.ensure_future(client.wait("mail", key, 20))
            await client.extend("mail", key, held.token, 30)
            await client.complete("mail", key, held.token, Payload.of_text("sent"))
            assert await waiting == await client.acquire("mail", key)
            record = await client.get("mail", key, stale=False)
            assert isinstance(record, RecordComplete)
            with pytest.raises(LeaseLost):
                await client.release("mail", key, held.token)
            (answer,) = await client.batch([Acquire("mail", key)])
            assert isinstance(answer, Replay)
            assert (await client.purge(1)).deleted <= 1

    asyncio.run(life())


def test_a_cancelled_waiter_gives_up_its_place(cluster: Cluster, client: Client, key: str) -> None:
    held = acquired(client, key)

    async def give_up() -> None:
        async with AsyncClient(cluster.endpoints) as other:
            waiting = asyncio.ensure_future(other.acquire("mail", key, wait=30))
            await asyncio.to_thread(wait_for, lambda: cluster.waiters() == 1, "it waits")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(give_up())
    wait_for(lambda: cluster.waiters() == 0, "its node let it go")
    client.release("mail", key, held.token)
    assert isinstance(client.get("mail", key), Absent), "it was handed to nobody"
