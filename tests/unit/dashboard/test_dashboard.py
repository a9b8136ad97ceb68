"""What the page is told: tables of bounded size, news, curves."""

from __future__ import annotations

import asyncio
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fake_runs import append, make_run
from spreeze.dashboard.runs import RunIndex, StoredRun, clean
from spreeze.dashboard.tail import MAX_ROWS, RunTail, Table, curve
from spreeze.run.observers import Observers
from spreeze.settings.config import config_with, default_config
from spreeze.store.rundir import RunDir


def rows(news: dict[str, Any], role: str) -> list[Any]:
    return news["tables"][role]["rows"]  # type: ignore[no-any-return]


def test_after_the_whole_only_what_is_new_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", num=5)
    following = RunTail(StoredRun(run))
    first, more = following.look()
    assert not more
    assert len(rows(first, "evaluator-0")) == 5
    assert first["status"]["state"] == "finished"
    assert following.look() == ({}, False)
    append(run, "evaluator-0", {"time_s": 9, "env_steps": 1, "updates": 1, "eval/mean_reward": 3.5})
    with (run / "metrics" / "learner-0.jsonl").open("a") as file:
        file.write('{"time_s": 6, ')
    news, _ = following.look()
    assert list(news) == ["tables"]
    assert list(news["tables"]) == ["evaluator-0"], "half a line is not read"
    assert rows(news, "evaluator-0") == [[9, 1, 1, 3.5, None, None]]
    assert len(rows(following.whole(), "evaluator-0")) == 6


def test_decisions_and_events_are_notes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", num=1)
    append(run, "tuner-0", {"time_s": 1, "tuner/change": "batch 256 -> 512", "tuner/gain": 0.1})
    append(run, "supervisor-0", {"time_s": 2, "event": "sampler-0 was started again"})
    news, _ = RunTail(StoredRun(run)).look()
    told = [{k: v for k, v in note.items() if v is not None} for note in news["notes"]]
    assert {"time_s": 1, "tuner/change": "batch 256 -> 512", "tuner/gain": 0.1} in told
    assert {"time_s": 2, "event": "sampler-0 was started again"} in told


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


def test_the_library_finds_runs_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.dashboard.runs.RESCAN_S", -1.0)
    library = RunIndex(tmp_path)
    assert library.table() == []
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", state="running")
    (tmp_path / "no run").mkdir()
    assert {row["name"]: row["state"] for row in library.table()} == {
        "a": "finished",
        "b": "running",
    }
    row = library.table()[0]
    assert (row["env"], row["algo"]) == ("Pendulum-v1", "sac")
    assert set(library.runs()) == {row["id"] for row in library.table()}


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
def test_what_gets_through_is_plain_and_bounded(value: Any, cleaned: Any) -> None:
    assert clean(value) == cleaned
    json.dumps(clean(value), allow_nan=False).encode()


@pytest.mark.parametrize("knobs", [{"dashboard": False}, {"serial": True}])
def test_a_run_without_a_page_opens_no_port(tmp_path: Path, knobs: dict[str, Any]) -> None:
    observers = Observers(config_with(default_config(), knobs), RunDir(tmp_path))
    observers.close()
    assert (observers.all, observers.notes, observers.page, observers.status) == (
        [],
        [],
        "",
        {},
    )
    assert not list(tmp_path.iterdir())


def test_without_the_extra_a_run_goes_on_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.run.observers.find_spec", lambda _: None)
    observers = Observers(default_config(), RunDir(tmp_path))
    observers.close()
    assert observers.all == []
    (note,) = observers.notes
    assert 'pip install "spreeze[dashboard]"' in note


def test_the_address_is_told_with_its_token_on_the_screen_only(tmp_path: Path) -> None:
    config = config_with(default_config(), {"cores": "shared"})
    observers = Observers(config, RunDir(tmp_path))
    try:
        token = (tmp_path / "dashboard.token").read_text().strip()
        assert observers.page.endswith(f"?token={token}")
        assert token not in observers.status["url"]
        assert [observer.name for observer in observers.all] == ["dashboard"]
    finally:
        observers.close()
    assert not list(tmp_path.iterdir()), "the secret goes with the run"
