"""Which runs are seeds of one setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_runs import make_run
from spreeze.store.run_groups import describe_without, group_runs
from spreeze.store.rundir import RunDir


def test_runs_are_seeds_of_one_setting_only_if_nothing_else_differs(tmp_path: Path) -> None:
    names = ["a", "b", "other_task", "wide"]
    runs = [make_run(tmp_path, name, seed=i) for i, name in enumerate(names)]
    change(runs[2], env="Ant-v5")
    change(runs[3], hyper={"gamma": 0.9, "hidden": [8, 8]})
    change(runs[1], learner={"threads": 7})  # it chose this itself
    groups, _ = group_runs([RunDir(path) for path in runs])
    assert [(group.task, group.label, len(group.curves)) for group in groups] == [
        ("Pendulum-v1", "sac, algo.gamma 0.99, algo.hidden auto", 2),
        ("Pendulum-v1", "sac, algo.gamma 0.9, algo.hidden 8 8", 1),
        ("Ant-v5", "sac", 1),
    ]


def test_a_run_that_is_given_twice_is_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    again = RunDir(run.parent / "." / "a")
    (group,) = group_runs([RunDir(run), again]).groups
    assert len(group.curves) == 1


def change(run: Path, **values: Any) -> None:
    """Change the stored config; what was asked for stays."""
    stored = json.loads((run / "config.json").read_text())
    stored.setdefault("asked", dict(stored["config"]))
    for name, value in values.items():
        inner = stored["config"][name]
        stored["config"][name] = inner | value if isinstance(inner, dict) else value
    (run / "config.json").write_text(json.dumps(stored))


def resumed(folder: Path, name: str, origin: Path, after: int, num: int = 5) -> Path:
    """A run that continues another after so many of its evaluations."""
    run = make_run(folder, name, num=num)
    change(run, resume=str(origin))
    file = run / "metrics" / "evaluator-0.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        record["env_steps"] += 1000 * after
        record["updates"] += 100 * after
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def test_a_run_and_the_one_that_continues_it_are_one(tmp_path: Path) -> None:
    origin = make_run(tmp_path, "origin", num=10)
    second = resumed(tmp_path, "second", origin, after=8)
    third = resumed(tmp_path, "third", second, after=13)
    (group,) = group_runs([RunDir(path) for path in (third, origin, second)]).groups
    (curve,) = group.curves
    assert curve[:, 2].tolist() == [100.0 * i for i in range(1, 19)], "what it went on from counts"
    assert curve[:, 0].tolist() == [float(i) for i in range(1, 19)]
    assert group.counted()["seeds"] == 1
    (alone,) = group_runs([RunDir(third)]).groups
    assert len(alone.curves[0]) == 5


def test_a_run_that_goes_on_in_itself_is_read_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", num=4)
    change(run, resume=str(run))
    (group,) = group_runs([RunDir(run)]).groups
    assert len(group.curves[0]) == 4


def test_runs_without_an_evaluation_are_left_out_by_name(tmp_path: Path) -> None:
    make_run(tmp_path, "done")
    empty = [RunDir(make_run(tmp_path, f"e{i}", num=0)) for i in range(5)]
    groups, without = group_runs([RunDir(tmp_path / "done"), *empty])
    assert len(groups) == 1
    assert without == empty
    assert describe_without(without[:1]) == "1 run has no evaluation: e0"
    assert describe_without(without) == "5 runs have no evaluation: e0, e1, e2, ..."
