"""The runs of a folder: found as they appear, and cleaned."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fake_runs import make_run
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
