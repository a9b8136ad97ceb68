"""A sweep from its start to its report, with a kill in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from user_runs import PATHS, wait_for

SPACE = """
algo.lr = { low = 1e-4, high = 1e-2, log = true }
replay.capacity = [4000, 8000]
"""
COMMAND = (
    "sweep fakes:ReachEnv --serial --steps 2k --learner.warmup-rows 100 --evaluator.episodes 2 "
    "--no-dashboard --name s"
)


def command(folder: Path, arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spreeze", *arguments.split()],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    )


def stored(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "runs" / "s" / "sweep.json").read_text())  # type: ignore[no-any-return]


def states(folder: Path) -> list[str]:
    return [row["state"] for row in stored(folder)["rows"]]


def test_a_sweep_that_is_killed_goes_on_and_names_the_best(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SPACE)
    begun = f"{COMMAND} --space s.toml --trials 3"
    first = command(tmp_path, begun)
    try:
        wait_for(lambda: states(tmp_path) and (tmp_path / "runs/s/trial-001/status.json").exists())
        family = psutil.Process(first.pid).children(recursive=True)
    finally:
        first.kill()
        first.communicate()
    wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in family))
    second = command(tmp_path, f"{begun} --json found.json")
    said, noted = second.communicate(timeout=100)
    assert second.returncode == 0, noted
    assert "were cut short and begin again" in noted
    assert "the best so far" in noted
    found = json.loads((tmp_path / "found.json").read_text())
    assert states(tmp_path).count("finished") == 3
    assert "interrupted" in states(tmp_path)
    best = next(row for row in found["rows"] if row["number"] == found["best"])
    assert best["score"] == max(row["score"] or -1e9 for row in found["rows"])
    run = tmp_path / "runs" / "s" / best["runs"][0]
    config = json.loads((run / "config.json").read_text())["config"]
    assert str(config["hyper"]["lr"]) == best["values"]["algo.lr"]
    assert f"--algo.lr {best['values']['algo.lr']}" in found["command"]
    assert found["command"] in said
    assert (tmp_path / "runs" / "s" / "sweep.png").stat().st_size


@pytest.mark.exhaustive
def test_a_trial_that_fails_is_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    kwargs = ['{"no_such": 1}', "{}"]
    (tmp_path / "s.toml").write_text(f"env.kwargs = {json.dumps(kwargs)}")
    sweep = command(tmp_path, f"{COMMAND} --space s.toml --trials 4 --search random")
    said, noted = sweep.communicate(timeout=100)
    assert sweep.returncode == 0, noted
    rows = stored(tmp_path)["rows"]
    failed = [row for row in rows if row["state"] == "failed"]
    assert {row["values"]["env.kwargs"] for row in failed} == {kwargs[0]}
    assert {row["state"] for row in rows if row not in failed} == {"finished"}
    assert all("no_such" in row["cause"] for row in failed)
    assert f"trial {failed[0]['number']} failed: " in said


def test_an_environment_that_does_not_exist_ends_the_sweep_at_once(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SPACE)
    words = COMMAND.replace("ReachEnv", "RaechEnv")
    refused = command(tmp_path, f"{words} --space s.toml --trials 9")
    _, noted = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "RaechEnv" in noted
    assert "failed" not in states(tmp_path)
