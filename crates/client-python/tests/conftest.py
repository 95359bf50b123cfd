"""A real cluster for the session, and clients of it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster, find_binary
from proxy import Proxy
from tenure import Client

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(find_binary(), tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.endpoints, holder="test") as made:
        yield made


@pytest.fixture
def proxies(cluster: Cluster) -> Iterator[list[Proxy]]:
    """A proxy before each node."""
    made = [Proxy(endpoint) for endpoint in cluster.endpoints]
    yield made
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxied(proxies: list[Proxy]) -> Iterator[Client]:
    """A client that reaches the nodes through the proxies alone."""
    endpoints = [proxy.endpoint for proxy in proxies]
    with Client(endpoints, holder="proxied", follow_leader=False) as made:
        yield made


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


PACKAGE = Path(__file__).parent.parent
os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
