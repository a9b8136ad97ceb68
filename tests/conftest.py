"""Fixtures for all tests; around each one a check that nothing is left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Before anything imports torch: tests run side by side, and two threads each would wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"


def _leftovers() -> tuple[set[int], set[str], set[str]]:
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    # Torch's compiler shows its progress with tqdm, where that is installed, and tqdm keeps a thread for ever.
    threads = {thread.name for thread in threading.enumerate()} - {"tqdm_monitor"}
    return children, set(os.listdir("/dev/shm")), threads


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No child process, no shared-memory entry, no thread outlives a test."""
    before = _leftovers()
    yield
    deadline = time.monotonic() + 2
    while (after := _leftovers()) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    kinds = ("processes", "shared memory", "threads")
    left = {
        kind: now - then for kind, now, then in zip(kinds, after, before, strict=True) if now - then
    }
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled updates of tests neither come from the user's cache nor go there; what runs beside shares them."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    # What calls the kernels is compiled without care: it takes seconds less, and the numbers are the same.
    os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"


@pytest.fixture(autouse=True)
def no_probe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of tests do not measure the machine first, but for those that mark it."""
    if request.node.get_closest_marker("probe") is None:
        monkeypatch.setattr("spreeze.run.plan._measured", lambda *_: None)


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """A folder for the runs of one test."""
    return str(tmp_path / "runs")
