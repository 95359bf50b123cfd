"""Three nodes of `tenure dev`, to kill and to restart."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable, TypeVar

T = TypeVar("T")

BASES = range(21000, 21890)
"""Base ports to try."""
PATIENCE = 20.0
"""Seconds for a condition to become true."""


def find_binary() -> str:
    """The server under test: $TENURE_BIN, or what cargo built."""
    root = Path(__file__).parents[3]
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    binary = Path(os.environ.get("TENURE_BIN", target / "release" / "tenure"))
    assert binary.is_file(), f"{binary} is missing: build it, or set TENURE_BIN"
    return str(binary)


def wait_for(condition: Callable[[], T], what: str) -> T:
    """Waits until a condition is true, and gives what it gave. The pause only spares the CPU."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def free_base() -> int:
    """A base port whose six ports are free."""
    for base in random.sample(BASES, len(BASES)):
        ports = [base + offset + node for offset in (0, 100) for node in (1, 2, 3)]
        if all(is_free(port) for port in ports):
            return base
    raise AssertionError("no six ports are free")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the nodes do: what is left of old connections keeps nobody out.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Cluster:
    """Runs while its block does. Nodes are counted from 1."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary = binary
        self.folder = folder
        self.restarted: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        command = [self.binary, "dev", "-o", "json", "--base-port", str(free_base())]
        command += ["--data-dir", str(self.folder / "data")]
        self.log = (self.folder / "dev.log").open("wb")
        self.dev = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        assert self.dev.stdout is not None
        line = self.dev.stdout.readline()
        assert line, (self.folder / "dev.log").read_text()
        self.nodes: dict[int, dict[str, Any]] = {
            node["id"]: node for node in json.loads(line)["nodes"]
        }
        self.endpoints = [node["http"] for node in self.nodes.values()]
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.restarted.values():
            node.kill()
            node.wait()
        self.dev.send_signal(signal.SIGINT)
        self.dev.wait(PATIENCE)
        assert self.dev.stdout is not None
        self.dev.stdout.close()
        self.log.close()

    def status(self, node: int) -> dict[str, Any] | None:
        url = f"http://{self.nodes[node]['http']}/v1/cluster"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except OSError:
            return None

    def waiters(self) -> int:
        """Requests that wait for a record, on all nodes."""
        total = 0
        for endpoint in self.endpoints:
            with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            total += sum(
                int(line.split()[1]) for line in lines if line.startswith("tenure_waiters ")
            )
        return total

    def leader(self) -> int:
        """The leader, as itself says."""

        def find() -> int:
            for node in self.nodes:
                status = self.status(node)
                if status is not None and status["role"] == "leader":
                    return node
            return 0

        return wait_for(find, "a leader")

    def endpoint(self, node: int) -> str:
        endpoint: str = self.nodes[node]["http"]
        return endpoint

    def kill(self, node: int) -> None:
        """kill -9."""
        restarted = self.restarted.pop(node, None)
        if restarted is not None:
            restarted.kill()
            restarted.wait()
        else:
            os.kill(self.nodes[node]["pid"], signal.SIGKILL)

    def restart(self, node: int) -> None:
        """Starts a killed node by the command of the ready line, and waits until it is ready."""
        is_down = "the killed node's port is free"
        wait_for(lambda: is_free(int(self.endpoint(node).rsplit(":", 1)[1])), is_down)
        command = self.nodes[node]["command"]
        self.restarted[node] = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        url = f"http://{self.endpoint(node)}/readyz"

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_for(is_ready, f"node {node} is ready")
