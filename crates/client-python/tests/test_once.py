"""once: an action runs once, whatever happens."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cluster import wait_for
from tenure import (
    Absent,
    Acquired,
    AlreadyInProgress,
    AsyncClient,
    Client,
    FingerprintMismatch,
    LeaseLost,
    NoResult,
    NotRecorded,
    OutcomeUnknown,
    Payload,
    Ran,
    RecordComplete,
    RecordInProgress,
    Replayed,
    ResultNotSerializable,
    ResultTooLarge,
    Unavailable,
    current_lease,
    fingerprint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster
    from proxy import Proxy


class Sink:
    """Counts what it is told to do, and by which token."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.tokens: list[int] = []

    def __call__(self) -> Any:
        held = current_lease()
        assert held is not None
        self.tokens.append(held.token)
        return self.result

    async def later(self) -> Any:
        return self()


def test_duplicates_are_handed_the_result(client: Client, cluster: Cluster, key: str) -> None:
    sink = Sink({"sent": ["a", 1, None]})
    assert client.once("once", key, sink) == Ran(sink.result)
    assert client.once("once", key, sink) == Replayed(sink.result)
    with Client(cluster.endpoints) as other:
        assert other.once("once", key, sink) == Replayed(sink.result)
    assert len(sink.tokens) == 1
    assert current_lease() is None
    record = client.get("once", key)
    assert isinstance(record, RecordComplete)
    assert record.token == sink.tokens[0]
    assert record.payload == Payload.of_json(sink.result)


@pytest.mark.parametrize("result", [None, "", 0, [], False])
def test_results_that_look_like_nothing_are_results(
    client: Client, key: str, result: object
) -> None:
    sink = Sink(result)
    assert client.once("once", key, sink) == Ran(result)
    assert client.once("once", key, sink) == Replayed(result)


def test_a_decorated_function_runs_once_for_its_arguments(client: Client, key: str) -> None:
    ran: list[str] = []

    @client.once("once", key=lambda order, **_: f"{key}-{order}")
    def send(order: str, *, to: str) -> str:
        """Sends."""
        ran.append(order)
        return f"{order} to {to}"

    assert send("1", to="a") == "1 to a"
    assert send("1", to="b") == "1 to a"
    assert send("2", to="b") == "2 to b"
    assert ran == ["1", "2"]
    assert (send.__name__, send.__doc__) == ("send", "Sends.")


def test_the_same_name_for_another_request_is_refused(client: Client, key: str) -> None:
    @client.once("once", key, fingerprint=lambda cents: fingerprint({"cents": cents}))
    def charge(cents: int) -> int:
        return cents

    assert charge(990) == 990
    assert charge(990) == 990
    with pytest.raises(FingerprintMismatch):
        charge(1990)


def test_an_exception_releases(client: Client, key: str) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        client.once("once", key, fail)
    assert isinstance(client.get("once", key), Absent)
    sink = Sink("ok")
    assert client.once("once", key, sink) == Ran("ok")


