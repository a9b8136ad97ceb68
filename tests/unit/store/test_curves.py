"""Learning curves over seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spreeze.errors import UsageError
from spreeze.store.curves import (
    Group,
    describe_number,
    facts,
    interval,
    iqm,
    on_grid,
    read_comparison,
    time_to_target,
)


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


@pytest.mark.parametrize(
    ("seeds", "name"), [(1, "one run"), (3, "mean"), (4, "interquartile mean")]
)
def test_means_are_called_what_they_are(seeds: int, name: str) -> None:
    curve = np.array([[1.0, 0, 0, 10.0], [3.0, 0, 0, 30.0]])
    found = facts(Group("task", "x", curves=[curve] * seeds), "time")
    assert (found["statistic"], found["seeds"]) == (name, seeds)


@pytest.mark.parametrize(
    ("seeds", "states", "words"),
    [
        ([3], ["finished"], "1 seed"),
        ([3], ["running"], "1 seed, running"),
        ([1, 2, None], ["finished", "killed", "running"], "3 seeds, 1 killed, 1 running"),
        ([1, 1, 2], ["finished"] * 3, "3 runs with 2 seeds"),
    ],
)
def test_seeds_are_counted_once_and_runs_that_have_not_finished_are_marked(
    seeds: list[int | None], states: list[str], words: str
) -> None:
    group = Group("task", "x", [np.zeros((1, 4))] * len(seeds), seeds, states)
    assert describe_number(group.counted()) == words
