"""What the page is sent: tables of bounded size, changes, curves."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from fake_runs import append, make_run
from spreeze.dashboard.runs import StoredRun
from spreeze.dashboard.tail import MAX_ROWS, RunTail, Table, curve


def rows(changes: dict[str, Any], role: str) -> list[Any]:
    return changes["tables"][role]["rows"]  # type: ignore[no-any-return]


def test_after_the_first_poll_only_changes_are_sent(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", num=5)
    tail = RunTail(StoredRun(run))
    first, more = tail.poll()
    assert not more
    assert len(rows(first, "evaluator-0")) == 5
    assert first["status"]["state"] == "finished"
    assert tail.poll() == ({}, False)
    append(run, "evaluator-0", {"time_s": 9, "env_steps": 1, "updates": 1, "eval/mean_reward": 3.5})
    with (run / "metrics" / "learner-0.jsonl").open("a") as file:
        file.write('{"time_s": 6, ')
    changes, _ = tail.poll()
    assert list(changes) == ["tables"]
    assert list(changes["tables"]) == ["evaluator-0"], "an incomplete line is not read"
    assert rows(changes, "evaluator-0") == [[9, 1, 1, 3.5, None, None]]
    assert len(rows(tail.snapshot(), "evaluator-0")) == 6


def test_a_file_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", num=5)
    tail = RunTail(StoredRun(run))
    tail.poll()
    (run / "metrics" / "evaluator-0.jsonl").write_text('{"time_s": 9, "eval/mean_reward": 3.5}\n')
    changes, _ = tail.poll()
    assert [row[0] for row in rows(changes, "evaluator-0")] == [9]


def test_decisions_and_events_are_notes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", num=1)
    append(run, "tuner-0", {"time_s": 1, "tuner/change": "batch 256 -> 512", "tuner/gain": 0.1})
    append(run, "supervisor-0", {"time_s": 2, "event": "sampler-0 was started again"})
    changes, _ = RunTail(StoredRun(run)).poll()
    sent = [{k: v for k, v in note.items() if v is not None} for note in changes["notes"]]
    assert {"time_s": 1, "tuner/change": "batch 256 -> 512", "tuner/gain": 0.1} in sent
    assert {"time_s": 2, "event": "sampler-0 was started again"} in sent


def test_a_long_run_stays_a_small_table() -> None:
    table = Table()
    for i in range(20 * MAX_ROWS):
        table.add({"time_s": float(i), "env_steps": i, "updates": i, "x": math.sin(i)})
    assert MAX_ROWS <= len(table.rows) < 2 * MAX_ROWS
    times = [row[0] for row in table.rows]
    gaps = {b - a for a, b in pairwise(times)}  # type: ignore[operator]
    assert len(gaps) == 1, "evenly thinned"
    for i in range(1000):
        table.add({"time_s": 0.0, f"y{i}": 1.0})
    assert len(table.columns) <= 120


def test_a_curve_is_the_evaluations_of_a_run(tmp_path: Path) -> None:
    run = StoredRun(make_run(tmp_path, "a", num=1000))
    points = asyncio.run(curve(run))
    assert 400 <= len(points) <= 600
    assert points[0][:3] == [1.0, 1000, 100]
    assert points[-1][:3] == [1000.0, 1_000_000, 100_000]
    assert asyncio.run(curve(StoredRun(tmp_path / "nothing"))) == []
