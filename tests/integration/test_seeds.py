"""A run for each of several seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fakes
import spreeze
from spreeze.machine.facts import usable_cores


def test_seeds_train_side_by_side_and_are_summed_up(tmp_path: Path) -> None:
    if usable_cores() < 2:
        pytest.skip("one core: one after another")
    arguments = "train Pendulum-v1 --serial --steps 3k --seeds 3,8 --name a --runs runs"
    done = subprocess.run(
        [sys.executable, "-m", "spreeze", *arguments.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "2 runs, 2 at a time" in done.stderr
    assert "seed 3: " in done.stderr
    assert "mean" in done.stdout
    assert (tmp_path / "runs" / "a.png").stat().st_size
    for seed in (3, 8):
        run = tmp_path / "runs" / f"a-{seed}"
        assert json.loads((run / "summary.json").read_text())["seed"] == seed


def test_in_python_the_runs_are_a_list(runs: str) -> None:
    found = spreeze.train(
        fakes.ReachEnv, seeds=[5, 1], name="b", runs=runs, serial=True, steps="1k", quiet=True
    )
    assert [(run.summary["seed"], run.path.name) for run in found] == [(5, "b-5"), (1, "b-1")]
    with pytest.raises(spreeze.UsageError, match="2 is there twice"):
        spreeze.train(fakes.ReachEnv, seeds=[2, 2], runs=runs)
    with pytest.raises(spreeze.UsageError, match=r"--seeds 2\.5: must be"):
        spreeze.train(fakes.ReachEnv, seeds=2.5, runs=runs)  # type: ignore[call-overload]
