"""Learning curves over seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_runs import make_run
from spreeze.errors import UsageError
from spreeze.store.curves import (
    Group,
    facts,
    group_runs,
    interval,
    iqm,
    on_grid,
    read_comparison,
    time_to_target,
)
from spreeze.store.rundir import RunDir


def test_the_interquartile_mean_cuts_a_quarter_at_either_end() -> None:
    values = np.array([[1000.0], [1.0], [2.0], [3.0], [-1000.0], [2.0], [1.0], [3.0]])
    assert iqm(values) == pytest.approx([2.0])
    assert iqm(np.array([[1.0], [2.0], [6.0]])) == pytest.approx([3.0]), "three are too few to cut"


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for i in range(60):
        low, high = interval(rng.normal(0, 1, (20, 1)), seed=i)
        hits += bool(low[0] <= 0 <= high[0])
    assert 48 <= hits <= 60
    low, high = interval(np.full((5, 3), 7.0))
    assert low == pytest.approx(7.0)
    assert high == pytest.approx(7.0)


def test_a_grid_has_only_what_all_seeds_have_reached() -> None:
    short = np.array([[1.0, 0, 0, 10.0], [3.0, 0, 0, 30.0]])
    long = np.array([[2.0, 0, 0, 20.0], [9.0, 0, 0, 90.0]])
    grid, values = on_grid([short, long], "time", points=3)
    assert grid.tolist() == [2.0, 2.5, 3.0]
    assert values.tolist() == [[10.0, 10.0, 30.0], [20.0, 20.0, 20.0]], "the last one known"


def test_times_to_a_target_have_an_interval_too() -> None:
    group = Group("task", "x", seconds=[7.0, 8.0, 9.0, 8.0])
    found = time_to_target(group)
    assert found is not None
    assert found[0] == pytest.approx(8.0)
    assert found[1] <= found[0] <= found[2]
    assert time_to_target(Group("task", "x", seconds=[7.0, None])) is None


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"env": "a"}', '{"env": 1, "target": "x", "wall_s": {}}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="--compare"):
        read_comparison(file)
    with pytest.raises(UsageError, match="no such file"):
        read_comparison(tmp_path / "y.json")


def test_runs_are_seeds_of_one_setting_only_if_nothing_else_differs(tmp_path: Path) -> None:
    names = ["a", "b", "other_task", "wide"]
    runs = [make_run(tmp_path, name, seed=i) for i, name in enumerate(names)]
    change(runs[2], env="Ant-v5")
    change(runs[3], hyper={"gamma": 0.9, "hidden": [8, 8]})
    change(runs[1], learner={"threads": 7})  # it chose this itself
    groups = group_runs([RunDir(path) for path in runs])
    assert [(group.task, group.label, len(group.curves)) for group in groups] == [
        ("Pendulum-v1", "sac, algo.gamma 0.99, algo.hidden auto", 2),
        ("Pendulum-v1", "sac, algo.gamma 0.9, algo.hidden 8 8", 1),
        ("Ant-v5", "sac", 1),
    ]


def test_a_run_that_is_given_twice_is_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    again = RunDir(run.parent / "." / "a")
    (group,) = group_runs([RunDir(run), again])
    assert len(group.curves) == 1


def change(run: Path, **values: Any) -> None:
    """Change the stored config; what was asked for stays."""
    stored = json.loads((run / "config.json").read_text())
    stored.setdefault("asked", dict(stored["config"]))
    for name, value in values.items():
        inner = stored["config"][name]
        stored["config"][name] = inner | value if isinstance(inner, dict) else value
    (run / "config.json").write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("seeds", "name"), [(1, "one run"), (3, "mean"), (4, "interquartile mean")]
)
def test_means_are_called_what_they_are(seeds: int, name: str) -> None:
    curve = np.array([[1.0, 0, 0, 10.0], [3.0, 0, 0, 30.0]])
    found = facts(Group("task", "x", curves=[curve] * seeds), "time")
    assert (found["statistic"], found["seeds"]) == (name, seeds)
