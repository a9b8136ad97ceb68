"""The table of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
