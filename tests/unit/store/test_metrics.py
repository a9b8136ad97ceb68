"""Metrics: JSON lines and rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from spreeze.store.metrics import MetricsReader, Rate, Recorder


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
