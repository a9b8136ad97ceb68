"""A run's policy is played in the environment that it was trained in."""

from __future__ import annotations

import json
from pathlib import Path

from fake_runs import make_run
from spreeze.cli.playback import as_trained
from spreeze.envs.targets import Adjusted
from spreeze.store.rundir import RunDir


def test_arguments_and_time_limit_of_the_run_are_used_again(tmp_path: Path) -> None:
    path = make_run(tmp_path, "r")
    assert as_trained("Pendulum-v1", RunDir(path)) == "Pendulum-v1"
    config = json.loads((path / "config.json").read_text())
    config["config"]["simulation"] |= {"kwargs": '{"g": 5.0}', "max_episode_steps": 30}
    (path / "config.json").write_text(json.dumps(config))
    assert as_trained("Pendulum-v1", RunDir(path)) == Adjusted("Pendulum-v1", {"g": 5.0}, 30)
    config["config"]["simulation"] |= {"kwargs": "[", "max_episode_steps": "x"}
    (path / "config.json").write_text(json.dumps(config))
    assert as_trained("Pendulum-v1", RunDir(path)) == "Pendulum-v1"
