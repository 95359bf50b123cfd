"""How a result becomes a payload, and back."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from tenure.answers import Payload
from tenure.errors import NoResult

NO_RESULT = "application/vnd.tenure.no-result"
"""The type of a payload that says: the action ran, and its result could not be serialized."""


class Codec(Protocol):
    """Turns results into payloads. What :meth:`decode` gives should equal what was encoded."""

    def encode(self, value: Any) -> Payload | None:
        """Raises whatever it likes if it cannot."""

    def decode(self, payload: Payload | None) -> Any:
        """Raises whatever it likes if ``payload`` is not one of its own."""


class Json:
    """Results as JSON. A duplicate gets what JSON keeps: tuples come back as lists, keys as text.

    A record that was completed without a payload, by another program, reads as None.
    """

    def encode(self, value: Any) -> Payload | None:
        """TypeError or ValueError for what is no JSON, NaN and infinities included."""
        return Payload.of_json(value)

    def decode(self, payload: Payload | None) -> Any:
        """ValueError for what is no JSON."""
        return None if payload is None else json.loads(payload.body)


def without_result(error: Exception) -> Payload:
    """What is stored in place of a result that cannot be serialized."""
    return Payload(b"", NO_RESULT, {"error": type(error).__name__})


def decode(codec: Codec, payload: Payload | None) -> Any:
    """The result in a payload, or :class:`NoResult`."""
    if payload is not None and payload.type == NO_RESULT:
        raise NoResult("its result could not be serialized then", payload)
    try:
        return codec.decode(payload)
    except Exception as error:
        raise NoResult("the stored payload is not what the codec reads", payload) from error


def fingerprint(value: object) -> str:
    """A fingerprint of a request: SHA-256 of its JSON with sorted keys. TypeError if it is none.

    >>> fingerprint({"to": "a@example.org", "cents": 990})[:16]
    '6bb89e7eacbae8d5'
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