def test_an_exception_goes_on_when_the_release_fails(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    def fail() -> None:
        for proxy in proxies:
            proxy.go_down()
        raise RuntimeError("no")

    with Client([proxy.endpoint for proxy in proxies], timeout=0.2, follow_leader=False) as client:
        with pytest.raises(RuntimeError, match="no"):
            client.once("once", key, fail)


def test_concurrent_duplicates_of_a_process_make_one_acquire(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    sink = Sink("ok")
    hold = proxies[0].fault("hold", "/v1/acquire")
    waiting: Any = proxied._flights.condition
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        calls = [
            threads.submit(lambda: proxied.once("once", key, sink, wait=20)) for _ in range(16)
        ]
        try:
            wait_for(hold.met.is_set, "one acquires")
            wait_for(lambda: len(waiting._waiters) == 15, "the others wait for it")
        finally:
            hold.go.set()
        outcomes = [call.result() for call in calls]
    assert {outcome.value for outcome in outcomes} == {"ok"}
    assert sum(isinstance(outcome, Ran) for outcome in outcomes) == len(sink.tokens) == 1
    assert sum(len(proxy.bodies("/v1/acquire")) for proxy in proxies) == 1


def test_whoever_waits_in_the_process_gets_what_any_duplicate_gets(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    hold = proxies[0].fault("hold", "/v1/complete")
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: proxied.once("once", key, Sink(("a", {1: 2}))))
        try:
            wait_for(hold.met.is_set, "the first completes")
            second = threads.submit(lambda: proxied.once("once", key, Sink(), wait=20))
            waiting: Any = proxied._flights.condition
            wait_for(lambda: len(waiting._waiters) == 1, "the second waits")
        finally:
            hold.go.set()
        assert first.result() == Ran(("a", {1: 2}))
        assert second.result() == Replayed(["a", {"1": 2}])
    assert proxied.once("once", key, Sink()) == Replayed(["a", {"1": 2}])


def test_a_function_of_the_other_kind_does_no_harm(
    cluster: Cluster, client: Client, key: str
) -> None:
    sink = Sink("ok")
    with pytest.raises(TypeError, match="AsyncClient"):
        client.once("once", key, sink.later)
    assert isinstance(client.get("once", key), Absent), "it did not run"

    async def run() -> None:
        async with AsyncClient(cluster.endpoints) as mine:
            plain: Any = sink
            assert await mine.once("once", key, plain) == Ran("ok")
            assert await mine.once("once", key, plain) == Replayed("ok")

    asyncio.run(run())
    assert len(sink.tokens) == 1


def test_clients_that_race_run_it_once(cluster: Cluster, key: str) -> None:
    sink = Sink("ok")

    def run(node: int) -> Any:
        with Client(cluster.endpoints[node:] + cluster.endpoints[:node]) as mine:
            return mine.once("once", key, sink, wait=20)

    with concurrent.futures.ThreadPoolExecutor(9) as threads:
        outcomes = list(threads.map(run, [0, 1, 2] * 3))
    assert {outcome.value for outcome in outcomes} == {"ok"}
    assert sum(isinstance(outcome, Ran) for outcome in outcomes) == len(sink.tokens) == 1


def test_a_duplicate_that_may_not_wait_is_told_who_runs_it(client: Client, key: str) -> None:
    def outer() -> str:
        with pytest.raises(AlreadyInProgress) as here:
            client.once("once", key, Sink())
        held = current_lease()
        assert held is not None
        assert (here.value.holder, here.value.token) == ("test", held.token)
        return "ok"

    assert client.once("once", key, outer) == Ran("ok")


def test_after_an_exception_a_waiting_duplicate_has_its_own_try(client: Client, key: str) -> None:
    begun, go = threading.Event(), threading.Event()
    sink = Sink("second")

    def fail() -> None:
        begun.set()
        go.wait()
        raise RuntimeError("first")

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: client.once("once", key, fail))
        begun.wait()
        second = threads.submit(lambda: client.once("once", key, sink, wait=20))
        wait_for(second.running, "the second waits")
        go.set()
        with pytest.raises(RuntimeError, match="first"):
            first.result()
        assert second.result() == Ran("second")


def test_the_leader_dies_while_an_action_runs(cluster: Cluster, client: Client, key: str) -> None:
    leader = cluster.leader()
    sink = Sink("ok")

    def run() -> Any:
        cluster.kill(leader)
        return sink()

    try:
        assert client.once("once", key, run, lease=10) == Ran("ok")
        assert client.once("once", key, run) == Replayed("ok")
    finally:
        cluster.restart(leader)
    assert len(sink.tokens) == 1


def test_what_ran_and_is_not_recorded_is_not_released(
    proxies: list[Proxy], client: Client, key: str
) -> None:
    def run() -> str:
        for proxy in proxies:
            proxy.go_down()
        return "value"

    endpoints = [proxy.endpoint for proxy in proxies]
    with Client(endpoints, timeout=0.3, follow_leader=False) as mine:
        with pytest.raises(NotRecorded) as ran:
            mine.once("once", key, run)
    assert ran.value.value == "value"
    assert isinstance(ran.value.__cause__, Unavailable)
    assert not ran.value.can_commit
    record = client.get("once", key)
    assert isinstance(record, RecordInProgress)
    # Whoever was handed the error can still make it complete.
    client.complete("once", key, ran.value.token, Payload.of_json(ran.value.value))
    assert client.once("once", key, Sink()) == Replayed("value")


def test_a_complete_whose_answers_are_lost_may_have_committed(
    proxies: list[Proxy], client: Client, key: str
) -> None:
    for proxy in proxies:
        proxy.fault("lose", "/v1/complete", times=1000)
    endpoints = [proxy.endpoint for proxy in proxies]
    with Client(endpoints, timeout=0.3, follow_leader=False) as mine:
        with pytest.raises(NotRecorded) as ran:
            mine.once("once", key, Sink("value"))
    assert isinstance(ran.value.__cause__, OutcomeUnknown)
    assert ran.value.can_commit
    assert client.once("once", key, Sink()) == Replayed("value")


def test_a_lost_answer_to_a_complete_is_sent_again(
    proxied: Client, proxies: list[Proxy], key: str
) -> None:
    for proxy in proxies:
        proxy.fault("lose", "/v1/complete", times=1)
    assert proxied.once("once", key, Sink("value")) == Ran("value")
    assert len([body for proxy in proxies for body in proxy.bodies("/v1/complete")]) == 4


def test_whoever_was_stolen_from_does_not_record(client: Client, key: str) -> None:
    def lose() -> str:
        held = current_lease()
        assert held is not None
        client.release("once", key, held.token)
        assert client.once("other", key, Sink("in between")) == Ran("in between")
        assert isinstance(client.acquire("once", key), Acquired)
        return "late"

    with pytest.raises(NotRecorded) as ran:
        client.once("once", key, lose)
    assert isinstance(ran.value.__cause__, LeaseLost)
    assert ran.value.__cause__.reason == "stolen"


def test_a_result_over_the_limit_keeps_the_lease(client: Client, key: str) -> None:
    big = "x" * (1 << 20)
    with pytest.raises(ResultTooLarge) as ran:
        client.once("once", key, Sink(big))
    assert ran.value.value == big
    assert ran.value.size > ran.value.limit == 1 << 20
    assert isinstance(client.get("once", key), RecordInProgress)
    client.complete("once", key, ran.value.token, Payload.of_json("less"))
    assert client.once("once", key, Sink()) == Replayed("less")


def test_a_result_over_the_limit_can_be_shrunk(client: Client, key: str) -> None:
    big = {"id": 5, "body": "x" * (1 << 20)}
    ran = client.once("once", key, Sink(big), shrink=lambda value: {"id": value["id"]})
    assert ran == Ran(big)
    assert client.once("once", key, Sink()) == Replayed({"id": 5})


@pytest.mark.parametrize("result", [object(), float("nan"), {1, 2}, b"bytes"])
def test_a_result_that_is_no_json_does_not_make_the_action_run_again(
    client: Client, key: str, result: object
) -> None:
    sink = Sink(result)
    with pytest.raises(ResultNotSerializable) as ran:
        client.once("once", key, sink)
    assert ran.value.value is result
    assert isinstance(ran.value.__cause__, (TypeError, ValueError))
    with pytest.raises(NoResult):
        client.once("once", key, sink)
    assert len(sink.tokens) == 1


def test_a_stored_result_that_is_no_json_is_not_run_again(client: Client, key: str) -> None:
    held = client.acquire("once", key)
    assert isinstance(held, Acquired)
    client.complete("once", key, held.token, Payload(b"\xff", "image/png"))
    with pytest.raises(NoResult) as known:
        client.once("once", key, Sink())
    assert known.value.payload == Payload(b"\xff", "image/png")


def test_a_codec_of_one_s_own(client: Client, key: str) -> None:
    class Pickle:
        def encode(self, value: Any) -> Payload:
            return Payload(pickle.dumps(value), "application/x-pickle")

        def decode(self, payload: Payload | None) -> Any:
            assert payload is not None
            return pickle.loads(payload.body)

    assert client.once("once", key, Sink({1, 2}), codec=Pickle()) == Ran({1, 2})
    assert client.once("once", key, Sink(), codec=Pickle()) == Replayed({1, 2})


INTERRUPTED = """
import sys, threading
from tenure import Client, current_lease

client = Client(sys.argv[1])

def forever():
    print(current_lease().token, flush=True)
    threading.Event().wait()

client.once("once", sys.argv[2], forever, lease=60)
"""


@pytest.mark.skipif(os.name != "posix", reason="it sends SIGINT")
def test_ctrl_c_releases(cluster: Cluster, client: Client, key: str, tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), ",".join(cluster.endpoints), key]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment) as child:
        assert child.stdout is not None
        assert int(child.stdout.readline()) > 0
        assert isinstance(client.get("once", key), RecordInProgress)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
    assert b"KeyboardInterrupt" in errors
    assert isinstance(client.get("once", key), Absent)


