"""Metrics: JSON lines and rates."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from spreeze.store.metrics import (
    MAX_RECORD_BYTES,
    MetricsReader,
    Rate,
    Recorder,
    Thinned,
    as_line,
    record_interval,
)


def test_metrics_are_read_line_by_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "learner-0.jsonl")
    reader = MetricsReader(tmp_path)
    recorder.record(
        time_s=1.0, env_steps=10, updates=2, **{"train/x": float("nan"), "train/y": 3.0}
    )
    ((role, record),) = reader.read_new()
    assert role == "learner-0"
    assert record == {"time_s": 1.0, "env_steps": 10, "updates": 2, "train/x": None, "train/y": 3.0}
    with (tmp_path / "learner-0.jsonl").open("a") as half:
        half.write('{"time_s": 2.0, ')
    assert list(reader.read_new()) == [], "an incomplete line is not read"
    with (tmp_path / "learner-0.jsonl").open("a") as half:
        half.write('"env_steps": 1, "updates": 1}\n')
    assert len(list(reader.read_new())) == 1
    recorder.close()


def test_a_rate_is_over_its_window() -> None:
    rate = Rate(window_s=5)
    assert rate.update(0, 0.0) == 0
    for second in range(1, 11):
        value = rate.update(100 * second, float(second))
    assert value == pytest.approx(100)
    for second in range(11, 20):
        value = rate.update(1000, float(second))
    assert value == 0


def test_a_count_that_restarts_never_has_a_negative_rate() -> None:
    """A restarted learner continues from its last checkpoint."""
    rate = Rate(window_s=5)
    rates = [rate.update(n, float(i)) for i, n in enumerate((0, 100, 200, 50, 150))]
    assert rates == [0, 100, 100, 0, 100]


@pytest.mark.fault("F64")
@pytest.mark.parametrize("written", [None, 0.0, 0.5])
def test_on_a_full_disk_whole_lines_are_lost_and_later_ones_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: float | None
) -> None:
    """The disk takes a part of the line, or none and says so."""
    lost: list[int] = []
    file = tmp_path / "learner-0.jsonl"
    recorder = Recorder(file, lambda: lost.append(1))
    recorder.record(time_s=1.0, env_steps=1, updates=1)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if written is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: int(len(data) * written)])

    monkeypatch.setattr(os, "write", full)
    recorder.record(time_s=2.0, env_steps=1, updates=1)
    recorder.record(time_s=3.0, env_steps=1, updates=1)
    monkeypatch.undo()
    recorder.record(time_s=4.0, env_steps=1, updates=1)
    recorder.close()
    assert [json.loads(line)["time_s"] for line in file.read_text().splitlines()] == [1.0, 4.0]
    assert len(lost) == 2


@pytest.mark.fault("F64")
def test_a_file_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    lost: list[int] = []
    (tmp_path / "metrics").write_text("a file where the folder belongs")
    recorder = Recorder(tmp_path / "metrics" / "x-0.jsonl", lambda: lost.append(1))
    recorder.record(time_s=1.0, env_steps=1, updates=1)
    (tmp_path / "metrics").unlink()
    recorder.record(time_s=2.0, env_steps=1, updates=1)
    recorder.close()
    assert lost == [1]
    assert [record["time_s"] for _, record in MetricsReader(tmp_path / "metrics").read_new()] == [2]


def test_a_line_that_a_killed_writer_left_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "learner-0.jsonl"
    file.write_text('{"time_s": 1, "env_st')
    recorder = Recorder(file)
    recorder.record(time_s=2.0, env_steps=1, updates=1)
    recorder.close()
    assert [record["time_s"] for _, record in MetricsReader(tmp_path).read_new()] == [2]


def test_a_file_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    file, reader = tmp_path / "x-0.jsonl", MetricsReader(tmp_path)
    file.write_text('{"a": 1}\n{"a": 2}\n')
    assert len(list(reader.read_new())) == 2
    file.write_text('{"a": 3}\n')
    assert [record for _, record in reader.read_new()] == [{"a": 3}]


@pytest.mark.fault("F75")
def test_a_day_of_records_is_a_few_megabytes() -> None:
    now_s, lines = 0.0, 0
    while now_s < 86_400:
        now_s += record_interval(1.0, now_s)
        lines += 1
    assert lines * 500 < 6e6
    assert record_interval(2.0, 600.0) == 2.0, "in a short run the files are as fine as ever"


@pytest.mark.fault("F75")
def test_a_thinned_series_is_bounded_even_and_keeps_its_first() -> None:
    series: Thinned[int] = Thinned(100)
    for i in range(12_345):
        series.add(i)
    assert series.num_seen == 12_345
    assert 50 <= len(series.items) < 100
    assert series.items[0] == 0
    assert len({b - a for a, b in zip(series.items, series.items[1:], strict=False)}) == 1


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    line = as_line(time_s=1.0, env_steps=1, updates=1, event="x" * MAX_RECORD_BYTES)
    good = as_line(time_s=2.0, env_steps=2, updates=2)
    (tmp_path / "supervisor-0.jsonl").write_text(line + good)
    assert [record["time_s"] for _, record in MetricsReader(tmp_path).read_new()] == [2.0]
