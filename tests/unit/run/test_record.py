"""What the supervisor writes: never in its way, dropped and counted on a full disk, back when it can."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spreeze.faults import Fault
from spreeze.run import record as module
from spreeze.run.record import LastWords, Record
from spreeze.store.files import write_atomic
from spreeze.store.rundir import RunDir
from spreeze.store.write_thread import MAX_WRITES
from user_runs import wait_for

LAST = LastWords({"state": "finished"}, {"state": "finished"})


class Disk:
    """A disk that a test can fill or hang."""

    def __init__(self) -> None:
        self.full = False
        self.answers = threading.Event()
        self.answers.set()

    def write(self, path: Path, value: Any) -> None:
        self.answers.wait()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomic(path, value)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(module, "write_atomic", disk.write)
    return disk


@pytest.fixture
def record(tmp_path: Path, disk: Disk) -> Iterator[Record]:
    (tmp_path / "logs").mkdir()
    record = Record(RunDir(tmp_path))
    record.start()
    yield record
    disk.full = False
    disk.answers.set()
    record.end_with(LAST, lambda: False)
    record.join()


def shown(folder: Path) -> Any:
    return json.loads((folder / "status.json").read_text())["n"]


def hand_over(record: Record, time_s: float = 1.0) -> None:
    record.record(time_s=time_s, env_steps=1, updates=1, **{"perf/x": 2.0})


@pytest.mark.fault("F64")
def test_a_full_disk_drops_and_counts_and_output_comes_back(
    tmp_path: Path, record: Record, disk: Disk
) -> None:
    record.show({"n": 1})
    wait_for(lambda: shown(tmp_path) == 1)
    disk.full = True
    record.show({"n": 2})
    wait_for(lambda: record.faults[Fault.OUTPUT_DROPPED] == 1)
    disk.full = False
    record.show({"n": 3})
    wait_for(lambda: shown(tmp_path) == 3)
    record.end_with(LAST, lambda: False)
    assert record.summary_problem is None
    assert json.loads((tmp_path / "summary.json").read_text()) == LAST.summary
    assert record.faults[Fault.OUTPUT_DROPPED] == 1


@pytest.mark.fault("F64")
@pytest.mark.parametrize(("retry_s", "problem"), [(30.0, None), (0.0, "No space left on device")])
def test_the_summary_is_tried_again_for_a_while(
    tmp_path: Path,
    record: Record,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    retry_s: float,
    problem: str | None,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", retry_s)
    disk.full = True

    def make_room() -> bool:  # asked again and again while the run waits for its end
        disk.full = disk.full and record.faults[Fault.OUTPUT_DROPPED] < 3
        return False

    record.end_with(LAST, make_room)
    assert record.summary_problem == problem
    assert (tmp_path / "summary.json").exists() == (problem is None)


@pytest.mark.fault("F13")
@pytest.mark.parametrize("hurry", [True, False])
def test_a_disk_that_hangs_holds_up_neither_the_run_nor_its_end(
    record: Record, disk: Disk, monkeypatch: pytest.MonkeyPatch, hurry: bool
) -> None:
    monkeypatch.setattr(module, "END_LIMIT_S", 60.0 if hurry else 0.2)
    disk.answers.clear()
    record.show({"n": 1})
    wait_for(lambda: record._status is None)
    for i in range(MAX_WRITES + 7):
        hand_over(record, float(i))
        record.show({"n": i})
    record.end_with(LAST, lambda: hurry)
    assert record.is_alive()
    assert record.summary_problem == "the disk did not answer"
    assert record.faults[Fault.OUTPUT_DROPPED] == 7


def test_lines_and_tensorboard_are_complete_at_the_end(tmp_path: Path, record: Record) -> None:
    for i in range(5):
        hand_over(record, float(i))
    record.end_with(LAST, lambda: False)
    lines = (tmp_path / "metrics" / "supervisor-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["time_s"] for line in lines] == [0, 1, 2, 3, 4]
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.fault("F48")
def test_a_long_log_is_cut_while_its_writer_goes_on(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.store.logs.LOG_BYTES", 100)
    with (tmp_path / "logs" / "sampler-0.log").open("ab", buffering=0) as log:
        log.write(b"x" * 101)
        wait_for(lambda: record.faults[Fault.LOG_CUT] == 1)
        log.write(b"more")
    assert (tmp_path / "logs" / "sampler-0.log").read_bytes() == b"more"


def test_a_write_that_raises_anything_does_not_end_the_thread(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Path, __: Any) -> None:
        raise RuntimeError("who knows")

    original: Callable[[Path, Any], None] = module.write_atomic
    monkeypatch.setattr(module, "write_atomic", broken)
    record.show({"n": 1})
    wait_for(lambda: record.faults[Fault.OUTPUT_DROPPED] == 1)
    monkeypatch.setattr(module, "write_atomic", original)
    record.show({"n": 2})
    wait_for(lambda: shown(tmp_path) == 2)


def test_the_newest_error_of_each_roles_environments_is_read(
    record: Record, tmp_path: Path
) -> None:
    def last() -> str:
        return record.env_errors.get("sampler-0", "")

    RunDir(tmp_path).keep_error("sampler-0", "Traceback\n  line\nValueError: \x1b[31mred\n")
    wait_for(lambda: last() == r"ValueError: \x1b[31mred")
    RunDir(tmp_path).keep_error("sampler-0", "Traceback\nOSError: gone\n")
    wait_for(lambda: last() == "OSError: gone")
