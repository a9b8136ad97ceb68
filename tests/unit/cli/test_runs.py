"""The table of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.text import Text

from fake_runs import make_run
from spreeze.cli.commands.runs import main
from spreeze.errors import UsageError


def test_the_table_says_what_each_run_is_and_can_be_sorted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "b", env="Pendulum-v1", seed=3)
    make_run(tmp_path, "a", env="Ant-v5", seed=12)
    make_run(tmp_path, "c", env="Hopper-v5", seed=1)

    def shown(*flags: str) -> list[list[str]]:
        assert main([str(tmp_path), *flags], 0.0) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    head, *rows = shown("--sort", "seed")
    assert head[:5] == ["run", "task", "state", "algo", "seed"]
    assert [[*row[:2], *row[3:5]] for row in rows] == [
        ["c", "Hopper-v5", "sac", "1"],
        ["b", "Pendulum-v1", "sac", "3"],
        ["a", "Ant-v5", "sac", "12"],
    ]
    assert [row[0] for row in shown("--sort", "run")[1:]] == ["a", "b", "c"]
    assert main([str(tmp_path), "--json", "-", "--sort", "task"], 0.0) == 0
    assert [run["env"] for run in json.loads(capsys.readouterr().out)] == [
        "Ant-v5",
        "Hopper-v5",
        "Pendulum-v1",
    ]
    with pytest.raises(UsageError, match=r"--sort sed: .*Did you mean seed"):
        main([str(tmp_path), "--sort", "sed"], 0.0)


def test_a_narrow_terminal_shows_what_people_look_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "Pendulum-v1-sac-0-20261119-155023")
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "60")):
        monkeypatch.setenv(name, value)

    def shown(*flags: str) -> tuple[list[str], str]:
        main([str(tmp_path), *flags], 0.0)
        printed = Text.from_ansi(capsys.readouterr().out).plain
        head, row, more = printed.splitlines()
        assert max(len(head), len(row)) <= 60
        return head.split(), more

    head, more = shown()
    assert head == ["run", "state", "best", "time"]
    assert more.startswith("Not shown: task, algo, seed, final, steps, ")
    head, _ = shown("--sort", "updates")
    assert head == ["run", "state", "best", "updates"]


def test_runs_are_compared_by_setting_over_their_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, seconds in ((0, 10.0), (5, 14.0)):
        with_target(make_run(tmp_path, f"p{seed}", seed=seed), seconds)
    with_target(make_run(tmp_path, "missed", env="Ant-v5"), None)
    make_run(tmp_path, "new", num=0)
    assert main([str(tmp_path), "--compare", "--json", "-"], 0.0) == 0
    ant, pendulum = json.loads(capsys.readouterr().out)
    assert (ant["task"], ant["seeds"], ant["reached"], ant["time_to_target"]) == (
        "Ant-v5",
        1,
        0,
        None,
    )
    assert (pendulum["task"], pendulum["seeds"], pendulum["statistic"]) == (
        "Pendulum-v1",
        2,
        "mean",
    )
    assert pendulum["time_to_target"] == {"middle": 12.0, "low": 10.0, "high": 14.0}
    last = -1500 + 1400 * (1 - math.exp(-19 / 5))
    assert pendulum["final"]["middle"] == pytest.approx(last + 2.5)
    assert (pendulum["final"]["low"], pendulum["final"]["high"]) == pytest.approx((last, last + 5))
    assert main([str(tmp_path), "--compare"], 0.0) == 0
    shown = capsys.readouterr().out
    assert "0 of 1 reached -200" in shown
    assert "12 [10, 14] s to -200" in shown
    assert "1 run has no evaluation: new" in shown
    with pytest.raises(UsageError, match="--sort"):
        main([str(tmp_path), "--compare", "--sort", "best"], 0.0)


def with_target(run: Path, seconds: float | None) -> None:
    """Let a run have had the target -200, and reach it then."""
    config, summary = (
        json.loads((run / f"{name}.json").read_text()) for name in ("config", "summary")
    )
    config["config"]["target"] = -200.0
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").write_text(json.dumps(summary | {"time_to_target_s": seconds}))