def test_asyncio_runs_it_once(cluster: Cluster, proxies: list[Proxy], key: str) -> None:
    sink = Sink({"sent": 1})

    async def run() -> None:
        endpoints = [proxy.endpoint for proxy in proxies]
        async with AsyncClient(endpoints, follow_leader=False) as client:
            calls = (client.once("once", key, sink.later, wait=20) for _ in range(16))
            outcomes = await asyncio.gather(*calls)
            assert sum(isinstance(outcome, Ran) for outcome in outcomes) == 1
            assert {json.dumps(outcome.value) for outcome in outcomes} == {'{"sent": 1}'}
            acquires = [body for proxy in proxies for body in proxy.bodies("/v1/acquire")]
            assert len(acquires) == 1
        async with AsyncClient(cluster.endpoints) as other:
            assert await other.once("once", key, sink.later) == Replayed(sink.result)

            @other.once("once", key=lambda order: f"{key}-{order}")
            async def send(order: int) -> int:
                return order + len(sink.tokens)

            assert [await send(1), await send(1), await send(2)] == [2, 2, 3]

    asyncio.run(run())
    assert len(sink.tokens) == 1


def test_asyncio_releases_after_an_error_or_a_cancel(
    cluster: Cluster, client: Client, key: str
) -> None:
    async def fail() -> None:
        raise RuntimeError("no")

    async def run() -> None:
        async with AsyncClient(cluster.endpoints) as mine:
            with pytest.raises(RuntimeError, match="no"):
                await mine.once("once", key, fail)
            assert isinstance(client.get("once", key), Absent)
            begun = asyncio.Event()

            async def forever() -> None:
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.ensure_future(mine.once("once", key, forever))
            await begun.wait()
            with pytest.raises(AlreadyInProgress):
                await mine.once("once", key, forever)
            second = asyncio.ensure_future(mine.once("once", key, Sink("second").later, wait=20))
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await second == Ran("second")

    asyncio.run(run())


