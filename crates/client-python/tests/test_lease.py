"""Leases: heartbeats, and knowing that one is lost in time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cluster import wait_for
from tenure import (
    Absent,
    Acquired,
    AlreadyComplete,
    AlreadyInProgress,
    AsyncClient,
    Client,
    LeaseLost,
    Payload,
    PayloadTooLarge,
    RecordComplete,
    RecordInProgress,
    clock,
)
from tenure.term import Term

if TYPE_CHECKING:
    from cluster import Cluster
    from proxy import Proxy


def beats(proxies: list[Proxy]) -> int:
    return sum(len(proxy.bodies("/v1/extend")) for proxy in proxies)


def test_a_lease_is_counted_from_before_the_send_and_ends_early() -> None:
    acquired: Any = type("Fake", (), {"token": 7, "sent_at": clock.now()})
    term = Term(acquired, 10.0)
    assert term.deadline == acquired.sent_at + 9.5
    assert term.next_beat == acquired.sent_at + 10 / 3
    term.renew(acquired.sent_at + 2)
    assert term.deadline == acquired.sent_at + 11.5
    term.renew(acquired.sent_at + 1)
    assert term.deadline == acquired.sent_at + 11.5, "a late answer does not shorten it"
    assert term.look() is None
    term.deadline = clock.now()
    lost = term.look()
    assert lost is not None
    assert lost.reason == "expired"
    term.renew(clock.now())
    assert term.look() is lost, "once lost it stays lost"


def test_heartbeats_keep_a_record_and_its_end_releases_it(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    with proxied.lease("lease", key, lease=0.6) as held:
        wait_for(lambda: beats(proxies) >= 5, "heartbeats for more than a lease")
        held.check()
        record = client.get("lease", key)
        assert isinstance(record, RecordInProgress)
        assert record.token == held.token
    assert isinstance(client.get("lease", key), Absent)


def test_no_heartbeat_is_sent_once_a_release_began(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    held = proxied.lease("lease", key, lease=0.3)
    release = proxies[0].fault("hold", "/v1/release")
    with held:
        wait_for(lambda: beats(proxies) >= 1, "a heartbeat")
        releasing = threading.Thread(target=held.release)
        releasing.start()
        wait_for(release.met.is_set, "the release is under way")
        after = beats(proxies)
        # The cluster tells when two heartbeats would have been due: a lease of that length ends.
        assert isinstance(client.acquire("lease", f"{key}-time", lease=0.3), Acquired)
        assert isinstance(client.acquire("lease", f"{key}-time", wait=5), Acquired)
        assert beats(proxies) == after
        release.go.set()
        releasing.join()


def test_a_definite_loss_is_known_at_once(client: Client, key: str) -> None:
    with client.lease("lease", key, lease=3) as held:
        client.release("lease", key, held.token)
        assert held.lost.wait(2)
        assert held.deadline > clock.now(), "the next heartbeat told, not the deadline"
        with pytest.raises(LeaseLost) as lost:
            held.check()
        assert lost.value.reason == "absent"
        with pytest.raises(LeaseLost):
            held.complete()


def test_lost_is_set_before_another_can_steal(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    with proxied.lease("lease", key, lease=0.6) as held:
        wait_for(lambda: beats(proxies) >= 2, "heartbeats")
        for proxy in proxies:
            proxy.go_down()
        lost_at: list[float] = []

        def watch() -> None:
            held.lost.wait()
            lost_at.append(clock.now())

        watcher = threading.Thread(target=watch)
        watcher.start()
        stolen = client.acquire("lease", key, wait=10)
        stolen_at = clock.now()
        assert held.lost.is_set()
        watcher.join()
        assert isinstance(stolen, Acquired)
        assert stolen.took_over is not None
        assert stolen.took_over.token == held.token
        assert lost_at[0] < stolen_at
        for proxy in proxies:
            proxy.come_up()
        with pytest.raises(LeaseLost) as refused:
            held.complete()
        assert refused.value.current_token == stolen.token


def test_a_node_that_hangs_does_not_cost_the_lease(proxies: list[Proxy], key: str) -> None:
    endpoints = [proxy.endpoint for proxy in proxies]
    with Client(endpoints, follow_leader=False) as client:
        with client.lease("lease", key, lease=0.9) as held:
            fault = proxies[0].fault("hold", "/v1/extend")
            wait_for(fault.met.is_set, "a heartbeat hangs")
            wait_for(lambda: len(proxies[1].bodies("/v1/extend")) >= 3, "others go elsewhere")
            held.check()


def test_heartbeats_go_on_through_an_election(cluster: Cluster, key: str) -> None:
    leader = cluster.leader()
    with Client(cluster.endpoints) as client, client.lease("lease", key, lease=6) as held:
        before = held.deadline
        cluster.kill(leader)
        try:
            wait_for(lambda: held.deadline > before, "a heartbeat after the election")
            held.check()
            held.complete(Payload.of_text("done"))
        finally:
            cluster.restart(leader)


def test_heartbeats_that_fail_flood_nobody(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    for proxy in proxies:
        proxy.fault("cut", "/v1/extend", times=1_000_000)
    with proxied.lease("lease", key, lease=0.1) as held:
        assert held.lost.wait(5)
        before = beats(proxies)
        assert isinstance(client.acquire("lease", f"{key}-time", lease=0.5), Acquired)
        assert isinstance(client.acquire("lease", f"{key}-time", wait=5), Acquired)
        assert 1 <= beats(proxies) - before <= 60, "in half a second"


def test_a_complete_that_was_tried_keeps_the_record(client: Client, key: str) -> None:
    with pytest.raises(PayloadTooLarge), client.lease("lease", key, lease=30) as held:
        held.complete(Payload(bytes(2 << 20)))
    record = client.get("lease", key)
    assert isinstance(record, RecordInProgress)
    assert record.token == held.token
    client.complete("lease", key, held.token, Payload.of_text("less"))


def test_less_can_be_completed_after_too_much(client: Client, key: str) -> None:
    with client.lease("lease", key) as held:
        with pytest.raises(PayloadTooLarge):
            held.complete(Payload(bytes(2 << 20)))
        held.check()
        held.complete(Payload.of_text("less"))
    assert isinstance(client.get("lease", key), RecordComplete)
    with pytest.raises(AlreadyComplete) as complete:
        client.lease("lease", key)
    assert complete.value.replay.payload == Payload.of_text("less")


def test_a_held_record_gives_no_lease(client: Client, key: str) -> None:
    with client.lease("lease", key) as held:
        with pytest.raises(AlreadyInProgress) as busy:
            client.lease("lease", key)
        assert (busy.value.token, busy.value.holder) == (held.token, "test")


def test_asyncio_holds_a_lease(
    cluster: Cluster, proxies: list[Proxy], client: Client, key: str
) -> None:
    async def until(condition: Any, what: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, wait_for, condition, what)

    async def hold() -> None:
        endpoints = [proxy.endpoint for proxy in proxies]
        async with AsyncClient(endpoints, follow_leader=False) as mine:
            async with await mine.lease("lease", key, lease=0.6) as held:
                await until(lambda: beats(proxies) >= 5, "heartbeats for more than a lease")
                held.check()
            assert isinstance(client.get("lease", key), Absent)
            after = beats(proxies)
            async with await mine.lease("lease", key, lease=0.6) as held:
                await until(lambda: beats(proxies) > after, "a heartbeat")
                for proxy in proxies:
                    proxy.go_down()
                async with AsyncClient(cluster.endpoints) as thief:
                    stealing = asyncio.ensure_future(thief.acquire("lease", key, wait=10))
                    await held.lost.wait()
                    assert not stealing.done()
                    stolen = await stealing
                assert isinstance(stolen, Acquired)
                for proxy in proxies:
                    proxy.come_up()
                with pytest.raises(LeaseLost):
                    await held.complete()

    asyncio.run(hold())


def test_a_definite_loss_is_known_at_once_to_asyncio(
    cluster: Cluster, client: Client, key: str
) -> None:
    async def lose() -> None:
        async with AsyncClient(cluster.endpoints) as mine:
            async with await mine.lease("lease", key, lease=3) as held:
                client.release("lease", key, held.token)
                await asyncio.wait_for(held.lost.wait(), 2)
                assert held.deadline > clock.now()

    asyncio.run(lose())
