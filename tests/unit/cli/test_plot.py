"""`spreeze plot`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_runs import make_run
from spreeze.cli.commands.plot import main as plot
from spreeze.cli.commands.plot import plot_runs
from spreeze.errors import UsageError
from spreeze.store.rundir import RunDir


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
    labels = {f"{group['task']} {group['label']}": group["seeds"] for group in groups}
    assert labels == {
        "Pendulum-v1 sac": 3,
        "Walker2d-v5 sac": 1,
        "Pendulum-v1 sb3": 2,
        "Pendulum-v1 slow": 1,
    }
    mine = groups[0]
    assert all(
        a <= b <= c for a, b, c in zip(mine["low"], mine["middle"], mine["high"], strict=True)
    )
    assert plot([names[0], "--x", "steps", "--out", str(tmp_path / "a.png")], 0.0) == 0
    with pytest.raises(UsageError, match="has no curves"):
        plot([*arguments, "--x", "steps"], 0.0)


def test_plots_are_refused_before_work_is_done(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        plot(["--out", str(tmp_path / "a.gif")], 0.0)
    run = make_run(tmp_path, "empty", num=0)
    with pytest.raises(UsageError, match="1 run has no evaluation: empty"):
        plot([str(run), "--out", str(tmp_path / "a.png")], 0.0)


def test_each_task_has_a_panel_of_its_own(tmp_path: Path) -> None:
    tasks = ["Pendulum-v1", "Ant-v5", "Hopper-v5", "Walker2d-v5", "Pendulum-v1"]
    runs = [RunDir(make_run(tmp_path, str(i), env=env, seed=i)) for i, env in enumerate(tasks)]
    panels = [axes for axes in plot_runs(runs, "steps").axes if axes.axison]
    assert [axes.get_title() for axes in panels] == tasks[:4]
    legends = [axes.get_legend().get_texts()[0].get_text() for axes in panels]  # type: ignore[union-attr]
    assert legends == ["sac, mean of 2 seeds", *["sac, 1 seed"] * 3]


def test_a_run_without_an_evaluation_is_left_out_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(make_run(tmp_path, name, num=num)) for name, num in (("a", 3), ("new", 0))]
    assert plot([*runs, "--out", str(tmp_path / "a.svg")], 0.0) == 0
    told = capsys.readouterr()
    assert told.err == "1 run has no evaluation: new. Left out.\n"
    assert "Pendulum-v1 sac: 1 seed\n" in told.out


def test_more_lines_than_colours_differ_by_their_style(tmp_path: Path) -> None:
    runs = []
    for i in range(9):
        run = make_run(tmp_path, str(i), num=3)
        stored = json.loads((run / "config.json").read_text())
        stored["config"]["learner"]["batch_size"] = 2**i
        (run / "config.json").write_text(json.dumps(stored))
        runs.append(RunDir(run))
    (axes,) = plot_runs(runs, "time").axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 9
