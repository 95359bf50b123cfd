"""The persistence layer under Powertools' own idempotency utility."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, Callable

import pytest
from aws_lambda_powertools.utilities.idempotency import (
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyItemNotFoundError,
    IdempotencyPersistenceLayerError,
    IdempotencyValidationError,
)

from tenure import Absent, Acquired, Client, LeaseLost, RecordComplete, RecordInProgress
from tenure.powertools import TenurePersistenceLayer, record_key

if TYPE_CHECKING:
    from proxy import Proxy


class Context:
    """What a Lambda function is told of its invocation."""

    function_name = "pay"

    def __init__(self, left_ms: int = 30_000) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


def handler(
    client: Client, action: Callable[[dict[str, Any]], Any], **config: Any
) -> tuple[Callable[..., Any], TenurePersistenceLayer]:
    """A Lambda handler that runs ``action`` once for each event's id."""
    config.setdefault("event_key_jmespath", "id")
    store = TenurePersistenceLayer(client, scope="lambda")

    @idempotent(persistence_store=store, config=IdempotencyConfig(**config))
    def pay(event: dict[str, Any], context: Any) -> Any:
        return action(event)

    return pay, store


class Action:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> dict[str, Any]:
        self.events.append(event)
        return {"paid": event["id"], "run": len(self.events)}


def stored_key(store: TenurePersistenceLayer, event: dict[str, Any]) -> str:
    found = store._get_hashed_idempotency_key(event)
    assert found is not None
    return record_key(found)


def test_a_duplicate_is_handed_the_response(client: Client, key: str) -> None:
    action = Action()
    pay, store = handler(client, action, expires_after_seconds=120)
    event = {"id": key}
    first = pay(event, Context())
    assert pay(event, Context()) == first == {"paid": key, "run": 1}
    record = client.get("lambda", stored_key(store, event))
    assert isinstance(record, RecordComplete)
    assert record.payload is not None
    assert record.payload.type == "application/json"
    assert 110_000 <= record.expires_ms - record.completed_ms <= 120_000
    assert len(action.events) == 1
    assert pay({"id": f"{key}-other"}, Context()) == {"paid": f"{key}-other", "run": 2}


def test_a_response_of_nothing_is_a_response(client: Client, key: str) -> None:
    events: list[Any] = []
    pay, _ = handler(client, lambda event: events.append(event))
    assert pay({"id": key}, Context()) is None
    assert pay({"id": key}, Context()) is None
    assert len(events) == 1


def test_a_duplicate_while_it_runs_is_refused(client: Client, key: str) -> None:
    seen: list[Any] = []

    def action(event: dict[str, Any]) -> str:
        record = client.get("lambda", stored_key(store, event))
        seen.append(record)
        with pytest.raises(IdempotencyAlreadyInProgressError):
            pay(event, Context())
        return "paid"

    pay, store = handler(client, action)
    assert pay({"id": key}, Context(20_000)) == "paid"
    assert pay({"id": key}, Context()) == "paid"
    (record,) = seen
    assert isinstance(record, RecordInProgress)
    assert 19_000 <= record.lease_until_ms - record.acquired_ms <= 20_000, "the time that is left"


def test_an_invocation_that_timed_out_is_taken_over(client: Client, key: str) -> None:
    """And its late response does not replace its successor's."""
    action = Action()
    event = {"id": key}

    def slow(event: dict[str, Any]) -> str:
        # Its lease runs out; another environment takes over, and responds.
        client.wait("lambda", stored_key(store, event), 10)
        assert other(event, Context()) == {"paid": key, "run": 1}
        return "late"

    other, _ = handler(client, action)
    pay, store = handler(client, slow)
    # Both have the same function name, and so the same record.
    with pytest.raises(IdempotencyPersistenceLayerError) as late:
        pay(event, Context(100))
    cause = late.value.__cause__
    assert isinstance(cause, LeaseLost)
    assert cause.reason == "completed"
    assert pay(event, Context()) == {"paid": key, "run": 1}
    assert len(action.events) == 1


def test_an_invocation_that_was_taken_over_does_not_release(client: Client, key: str) -> None:
    event = {"id": key}

    def slow(event: dict[str, Any]) -> str:
        stolen = client.acquire("lambda", stored_key(store, event), wait=10)
        assert isinstance(stolen, Acquired)
        raise RuntimeError("late")

    pay, store = handler(client, slow)
    with pytest.raises(RuntimeError, match="late"):
        pay(event, Context(100))
    assert isinstance(client.get("lambda", stored_key(store, event)), RecordInProgress)


