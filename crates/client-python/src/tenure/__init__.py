"""Makes an action happen once.

A caller that is about to run an action *acquires* a record named by a scope and a key; exactly one
gets it, runs the action under a lease, and *completes* the record with the result. Every duplicate,
anywhere, is handed that result. :meth:`Client.once` does all of it; the plain commands are there
too. :class:`AsyncClient` is the same for asyncio, :mod:`tenure.powertools` for AWS Lambda.

Invariants
----------

- **P1** An attempt is drawn once for each logical call, and nothing is ever sent again under
  another attempt or token.
- **P2** After a send whose outcome is unknown, a call stays unknown until ``acquired``, ``replay``,
  ``completed``, ``already_complete``, ``extended`` or ``released`` settles it; for a release that
  is sent again, ``absent`` and ``stolen`` count as released.
- **P3** One deadline covers all sends, dials and pauses of a call.
- **P4** A send counts as *not sent* only if no byte of it was handed to a socket.
- **P5** A client belongs to one cluster, the first it meets, and sends no token to another.
- **P6** ``Lease.lost`` is set before anybody else can hold the record, unless the process sleeps:
  the lease is counted from before the send of the last heartbeat that was answered, on a clock that
  counts sleep, and given up a twentieth early. ``lost.is_set()`` is right even after a sleep.
- **P7** No heartbeat is sent once a lease was closed, completed or released.
- **P8** A record whose action ran is never released.

Caveats
-------

- Nothing is kept on disk: whoever must survive a restart stores the attempt before it acquires.
- Resolving a host name may take longer than any deadline: give IP addresses where that matters.
- A process that is interrupted while it acquires may leave the record held for one lease.
- A call under way has a connection to itself: a thousand of them at once dial a thousand.
- A fork while a call is under way may hang the child's calls: fork first, or make the client after.

How it is built: :mod:`tenure.call` and :mod:`tenure.operations` are generators that say what to
send and judge what came of it, without I/O; ``threads`` and ``tasks`` drive them over sockets;
``http1`` is the little of HTTP that they need. That is why the package depends on nothing: the
outcome of a call hinges on whether a byte was handed to a socket, which HTTP libraries do not tell.
"""

from __future__ import annotations

from tenure.aio import AsyncClient, AsyncLease
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
from tenure.client import Client
from tenure.codec import Codec, Json, fingerprint
from tenure.commands import Acquire, Command, Complete, Extend, Release, new_attempt
from tenure.errors import (
    AlreadyComplete,
    AlreadyInProgress,
    FingerprintMismatch,
    Forbidden,
    InvalidArgument,
    LeaseLost,
    NoResult,
    NotRecorded,
    OutcomeUnknown,
    PayloadTooLarge,
    Refused,
    ResultNotSerializable,
    ResultTooLarge,
    StorageFull,
    TenureError,
    TooLate,
    Unavailable,
)
from tenure.lease import Lease, current
from tenure.once import Outcome, Ran, Replayed


def current_lease() -> Lease | AsyncLease | None:
    """The lease under which the running action was begun by ``once``, for its token."""
    return current.get()


__all__ = [
    "Absent",
    "Acquire",
    "Acquired",
    "Acquisition",
    "AlreadyComplete",
    "AlreadyInProgress",
    "Answer",
    "AsyncClient",
    "AsyncLease",
    "At",
    "Client",
    "Codec",
    "Command",
    "Complete",
    "Completed",
    "Extend",
    "Extended",
    "FingerprintMismatch",
    "Forbidden",
    "InProgress",
    "InvalidArgument",
    "Json",
    "Lease",
    "LeaseExpired",
    "LeaseLost",
    "NoResult",
    "NotRecorded",
    "Outcome",
    "OutcomeUnknown",
    "Payload",
    "PayloadTooLarge",
    "Purged",
    "Ran",
    "Record",
    "RecordComplete",
    "RecordInProgress",
    "Refused",
    "Release",
    "Released",
    "Replay",
    "Replayed",
    "ResultNotSerializable",
    "ResultTooLarge",
    "StorageFull",
    "TenureError",
    "TimedOut",
    "TooLate",
    "TookOver",
    "Unavailable",
    "Waited",
    "current_lease",
    "fingerprint",
    "new_attempt",
]
