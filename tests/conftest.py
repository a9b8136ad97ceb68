"""Fixtures of all tests, and a check around each test that it leaves nothing behind."""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spreeze.store import metrics, rundir

CORES_PER_WORKER = 2


def _use_few_cores() -> None:
    """A run makes as many samplers as there are cores; on a large machine, tests would start hundreds."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    usable = sorted(os.sched_getaffinity(0))
    first = worker * CORES_PER_WORKER
    os.sched_setaffinity(0, {usable[(first + i) % len(usable)] for i in range(CORES_PER_WORKER)})


_use_few_cores()
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
    os.environ["SPREEZE_BACKGROUND"] = "0"  # no process outlives its test
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
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes no metrics and no error files until the event is set. The main thread must not meet it."""
    answers = threading.Event()

    def after(write: Callable[..., None]) -> Callable[..., None]:
        def wait_and_write(*arguments: Any) -> None:
            assert threading.current_thread() is not threading.main_thread()
            answers.wait()
            write(*arguments)

        return wait_and_write

    for module, name in ((metrics, "_append_whole"), (rundir, "replace_bytes")):
        monkeypatch.setattr(module, name, after(getattr(module, name)))
    yield answers
    answers.set()


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """The runs folder of one test."""
    return str(tmp_path / "runs")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file that `make faults` records results in."""
    parser.addoption("--fault-results", type=Path, help="record how tests of faults ended")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the main process; workers send it their reports."""
    file = config.getoption("--fault-results")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FaultResults(file))


def pytest_itemcollected(item: pytest.Item) -> None:
    """A report has no marks, but it has these."""
    item.user_properties += [("fault", mark.args[0]) for mark in item.iter_markers("fault")]


class FaultResults:
    """How each test with the mark `fault` ended; docs/faults.py makes a page of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.results: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called after setup, call and teardown of each test. The worst case of a test counts."""
        properties = dict(report.user_properties)
        if "fault" not in properties or (report.passed and report.when != "call"):
            return
        ranks = ("skipped", "passed", "failed")
        result = self.results.setdefault(report.nodeid.partition("[")[0], {"outcome": "skipped"})
        result["outcome"] = max(result["outcome"], report.outcome, key=ranks.index)
        times = [seconds for name, seconds in report.user_properties if name == "recovery_s"]
        if times:
            result["recovery_s"] = round(max(*times, result.get("recovery_s", 0.0)), 3)

    def pytest_sessionfinish(self) -> None:
        """Add them to the file. A skipped test says nothing, so its last result stays."""
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        for test, result in self.results.items():
            if result["outcome"] != "skipped" or test not in known:
                known[test] = {**result, "date": today}
        self.file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