def test_asyncio_says_what_ran_and_is_not_recorded(
    proxies: list[Proxy], client: Client, key: str
) -> None:
    async def go_down() -> str:
        for proxy in proxies:
            proxy.go_down()
        return "value"

    async def run() -> None:
        endpoints = [proxy.endpoint for proxy in proxies]
        async with AsyncClient(endpoints, timeout=0.3, follow_leader=False) as mine:
            with pytest.raises(ResultTooLarge):
                await mine.once("once", f"{key}-big", Sink("x" * (1 << 20)).later)
            with pytest.raises(ResultNotSerializable):
                await mine.once("once", f"{key}-odd", Sink(object()).later)
            with pytest.raises(NotRecorded) as ran:
                await mine.once("once", key, go_down)
            assert ran.value.value == "value"

    asyncio.run(run())
    assert isinstance(client.get("once", key), RecordInProgress)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    """On its parent's it could read what its parent asked."""
    assert isinstance(proxied.acquire("once", f"{key}-parent"), Acquired)
    assert len(proxies[0].bodies("/v1/cluster")) == 1
    child = os.fork()
    if child == 0:
        ok = isinstance(proxied.acquire("once", f"{key}-child"), Acquired)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(proxies[0].bodies("/v1/cluster")) == 2
    assert isinstance(proxied.acquire("once", key), Acquired)
    assert len(proxies[0].bodies("/v1/cluster")) == 2
    assert isinstance(client.get("once", f"{key}-child"), RecordInProgress)
