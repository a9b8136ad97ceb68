"""Code that nobody named is not run: neither from the working folder nor at the word of a stored run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLANTED = (
    *("json", "numpy", "pathlib", "random", "re", "torch", "typing"),  # these exist elsewhere
    *("gymnasium", "psutil", "rich", "safetensors", "setproctitle", "tyro"),
    *("_winreg", "cuda", "msvcrt", "shimmy", "pybullet_envs_gymnasium", "winreg"),  # these do not
    *("sitecustomize", "usercustomize"),
)
CANARY = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
SPREEZE = {
    "module": [sys.executable, "-m", "spreeze"],
    "script": [str(Path(sys.executable).with_name("spreeze"))],
}
COMMANDS = [
    ["--version"],
    ["algos"],
    ["doctor"],
    ["runs"],
    ["eval", "r", "--episodes", "1"],
    ["play", "r", "--video", "r.mp4"],
    ["export", "r", "--onnx", "r.onnx"],
    ["plot", "r", "--out", "r.png"],
    ["dashboard", "nowhere"],
    ["eval", "evil"],
    ["eval", "suite"],
    ["eval", "bullet"],
    ["train", "--resume", "evil"],
    ["bench", "wires", "--seconds", "0.5"],
]
MY_ENV = """
import os, tempfile
import gymnasium as gym
import numpy as np
import my_helper
from my_package.inner import HIGH

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-HIGH, HIGH, (1,), np.float32)

    def __init__(self):
        os.chdir(tempfile.gettempdir())

    def reset(self, seed=None, options=None):
        import my_late

        super().reset(seed=seed)
        self.left = my_late.STEPS
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), my_helper.reward(action), self.left == 0, False, {}
"""


def plant(folder: Path, names: tuple[str, ...] = PLANTED) -> None:
    """Put modules there that leave a file behind when they are run."""
    for name in names:
        (folder / f"{name}.py").write_text(CANARY)


def ran(folder: Path) -> list[str]:
    """The planted modules that were run."""
    return sorted(path.stem for path in folder.rglob("*.ran"))


def spreeze(how: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`."""
    return subprocess.run(
        [*SPREEZE[how], *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rename_env(run: Path, env: str) -> None:
    """Let a stored run say that it was trained on another environment."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        return env if value == "Pendulum-v1" else value

    for file in run.rglob("*.json"):
        file.write_text(json.dumps(renamed(json.loads(file.read_text()))))
    for manifest in run.rglob("manifest.json"):  # whoever changes a checkpoint can do that, too
        manifest.unlink()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of planted modules and stored runs, some of which name other code than they were trained on."""
    folder = tmp_path_factory.mktemp("hostile")
    plant(folder)
    (folder / "evil.py").write_text(CANARY)
    done = spreeze(
        "module", folder, "train", "Pendulum-v1", "--name", "r", "--steps", "150k", "--no-dashboard"
    )
    assert done.returncode == 0, done.stderr
    assert ran(folder) == []
    for name, env in (
        ("evil", "evil:Env"),
        ("suite", "dm_control/cartpole-balance-v0"),
        ("bullet", "AntBulletEnv-v0"),
    ):
        shutil.copytree(folder / "runs" / "r", folder / "runs" / name, symlinks=True)
        rename_env(folder / "runs" / name, env)
    return folder


@pytest.mark.fault("S15")
@pytest.mark.parametrize("how", SPREEZE)
def test_no_command_runs_what_lies_in_the_folder(how: str, stored: Path) -> None:
    good = {"--version", "algos", "doctor", "runs", "export", "plot", "bench"}
    for arguments in COMMANDS:
        done = spreeze(how, stored, *arguments)
        assert ran(stored) == [], arguments
        assert "Traceback" not in done.stderr, (arguments, done.stderr)
        if arguments[0] in good or arguments[:2] == ["eval", "r"]:
            assert done.returncode == 0, (arguments, done.stderr)
    done = spreeze(how, stored, "train", "evil:Env", "--steps", "10")
    assert done.returncode == 2, "what is named is imported, and has no such class"
    assert ran(stored) == ["evil"]
    (stored / "evil.ran").unlink()


@pytest.mark.fault("S13")
@pytest.mark.fault("S15")
@pytest.mark.parametrize("command", [["eval", "evil"], ["train", "--resume", "evil"]])
def test_a_stored_run_does_not_choose_code(command: list[str], stored: Path) -> None:
    done = spreeze("module", stored, *command)
    assert done.returncode == 2
    assert "evil:Env, which is your own code" in done.stderr
    assert ran(stored) == []


@pytest.mark.fault("S15")
def test_a_stored_suite_is_imported_from_the_installation_only_and_announced(stored: Path) -> None:
    done = spreeze("module", stored, "eval", "suite")
    assert done.returncode == 2
    assert "imports the installed package shimmy" in done.stderr.splitlines()[0]
    assert ran(stored) == []


@pytest.mark.fault("S15")
@pytest.mark.parametrize("env", ["mine:Mine", "inner/mine.py:Mine"])
def test_a_users_own_code_works_in_every_process(env: str, tmp_path: Path) -> None:
    """From a fresh folder, with its own helpers, beside modules that have the names of libraries."""
    home = tmp_path / "inner" if "/" in env else tmp_path
    home.mkdir(exist_ok=True)
    plant(tmp_path)
    (home / "mine.py").write_text(MY_ENV)
    (home / "my_helper.py").write_text("def reward(action):\n    return float(-abs(action[0]))\n")
    (home / "my_late.py").write_text("STEPS = 20\n")
    (home / "my_package").mkdir()
    (home / "my_package" / "__init__.py").touch()
    (home / "my_package" / "inner.py").write_text("from .deep import HIGH\n")
    (home / "my_package" / "deep.py").write_text("HIGH = 2.0\n")
    knobs = ["--name", "r", "--steps", "3000", "--no-dashboard"]
    done = spreeze("script", tmp_path, "train", env, *knobs)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "r" / "summary.json").read_text())
    assert summary["updates"] > 0
    assert summary["restarts"] == 0
    done = spreeze("script", tmp_path, "eval", "r", "--env", env, "--episodes", "12")
    assert done.returncode == 0, done.stderr
    assert ran(tmp_path) == []


def test_python_puts_the_working_folder_on_the_path_only_if_spreeze_is_there() -> None:
    """`python -m spreeze` in src/ of a clone, with nothing installed."""
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-m", "spreeze", "--version"],
        cwd=source,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
