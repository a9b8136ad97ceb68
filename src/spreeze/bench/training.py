"""A run of `spreeze train` in a separate process, for benchmarks that look at what it leaves on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spreeze.errors import RunFailed
from spreeze.store.rundir import RunDir


def train_for(
    seconds: float, env: str, path: Path, flags: tuple[str, ...] = (), **variables: str
) -> RunDir:
    """Train an environment for this time. `path` is the run directory, which must not exist."""
    command = ["train", env, "--time", f"{seconds}s", "--runs", str(path.parent)]
    command += ["--name", path.name, *flags]
    known = os.environ | {"SPREEZE_BACKGROUND": "0"}  # nothing goes on afterwards
    done = subprocess.run(
        [sys.executable, "-m", "spreeze", *command],
        env=known | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RunFailed(f"{done.stderr.strip()}\nspreeze train {env} failed")
    return RunDir(path)


def steps_per_row(run: RunDir) -> int:
    """How many env steps a row of a run's batches holds: PPO's are segments of several."""
    return int(run.read("config")["config"]["hyper"].get("segment", 1))