def test_an_exception_releases(client: Client, key: str) -> None:
    def fail(event: dict[str, Any]) -> None:
        raise RuntimeError("no")

    pay, store = handler(client, fail)
    with pytest.raises(RuntimeError, match="no"):
        pay({"id": key}, Context())
    assert isinstance(client.get("lambda", stored_key(store, {"id": key})), Absent)
    with pytest.raises(RuntimeError, match="no"):
        pay({"id": key}, Context())


@pytest.mark.parametrize("hash_function", ["md5", "sha256", "sha512"])
@pytest.mark.parametrize("use_local_cache", [False, True])
def test_another_payload_for_the_same_key_is_refused(
    client: Client, key: str, hash_function: str, use_local_cache: bool
) -> None:
    action = Action()
    pay, _ = handler(
        client,
        action,
        payload_validation_jmespath="cents",
        hash_function=hash_function,
        use_local_cache=use_local_cache,
    )
    first = pay({"id": key, "cents": 990}, Context())
    assert pay({"id": key, "cents": 990}, Context()) == first
    with pytest.raises(IdempotencyValidationError):
        pay({"id": key, "cents": 1990}, Context())
    assert len(action.events) == 1


def test_another_payload_while_it_runs_is_refused(client: Client, key: str) -> None:
    def action(event: dict[str, Any]) -> str:
        with pytest.raises(IdempotencyValidationError):
            pay({**event, "cents": 1990}, Context())
        return "paid"

    pay, _ = handler(client, action, payload_validation_jmespath="cents")
    assert pay({"id": key, "cents": 990}, Context()) == "paid"


def test_the_local_cache_answers_without_the_cluster(
    proxied: Client, proxies: list[Proxy], client: Client, key: str
) -> None:
    action = Action()
    pay, _ = handler(proxied, action, use_local_cache=True)
    other, _ = handler(client, action, use_local_cache=True)
    first = pay({"id": key}, Context())
    assert other({"id": key}, Context()) == first, "it is in the cluster too"
    sent = sum(len(proxy.seen) for proxy in proxies)
    for proxy in proxies:
        proxy.go_down()
    assert pay({"id": key}, Context()) == first
    assert sum(len(proxy.seen) for proxy in proxies) == sent
    assert len(action.events) == 1


def test_a_race_of_eight_threads_runs_it_once(client: Client, key: str) -> None:
    action = Action()
    pay, _ = handler(client, action)
    everyone = threading.Barrier(8)

    def race() -> Any:
        everyone.wait()
        try:
            return pay({"id": key}, Context())
        except IdempotencyAlreadyInProgressError:
            return "in progress"

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = [ended.result() for ended in [threads.submit(race) for _ in range(8)]]
    assert len(action.events) == 1
    paid = {"paid": key, "run": 1}
    assert paid in answers
    assert all(answer in (paid, "in progress") for answer in answers)
    assert pay({"id": key}, Context()) == paid


def test_a_function_without_a_context_is_protected_as_long_as_it_is_told(
    client: Client, key: str
) -> None:
    for lease, expected in ((5.0, 5_000), (None, 60_000)):
        store = TenurePersistenceLayer(client, scope="lambda", lease=lease)
        config = IdempotencyConfig(expires_after_seconds=60)
        records: list[Any] = []

        @idempotent_function(  # type: ignore[untyped-decorator]
            data_keyword_argument="order", persistence_store=store, config=config
        )
        def pay(
            order: str, store: TenurePersistenceLayer = store, records: list[Any] = records
        ) -> str:
            found = store._get_hashed_idempotency_key(order)  # type: ignore[arg-type]
            records.append(client.get("lambda", record_key(found or "")))
            return "paid"

        with pytest.warns(UserWarning, match="remaining time"):
            assert pay(order=f"{key}-{lease}") == "paid"
        (record,) = records
        assert isinstance(record, RecordInProgress)
        left = record.lease_until_ms - record.acquired_ms
        assert expected - 1000 <= left <= expected


def test_records_can_be_read_by_the_utility(client: Client, key: str) -> None:
    pay, store = handler(client, Action())
    store.configure(IdempotencyConfig(event_key_jmespath="id"), "f")
    with pytest.raises(IdempotencyItemNotFoundError):
        store.get_record({"id": key})
    pay({"id": key}, Context())
    record = store.get_record({"id": key})
    assert record is not None
    assert record.status == "COMPLETED"
    assert record.response_json_as_dict() == {"paid": key, "run": 1}


def test_long_names_fit_into_a_record(client: Client, key: str) -> None:
    assert record_key("f#1") == "f#1"
    assert len(record_key("f" * 300)) <= 255
    assert record_key("f" * 300) != record_key("f" * 301)
