"""What a call raises, and whether its write can still commit.

``can_commit`` is the question to ask first. False: nothing changed and nothing will. True: the
command may have committed, or still will; send it again with the same attempt or token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.answers import Payload, Replay


class TenureError(Exception):
    """Every error of this package."""

    can_commit: bool = False
    """Whether the write that was asked for may have committed, or still will."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[TenureError], args: tuple[Any, ...], state: dict[str, Any]) -> TenureError:
    """Makes an error from its pickle: its fields are not the arguments of its message."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InvalidArgument(TenureError, ValueError):
    """A value that no request may carry. ``field`` names it, where one can be named."""

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail if field is None or field in detail else f"{field}: {detail}")
        self.detail = detail
        self.field = field


class Forbidden(TenureError):
    """The node does not go by the name in the endpoint: use its IP address, or configure it."""


class Refused(TenureError):
    """A node refused the request for a reason that this version of the package does not know."""

    def __init__(self, detail: str, code: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.detail = detail
        self.code = code


class StorageFull(TenureError):
    """The disk is almost full: reads, release and purge go on, nothing else does."""


class PayloadTooLarge(TenureError):
    """The payload is over the limit (1 MiB). The lease stays: complete again with less."""

    def __init__(self, limit: int, size: int) -> None:
        super().__init__(f"the payload has {size} bytes, the limit is {limit}")
        self.limit = limit
        self.size = size


class FingerprintMismatch(TenureError):
    """The name stands for another request: the key was used before with another fingerprint."""

    def __init__(self, stored: str, received: str) -> None:
        super().__init__(f"the record's fingerprint is {stored}, the request's is {received}")
        self.stored = stored
        self.received = received


class TooLate(TenureError):
    """The command's ``not_after_ms`` had passed when it was decided."""


class LeaseLost(TenureError):
    """The token holds nothing: ``reason`` is "absent", "stolen" or "completed".

    A :class:`Lease` says "expired" when no heartbeat was answered in time: somebody may steal it.
    ``current_token`` is the token of whoever stole or completed the record.
    """

    def __init__(self, reason: str, current_token: int | None = None) -> None:
        super().__init__(f"the token holds nothing: the record is {reason}")
        self.reason = reason
        self.current_token = current_token


class Unavailable(TenureError):
    """No node could take the request before the deadline, and nothing was proposed."""


class OutcomeUnknown(TenureError):
    """The command may have committed, or still will.

    Safe to do: the same again, with the same ``attempt`` (acquire) or token (the others). ``seen``
    is the error or answer of a later send, which does not tell what became of the earlier one.
    """

    can_commit = True

    def __init__(
        self, detail: str, *, seen: object | None = None, attempt: str | None = None
    ) -> None:
        super().__init__(f"the outcome is unknown: {detail}")
        self.detail = detail
        self.seen = seen
        self.attempt = attempt


class AlreadyInProgress(TenureError):
    """Another attempt holds the record, and the wait is over. The action did not run here."""

    def __init__(
        self,
        retry_after_ms: int,
        holder: str,
        token: int | None,
        fingerprint_differs: bool = False,
    ) -> None:
        super().__init__(f"held by {holder or 'another attempt'} for {retry_after_ms} ms more")
        self.retry_after_ms = retry_after_ms
        self.holder = holder
        self.token = token
        self.fingerprint_differs = fingerprint_differs


class AlreadyComplete(TenureError):
    """The record is COMPLETE, so there is no lease to be had. ``replay`` is its result."""

    def __init__(self, replay: Replay) -> None:
        super().__init__("the record is complete")
        self.replay = replay


class NotRecorded(TenureError):
    """The action ran and returned ``value``, but the record does not hold it.

    The record is not released, because the action ran. ``__cause__`` says what kept it. If that is
    :class:`OutcomeUnknown`, the record may be COMPLETE all the same. Otherwise it is held by
    ``token`` until its lease has run out and somebody steals it: until then
    ``client.complete(scope, key, token, payload)`` still makes it COMPLETE.
    """

    def __init__(self, detail: str, *, value: object, token: int, can_commit: bool) -> None:
        super().__init__(f"the action ran, its result is not recorded: {detail}")
        self.value = value
        self.token = token
        self.can_commit = can_commit


class ResultTooLarge(NotRecorded):
    """The result is over the payload limit. The lease is kept: complete with less.

    ``once(..., shrink=...)`` does so by itself.
    """

    def __init__(self, *, value: object, token: int, limit: int, size: int) -> None:
        detail = f"it has {size} bytes, the limit is {limit}"
        super().__init__(detail, value=value, token=token, can_commit=False)
        self.limit = limit
        self.size = size


class ResultNotSerializable(NotRecorded):
    """The codec cannot encode ``value``. ``__cause__`` is what it raised.

    The record is COMPLETE without a result, so that no duplicate runs the action again: they get
    :class:`NoResult`.
    """

    def __init__(self, *, value: object, token: int) -> None:
        super().__init__("it cannot be serialized", value=value, token=token, can_commit=False)


class NoResult(TenureError):
    """The action ran before, but what it returned cannot be had. Do not run it again.

    Either it could not be serialized then, or ``payload`` is not what the codec reads.
    """

    def __init__(self, detail: str, payload: Payload | None) -> None:
        super().__init__(f"the action ran before: {detail}")
        self.payload = payload
