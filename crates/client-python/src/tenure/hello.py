"""What holds for every connection, of threads and of asyncio.

Before the first request on a connection its node is asked for its cluster. A node of another
cluster is never sent a token, and one that accepts connections but does not answer is found out
while nothing has been sent yet, so that the outcome stays known.
"""

from __future__ import annotations

import json
import select

from tenure.call import Failed
from tenure.http1 import Response, request
from tenure.route import Address, Route

IDLE_SECONDS = 15.0
"""A connection that rested for longer is not used again: a node closes it after 30."""
IDLE_CONNECTIONS = 32
"""Most connections that are kept at rest; further ones are closed."""


def hello(address: Address) -> bytes:
    """The first request on a connection."""
    return request("GET", address.authority, "/v1/cluster", None)


def check(response: Response, route: Route) -> Response | Failed | None:
    """None if the connection may be used, else what to answer in place of a send."""
    if response.status == 403:
        return response
    try:
        cluster_id = json.loads(response.body)["cluster_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Failed(False, f"what listens there is no node: it answered {response.status}")
    if not isinstance(cluster_id, str) or not route.belongs(cluster_id):
        return Failed(False, "the node belongs to another cluster")
    return None


def is_stale(descriptor: int) -> bool:
    """Whether a connection at rest has something to read: its end, as nothing was asked."""
    if descriptor < 0:
        return True
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([descriptor], [], [], 0)[0])
