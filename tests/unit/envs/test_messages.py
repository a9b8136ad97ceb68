"""Messages of libraries go to the log, and never into the working folder."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import pytest

from spreeze.envs.messages import messages_to

DIVERGE = """
import numpy as np
from spreeze.envs.messages import messages_to
from spreeze.envs.targets import make_env

def diverge(env):
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e11
    env.step(np.zeros(1))

env = make_env("InvertedPendulum-v5")
diverge(env)
"""


def outcome(script: str, folder: Path) -> str:
    """What a script in this folder writes to standard error; it writes nothing else."""
    command = [sys.executable, "-c", DIVERGE + script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_mujoco_warns_on_standard_error_and_writes_no_file(tmp_path: Path) -> None:
    said = outcome("", tmp_path)
    assert "MuJoCo: " in said
    assert "unstable" in said
    assert list(tmp_path.iterdir()) == []


def test_mujoco_warns_in_the_log_that_was_named(tmp_path: Path) -> None:
    script = """
from pathlib import Path
with messages_to(Path("logs/eval.log")):
    diverge(env)
"""
    assert outcome(script, tmp_path).count("MuJoCo") == 1
    assert (tmp_path / "logs" / "eval.log").read_text().count("MuJoCo") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_handler_of_the_user_stays(tmp_path: Path) -> None:
    script = """
import mujoco
mujoco.set_mju_user_warning(lambda text: print("mine", file=__import__("sys").stderr))
make_env("InvertedPendulum-v5")
diverge(env)
"""
    assert "mine" in outcome(script, tmp_path)


def test_warnings_go_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "play.log"
    with messages_to(log):
        warnings.simplefilter("always")
        gym.logger.deprecation("this id is old")
        with messages_to(None):
            gym.logger.deprecation("nobody reads this")
    assert "this id is old" in log.read_text()
    assert "nobody" not in log.read_text()
    assert capsys.readouterr().err == ""


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with messages_to(tmp_path / "logs" / "play.log"):
        warnings.simplefilter("always")
        warnings.warn("lost", UserWarning, stacklevel=1)
