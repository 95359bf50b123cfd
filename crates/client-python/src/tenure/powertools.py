"""Idempotency of AWS Lambda Powertools for Python, kept in a Tenure cluster.

    from aws_lambda_powertools.utilities.idempotency import idempotent
    from tenure import Client
    from tenure.powertools import TenurePersistenceLayer

    store = TenurePersistenceLayer(Client("10.0.0.1:7601,10.0.0.2:7601"), scope="payments")

    @idempotent(persistence_store=store)
    def handler(event, context): ...

What the utility stores becomes a record: INPROGRESS is an acquire whose lease is the time that the
invocation has left, COMPLETED a complete whose payload is the response, an exception a release; the
hash of payload validation is the fingerprint. Unlike with a database, an invocation that was taken
for dead cannot overwrite its successor's result: its token is refused.

A layer keeps the token between the calls of one invocation, by thread: an invocation is expected to
stay on its thread, as the utility's do.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time

from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import (
    STATUS_CONSTANTS,
    DataRecord,
)

from tenure.answers import Absent, Acquired, InProgress, Payload, RecordInProgress, Replay
from tenure.client import Client
from tenure.commands import Duration, milliseconds
from tenure.errors import FingerprintMismatch, LeaseLost, TenureError

KEY_CHARACTERS = 255
"""Longest key of a record."""
LEASE_MAX_MS = 24 * 60 * 60 * 1000
"""Longest lease."""
LEASE_MIN_MS = 2
"""Shortest lease."""
_FINGERPRINT = re.compile("[0-9a-fA-F]{16,128}")


class TenurePersistenceLayer(BasePersistenceLayer):
    """Stores idempotency records as records of ``scope``.

    ``lease`` is how long an invocation is protected whose remaining time is not known because no
    Lambda context was registered. Without it, that is as long as its record is kept, as with the
    utility's other stores: then nobody takes over when it dies. A client's ``timeout`` should be
    shorter than the function's.
    """

    def __init__(
        self, client: Client, *, scope: str = "powertools", lease: Duration | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._client = client
        self._scope = scope
        self._lease_ms = None if lease is None else milliseconds(lease, "lease")
        self._held = threading.local()

    def _put_record(self, data_record: DataRecord) -> None:
        key = record_key(data_record.idempotency_key)
        now_ms = time.time() * 1000
        ttl_ms = _left_ms(data_record.expiry_timestamp, now_ms)
        lease_ms = self._lease_ms or ttl_ms
        if data_record.in_progress_expiry_timestamp is not None:
            lease_ms = data_record.in_progress_expiry_timestamp - int(now_ms)
        lease_ms = min(max(lease_ms, LEASE_MIN_MS), LEASE_MAX_MS)
        try:
            answer = self._client.acquire(
                self._scope,
                key,
                lease=lease_ms / 1000,
                ttl=ttl_ms / 1000,
                fingerprint=self._fingerprint(data_record),
            )
        except FingerprintMismatch as error:
            raise _other_payload() from error
        if isinstance(answer, Acquired):
            self._tokens[key] = answer.token
            return
        if isinstance(answer, InProgress):
            if answer.fingerprint_differs:
                raise _other_payload()
            # Whoever goes on all the same, as a durable function's replay does, goes on as the
            # holder that it found; should that one be gone by then, its token is refused.
            self._held.found = (key, answer.token)
            expiry_ms = math.ceil(now_ms) + answer.retry_after_ms
            found = _in_progress(data_record, data_record.expiry_timestamp, expiry_ms)
        else:
            found = _completed(data_record, answer, now_ms)
            self._save_to_cache(found)
        raise IdempotencyItemAlreadyExistsError(old_data_record=found)

    def _get_record(self, idempotency_key: str) -> DataRecord:
        now_ms = time.time() * 1000
        record = self._client.get(self._scope, record_key(idempotency_key))
        if isinstance(record, Absent):
            raise IdempotencyItemNotFoundError
        asked = DataRecord(idempotency_key, payload_hash=record.fingerprint or "")
        if isinstance(record, RecordInProgress):
            expiry_s = math.ceil((now_ms + record.ttl_until_ms - record.at.now_ms) / 1000)
            return _in_progress(asked, expiry_s, math.ceil(now_ms) + record.lease_left_ms)
        replay = Replay(
            record.token, record.payload, record.completed_ms, record.expires_ms, record.at
        )
        return _completed(asked, replay, now_ms)

    def _update_record(self, data_record: DataRecord) -> None:
        key = record_key(data_record.idempotency_key)
        ttl_ms = _left_ms(data_record.expiry_timestamp, time.time() * 1000)
        token = self._take_token(key)
        if token is None:
            raise TenureError("this thread did not begin the invocation that it is to complete")
        payload = Payload(data_record.response_data.encode(), "application/json")
        self._client.complete(self._scope, key, token, payload, ttl=ttl_ms / 1000)

    def _delete_record(self, data_record: DataRecord) -> None:
        key = record_key(data_record.idempotency_key)
        token = self._take_token(key)
        if token is None:
            return
        try:
            self._client.release(self._scope, key, token)
        except LeaseLost:
            # It ran into its timeout and was taken over: the record is its successor's.
            return

    @property
    def _tokens(self) -> dict[str, int]:
        """What this thread's invocations hold, by key."""
        tokens: dict[str, int] | None = getattr(self._held, "tokens", None)
        if tokens is None:
            tokens = self._held.tokens = {}
        return tokens

    def _take_token(self, key: str) -> int | None:
        token = self._tokens.pop(key, None)
        if token is not None:
            return token
        found_key, found_token = getattr(self._held, "found", (None, None))
        return found_token if found_key == key else None

    def _fingerprint(self, data_record: DataRecord) -> str | None:
        if not (self.payload_validation_enabled and data_record.payload_hash):
            return None
        if _FINGERPRINT.fullmatch(data_record.payload_hash):
            return data_record.payload_hash
        return hashlib.sha256(data_record.payload_hash.encode()).hexdigest()


def record_key(idempotency_key: str) -> str:
    """The key of a record: the idempotency key, or a hash of one that is too long."""
    if len(idempotency_key) <= KEY_CHARACTERS:
        return idempotency_key
    return f"sha256#{hashlib.sha256(idempotency_key.encode()).hexdigest()}"


def _left_ms(expiry_timestamp: int | None, now_ms: float) -> int:
    if expiry_timestamp is None:
        raise TenureError("the record has no expiry")
    return max(1, int(expiry_timestamp * 1000 - now_ms))


def _in_progress(asked: DataRecord, expiry_s: int | None, lease_until_ms: int) -> DataRecord:
    return DataRecord(
        asked.idempotency_key,
        STATUS_CONSTANTS["INPROGRESS"],
        expiry_s,
        lease_until_ms,
        payload_hash=asked.payload_hash,
    )


def _completed(asked: DataRecord, replay: Replay, now_ms: float) -> DataRecord:
    """Its expiry in this machine's time: what is left of the ttl, from now."""
    expiry_s = math.ceil((now_ms + replay.expires_ms - replay.at.now_ms) / 1000)
    body = b"" if replay.payload is None else replay.payload.body
    return DataRecord(
        asked.idempotency_key,
        STATUS_CONSTANTS["COMPLETED"],
        expiry_s,
        response_data=body.decode(),
        payload_hash=asked.payload_hash,
    )


def _other_payload() -> IdempotencyValidationError:
    return IdempotencyValidationError("Payload does not match stored record for this event key")
