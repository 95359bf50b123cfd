"""Calls over connections that break: attempts and tokens are kept, outcomes are honest."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from cluster import wait_for
from tenure import (
    Acquired,
    AsyncClient,
    Client,
    Completed,
    InProgress,
    OutcomeUnknown,
    Payload,
    RecordComplete,
    Released,
    Replay,
    Unavailable,
)

if TYPE_CHECKING:
    from cluster import Cluster
    from proxy import Proxy


def bodies(proxies: list[Proxy], path: str) -> list[dict[str, object]]:
    return [body for proxy in proxies for body in proxy.bodies(path)]


def test_an_acquire_whose_answers_are_lost_keeps_its_attempt(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    for proxy in proxies[:2]:
        proxy.fault("lose", "/v1/acquire")
    held = proxied.acquire("faults", key, lease=20)
    assert isinstance(held, Acquired)
    assert held.resumed, "an earlier send had committed"
    sent = bodies(proxies, "/v1/acquire")
    assert len(sent) == 3
    assert {body["attempt"] for body in sent} == {held.attempt}


def test_lost_answers_to_every_command_are_settled_by_a_resend(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    held = proxied.acquire("faults", key, lease=20)
    assert isinstance(held, Acquired)
    proxies[0].fault("lose", "/v1/extend")
    assert proxied.extend("faults", key, held.token, 30).token == held.token
    proxies[1].fault("lose", "/v1/release")
    assert isinstance(proxied.release("faults", key, held.token), Released)
    again = proxied.acquire("faults", key, lease=20)
    assert isinstance(again, Acquired)
    proxies[2].fault("lose", "/v1/complete")
    done = proxied.complete("faults", key, again.token, Payload.of_text("x"))
    assert isinstance(done, Completed)
    assert done.already_complete
    for proxy in proxies:
        proxy.fault("lose", "/v1/scopes", times=1)
    assert isinstance(proxied.get("faults", key), RecordComplete)
    for proxy in proxies:
        assert all(fault.met.is_set() for fault in proxy.faults if fault.path != "/v1/scopes")


def test_in_progress_does_not_settle_a_lost_acquire(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    """The first send may be the one that holds the record: here another does."""
    proxies[0].fault("cut", "/v1/acquire")
    other = client.acquire("faults", key)
    assert isinstance(other, Acquired)
    with pytest.raises(OutcomeUnknown) as unknown:
        proxied.acquire("faults", key)
    assert unknown.value.can_commit
    assert isinstance(unknown.value.seen, InProgress)
    # The same attempt again, once the record is free, is the same try.
    client.release("faults", key, other.token)
    held = proxied.acquire("faults", key, attempt=unknown.value.attempt)
    assert isinstance(held, Acquired)


def test_a_write_whose_answers_are_all_lost_is_unknown_and_may_have_committed(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    held = client.acquire("faults", key)
    assert isinstance(held, Acquired)
    for proxy in proxies:
        proxy.fault("lose", "/v1/complete", times=1000)
    with pytest.raises(OutcomeUnknown) as unknown:
        proxied.complete("faults", key, held.token, timeout=0.4)
    assert unknown.value.can_commit
    assert isinstance(client.acquire("faults", key), Replay)


def test_a_cut_connection_at_rest_is_noticed_before_anything_is_sent(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    """A send on it would be unknown, and in_progress no answer."""
    assert isinstance(client.acquire("faults", key), Acquired)
    assert isinstance(proxied.acquire("faults", key), InProgress)
    for proxy in proxies:
        proxy.go_down()
        proxy.come_up()
    assert isinstance(proxied.acquire("faults", key), InProgress)


def test_a_cluster_out_of_reach_is_unavailable_and_nothing_was_proposed(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    for proxy in proxies:
        proxy.go_down()
    with pytest.raises(Unavailable) as unavailable:
        proxied.acquire("faults", key, timeout=0.3)
    assert not unavailable.value.can_commit
    assert not bodies(proxies, "/v1/acquire")


def test_a_node_that_hangs_is_left_for_another(
    proxies: list[Proxy], cluster: Cluster, key: str
) -> None:
    endpoints = [proxy.endpoint for proxy in proxies]
    with Client(endpoints, send_timeout=0.3, follow_leader=False) as impatient:
        held = proxies[0].fault("hold", "/v1/acquire")
        answer = impatient.acquire("faults", key)
        assert isinstance(answer, Acquired)
        assert answer.resumed
        held.go.set()


def test_a_node_that_answers_nothing_at_all_leaves_the_outcome_known(
    proxies: list[Proxy], key: str
) -> None:
    """The first question on a connection is for the cluster: nothing else was sent."""
    endpoints = [proxy.endpoint for proxy in proxies]
    with Client(endpoints, dial_timeout=0.2, follow_leader=False) as impatient:
        proxies[0].fault("hold", "/v1/cluster")
        answer = impatient.acquire("faults", key)
        assert isinstance(answer, Acquired)
        assert not answer.resumed
        assert len(bodies(proxies, "/v1/acquire")) == 1


def test_a_call_ends_by_its_deadline_whatever_a_node_does(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    for proxy in proxies:
        proxy.fault("hold", "/v1/acquire", times=100)
    with pytest.raises(OutcomeUnknown):
        proxied.acquire("faults", key, timeout=0.2)

    async def same() -> None:
        endpoints = [proxy.endpoint for proxy in proxies]
        async with AsyncClient(endpoints, follow_leader=False) as client:
            with pytest.raises(OutcomeUnknown):
                await client.acquire("faults", key, timeout=0.2)

    asyncio.run(same())


def test_asyncio_keeps_attempts_too(proxies: list[Proxy], key: str) -> None:
    async def acquire() -> None:
        endpoints = [proxy.endpoint for proxy in proxies]
        async with AsyncClient(endpoints, follow_leader=False) as client:
            for proxy in proxies[:2]:
                proxy.fault("lose", "/v1/acquire")
            held = await client.acquire("faults", key)
            assert isinstance(held, Acquired)
            assert held.resumed
            assert {body["attempt"] for body in bodies(proxies, "/v1/acquire")} == {held.attempt}
            for proxy in proxies:
                proxy.go_down()
                proxy.come_up()
            assert isinstance(await client.acquire("faults", key), InProgress)

    asyncio.run(acquire())


def test_a_wait_survives_the_loss_of_its_node(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    held = client.acquire("faults", key)
    assert isinstance(held, Acquired)
    answers: list[object] = []

    def wait() -> None:
        answers.append(proxied.acquire("faults", key, wait=20))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_for(lambda: proxies[0].bodies("/v1/acquire"), "the wait was sent")
    proxies[0].go_down()
    wait_for(lambda: proxies[1].bodies("/v1/acquire"), "it was sent again")
    client.complete("faults", key, held.token)
    waiter.join()
    (answer,) = answers
    assert isinstance(answer, Replay)
    first, second = proxies[0].bodies("/v1/acquire")[0], proxies[1].bodies("/v1/acquire")[0]
    assert first["attempt"] == second["attempt"]
    assert second["wait_ms"] < first["wait_ms"], "the time waited counts"


def test_calls_go_on_through_the_death_of_a_leader(
    cluster: Cluster, client: Client, key: str
) -> None:
    held = client.acquire("faults", key, lease=60)
    assert isinstance(held, Acquired)
    leader = cluster.leader()
    cluster.kill(leader)
    try:
        assert client.extend("faults", key, held.token, 60).token == held.token
        client.complete("faults", key, held.token)
        assert isinstance(client.acquire("faults", key), Replay)
    finally:
        cluster.restart(leader)
