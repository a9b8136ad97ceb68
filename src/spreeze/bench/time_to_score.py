"""Seconds from the command to a score: Spreeze and other frameworks on this machine, in turns.

Every framework starts as a command, so imports count, and is judged by the mean return of 10 episodes
without exploration noise. Spreeze evaluates in a separate process. The others evaluate in the process
that trains, and that time is not counted against them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np

from spreeze.bench.peer import EVALUATION_SHARE
from spreeze.errors import UsageError
from spreeze.store.curves import interval, iqm, read_curve
from spreeze.store.rundir import RunDir

PACKAGES = {"spreeze": "spreeze", "sb3": "stable_baselines3", "sbx": "sbx"}
TARGETS = {"Pendulum-v1": -200.0}
"""For tasks without a threshold in Gymnasium."""
PREPARED = "spreeze prepared"
"""A second run of Spreeze, which finds in the cache what the first one has compiled."""
GRACE_S = 60.0
"""What another framework may take beyond its training and evaluations, such as for its start."""

Curve = list[list[float]]
"""Rows [time_s, env_steps, updates, return]."""


@dataclass(frozen=True)
class Task:
    """A return to reach in a time."""

    env: str
    target: float
    limit_s: float
    cold: bool = False
    """Whether Spreeze starts with an empty cache."""
    prepared: bool = False
    """Whether it then runs again, with what the first run has left in the cache."""


def check_frameworks(asked: str | None) -> list[str]:
    """The frameworks to measure: those asked for, or all that are installed."""
    if asked is None:
        return [name for name, package in PACKAGES.items() if find_spec(package)]
    names = [name.strip() for name in asked.split(",")]
    problems = []
    for name in names:
        if name not in PACKAGES:
            problems.append(f"--frameworks {name}: must be one of {', '.join(PACKAGES)}.")
        elif not find_spec(PACKAGES[name]):
            problems.append(
                f"--frameworks {name}: {PACKAGES[name]} is not installed. pip install {PACKAGES[name]}"
            )
    if problems:
        raise UsageError(problems)
    return names


def usual_target(env: str) -> float:
    """The return at which a task counts as solved."""
    try:
        target = TARGETS.get(env, gymnasium.spec(env).reward_threshold)
    except gymnasium.error.Error:
        target = None
    if target is None:
        raise UsageError(
            [f"--target: Gymnasium has no threshold for {env}. Give the return to reach."]
        )
    return float(target)


def measure(
    task: Task, seeds: Iterable[int], frameworks: list[str], report: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds and curves by framework and seed. `report` gets a line after each run."""
    if task.prepared and "spreeze" in frameworks:
        frameworks = [*frameworks, PREPARED]
    seeds = list(seeds)
    wall_s: dict[str, list[float | None]] = {name: [] for name in frameworks}
    curves: dict[str, list[Curve]] = {name: [] for name in frameworks}
    with TemporaryDirectory() as folder:
        for seed in seeds:
            for name in frameworks:
                if name in ("spreeze", PREPARED):
                    seconds, curve = run_spreeze(task, seed, Path(folder), again=name == PREPARED)
                else:
                    seconds, curve = run_peer(PACKAGES[name], task, seed)
                wall_s[name].append(seconds)
                curves[name].append(curve)
                best = max((row[3] for row in curve), default=float("nan"))
                result = (
                    f"not in {task.limit_s:g} s, best {best:.1f}"
                    if seconds is None
                    else f"{seconds:.1f} s"
                )
                report(f"{task.env} to {task.target:g}, seed {seed}: {name} {result}")
    return {
        "env": task.env,
        "target": task.target,
        "limit_s": task.limit_s,
        "cold": task.cold,
        "seeds": seeds,
        "wall_s": wall_s,
        "iqm_s": {name: _typical(seconds, task.limit_s) for name, seconds in wall_s.items()},
        "curves": curves,
    }


def _typical(seconds: list[float | None], limit_s: float) -> tuple[float, float, float]:
    """Interquartile mean and its 95 % interval. A run that missed the target counts as its limit."""
    values = np.array([[limit_s if value is None else value] for value in seconds])
    low, high = interval(values)
    return float(iqm(values)[0]), float(low[0]), float(high[0])


def run_spreeze(
    task: Task, seed: int, folder: Path, again: bool = False
) -> tuple[float | None, Curve]:
    """Seconds to the target, from the run's summary, and its curve."""
    name = f"seed-{seed}-again" if again else f"seed-{seed}"
    command = ["train", task.env, "--target", str(task.target), "--time", f"{task.limit_s}s"]
    command += ["--seed", str(seed), "--runs", str(folder), "--name", name]
    cache = {"XDG_CACHE_HOME": str(folder / f"cache-{seed}")} if task.cold else {}
    alone = {"SPREEZE_BACKGROUND": "0"}  # nothing of this run goes on beside the next one
    _run([sys.executable, "-m", "spreeze", *command], env=os.environ | alone | cache)
    run = RunDir(folder / name)
    return run.read("summary")["time_to_target_s"], read_curve(run).tolist()


def run_peer(package: str, task: Task, seed: int) -> tuple[float | None, Curve]:
    """Seconds to the target and the curve of another framework."""
    numbers = (task.target, task.limit_s, seed, time.monotonic())
    command = [
        sys.executable,
        "-P",
        "-m",
        "spreeze.bench.peer",
        package,
        task.env,
        *map(str, numbers),
    ]
    printed = _run(command, timeout=peer_timeout_s(task.limit_s))
    curve = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    reached = [row[0] for row in curve if row[3] >= task.target]
    return (reached[0] if reached else None), curve


def peer_timeout_s(limit_s: float) -> float:
    """When to kill another framework that trains for `limit_s` and evaluates beside that."""
    return limit_s * (1 + EVALUATION_SHARE) + GRACE_S


def _run(command: list[str], **options: Any) -> str:
    """Run a command and return what it printed, until its timeout if it has one."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode()
    if done.returncode:
        raise RuntimeError(f"{done.stderr}\n{' '.join(command[:4])} ... failed")
    return str(done.stdout)
