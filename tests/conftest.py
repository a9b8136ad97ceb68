"""Fixtures of all tests, and a check around each test that it leaves nothing behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

# Set before anything imports torch. Tests run in parallel; with several threads each they would slow each other.
os.environ["OMP_NUM_THREADS"] = "1"


def _leftovers() -> tuple[set[int], set[str], set[str]]:
    children = {child.pid for child in psutil.Process().children(recursive=True) if _ours(child)}
    # Torch's compiler uses tqdm if it is installed, and tqdm never ends its thread.
    threads = {thread.name for thread in threading.enumerate()} - {"tqdm_monitor"}
    return children, set(os.listdir("/dev/shm")), threads


def _ours(process: psutil.Process) -> bool:
    """Not the browser, which serves several tests and keeps processes of closed tabs for a while."""
    try:
        return "chrom" not in process.name()
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No child process, shared-memory entry or thread outlives a test."""
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
    """Tests neither read nor fill the user's cache; parallel workers share one cache of their own."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    # The code that calls the kernels is compiled without optimisation: seconds faster, same results.
    os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"


@pytest.fixture(autouse=True)
def no_probe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not measure the machine first, except in tests with the mark `probe`."""
    if request.node.get_closest_marker("probe") is None:
        monkeypatch.setenv("SPREEZE_PROBE", "0")


@pytest.fixture
def recovered(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Call it with the seconds a recovery took; docs/faults.md shows them."""
    return lambda seconds: request.node.user_properties.append(("recovery_s", seconds))


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """The runs folder of one test."""
    return str(tmp_path / "runs")
