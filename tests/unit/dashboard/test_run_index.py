"""The runs of a folder: found as they appear, and cleaned."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fake_runs import make_run, write
from spreeze.dashboard.runs import RunIndex, clean


def test_the_index_finds_runs_as_they_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.dashboard.runs.RESCAN_S", -1.0)
    index = RunIndex(tmp_path)
    assert index.table() == []
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", state="running")
    (tmp_path / "no run").mkdir()
    assert {row["name"]: row["state"] for row in index.table()} == {
        "a": "finished",
        "b": "running",
    }
    row = index.table()[0]
    assert (row["env"], row["algo"]) == ("Pendulum-v1", "sac")
    assert set(index.runs()) == {row["id"] for row in index.table()}


def test_runs_of_a_task_have_the_settings_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.dashboard.runs.RESCAN_S", -1.0)
    index = RunIndex(tmp_path)
    for name, batch_size in (("a", 64), ("b", 128), ("broken", "x" * 10**5)):
        run = make_run(tmp_path, name, seed=len(name))
        stored = json.loads((run / "config.json").read_text())
        stored["config"]["learner"]["batch_size"] = batch_size
        write(run / "config.json", stored)
    make_run(tmp_path, "c", env="Walker2d-v5")
    differs = {row["name"]: row["differs"] for row in index.table()}
    assert differs["a"] == {"learner.batch_size": 64}
    assert differs["b"] == {"learner.batch_size": 128}
    assert differs["c"] == {}, "the only run of its task"
    assert len(differs["broken"]["learner.batch_size"]) < 300
    write(tmp_path / "b" / "config.json", {"config": 7})
    (tmp_path / "broken" / "config.json").unlink()
    differs = {row["name"]: row["differs"] for row in index.table()}
    assert differs == {"a": {}, "b": {}, "c": {}}


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        (True, True),
        ("a\x00b\x1b[2J\ud800", "a b [2J "),
        ("x" * 10**5, "x" * 2000),
        ({1: {2: [3.5, math.nan]}}, {"1": {"2": [3.5, None]}}),
        (object(), None),
    ],
)
@pytest.mark.fault("F78")
def test_what_gets_through_is_plain_and_bounded(value: Any, cleaned: Any) -> None:
    assert clean(value) == cleaned
    json.dumps(clean(value), allow_nan=False).encode()
