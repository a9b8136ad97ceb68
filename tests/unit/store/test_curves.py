"""Learning curves over seeds, the plot command, and trackers."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_runs import make_run
from spreeze.cli.commands.plot import main as plot
from spreeze.errors import UsageError
from spreeze.run.tracker import Tracker
from spreeze.settings.checks import check_config
from spreeze.settings.config import config_with, default_config
from spreeze.store.curves import Group, interval, iqm, on_grid, read_comparison, time_to_target


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


def test_runs_are_drawn_together_with_other_frameworks(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, f"s{seed}", seed=seed)
    make_run(tmp_path, "w", env="Walker2d-v5")
    rows = [[[t, 10 * t, t, -1000.0 + t] for t in range(1, 20)]] * 2
    other = {"env": "Pendulum-v1", "target": -200, "wall_s": {"sb3": [40.0, 60.0], "slow": [None]}}
    file = tmp_path / "others.json"
    file.write_text(json.dumps(other | {"curves": {"sb3": rows}}))
    facts = tmp_path / "facts.json"
    out = tmp_path / "curves.svg"
    names = [str(tmp_path / name) for name in ("s0", "s1", "s2", "w")]
    arguments = [*names, "--compare", str(file), "--out", str(out), "--json", str(facts)]
    assert plot(arguments, 0.0) == 0
    assert "<svg" in out.read_text()
    groups = json.loads(facts.read_text())["groups"]
    labels = {group["label"]: group["seeds"] for group in groups}
    assert labels == {
        "Pendulum-v1 sac": 3,
        "Walker2d-v5 sac": 1,
        "Pendulum-v1 sb3": 2,
        "Pendulum-v1 slow": 1,
    }
    mine = groups[0]
    assert all(a <= b <= c for a, b, c in zip(mine["low"], mine["iqm"], mine["high"], strict=True))
    assert plot([names[0], "--x", "steps", "--out", str(tmp_path / "a.png")], 0.0) == 0
    with pytest.raises(UsageError, match="knows only times"):
        plot([*arguments, "--x", "steps"], 0.0)


def test_times_to_a_target_have_an_interval_too() -> None:
    group = Group("x", seconds=[7.0, 8.0, 9.0, 8.0])
    found = time_to_target(group)
    assert found is not None
    assert found[0] == pytest.approx(8.0)
    assert found[1] <= found[0] <= found[2]
    assert time_to_target(Group("x", seconds=[7.0, None])) is None


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


def test_plots_are_refused_before_work_is_done(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        plot(["--out", str(tmp_path / "a.gif")], 0.0)
    run = make_run(tmp_path, "empty", num=0)
    with pytest.raises(UsageError, match="no evaluation yet"):
        plot([str(run), "--out", str(tmp_path / "a.png")], 0.0)


@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_a_tracker_gets_the_metrics_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    said: list[Any] = []
    service = types.ModuleType(kind)
    service.init = lambda **words: said.append(("init", words))  # type: ignore[attr-defined]
    service.log = lambda values: said.append(("log", values))  # type: ignore[attr-defined]
    service.finish = lambda: said.append(("finish", None))  # type: ignore[attr-defined]
    service.define_metric = lambda *_, **__: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kind, service)
    run = make_run(tmp_path, "a", num=2)
    tracker = Tracker(run, kind)
    tracker.send_new()
    tracker.close()
    assert said[0][0] == "init"
    assert said[0][1]["name"] == "a"
    assert said[0][1]["config"]["env"] == "Pendulum-v1"
    logged = [values for word, values in said if word == "log"]
    assert len(logged) == 6
    assert logged[0]["eval/mean_reward"] < 0
    assert logged[0]["env_steps"] == 1000
    assert said[-1][0] == "finish"


def test_a_tracker_that_is_not_installed_is_refused_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spreeze.settings.checks.find_spec", lambda _: None)
    config = config_with(default_config(env="Pendulum-v1"), {"track": "wandb"})
    assert any("spreeze[wandb]" in problem for problem in check_config(config))
    config = config_with(default_config(env="Pendulum-v1"), {"track": "mlflow"})
    assert any("wandb, trackio" in problem for problem in check_config(config))
