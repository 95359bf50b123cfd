"""What the documentation shows runs, and the package installs."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tenure.codec

if TYPE_CHECKING:
    import pytest

    from cluster import Cluster

README = Path(__file__).parent.parent / "README.md"
ENDPOINTS = "127.0.0.1:7601,127.0.0.1:7602,127.0.0.1:7603"


def test_the_readme_s_examples_run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 5
    shared: dict[str, Any] = {}
    for block in blocks:
        code = block.replace(ENDPOINTS, ",".join(cluster.endpoints))
        exec(compile(code, str(README), "exec"), shared)

    class Context:
        function_name = "f"

        def get_remaining_time_in_millis(self) -> int:
            return 5000

    assert shared["handler"]({"id": "1"}, Context()) == {"paid": "1"}
    printed = capsys.readouterr().out
    assert printed.count("sending order-1") == 1
    assert printed.count("part ") == 3
    shared["client"].close()


def test_docstrings_are_true() -> None:
    tested = doctest.testmod(tenure.codec)
    assert (tested.failed, tested.attempted) == (0, 1)


def test_the_package_installs_alone_and_typed(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    install += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(tmp_path)]
    subprocess.run([*install, str(README.parent)], check=True)
    assert (tmp_path / "tenure" / "py.typed").is_file()
    # -S: no site-packages, so nothing but the standard library.
    run = [sys.executable, "-S", "-c", "import tenure; print(tenure.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == str(tmp_path / "tenure" / "__init__.py")
