"""Seconds from the command to a score: Spreeze and other frameworks on this machine, in turns.

Every framework starts as a command, so imports count, and is judged by the mean of 10 episodes without
noise. Spreeze evaluates in a process of its own; the others do it in the one that trains, and the time
that takes is not counted against them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np

from spreeze.errors import UsageError
from spreeze.store.curves import interval, iqm, read_curve
from spreeze.store.rundir import RunDir

PACKAGES = {"spreeze": "spreeze", "sb3": "stable_baselines3", "sbx": "sbx"}
TARGETS = {"Pendulum-v1": -200.0}
"""Where Gymnasium has no threshold."""
JUDGING, GRACE_S = 0.5, 60.0
"""What evaluations of others may take on top of their time, as a share of it, and seconds for the rest."""

Curve = list[list[float]]
"""Rows [time_s, env_steps, updates, return]."""

PEER = """
import json, sys, time
package, env, target, limit_s, seed, began = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
import importlib, gymnasium
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

class Judge(BaseCallback):
    judging_s = took_s = 0.0
    last_s = time.monotonic()

    def _on_step(self):
        now = time.monotonic()
        trained_s = now - began - self.judging_s
        if now - self.last_s < max(1.0, self.took_s / JUDGING):
            return trained_s < limit_s
        mean, _ = evaluate_policy(self.model, arena, 10, warn=False)
        self.last_s = time.monotonic()
        self.took_s = self.last_s - now
        self.judging_s += self.took_s
        updates = getattr(self.model, "_n_updates", 0)
        print(json.dumps([trained_s, self.num_timesteps, updates, float(mean)]), flush=True)
        return mean < target and trained_s < limit_s

arena = Monitor(gymnasium.make(env))
algorithm = "SAC" if isinstance(arena.action_space, gymnasium.spaces.Box) else "PPO"
learner = getattr(importlib.import_module(package), algorithm)
learner("MlpPolicy", env, seed=int(seed)).learn(10**9, callback=Judge())
""".replace("JUDGING", str(JUDGING))


def check_frameworks(asked: str | None) -> list[str]:
    """Those to measure; by default all that are installed."""
    if asked is None:
        return [name for name, package in PACKAGES.items() if find_spec(package)]
    names = [name.strip() for name in asked.split(",")]
    problems = []
    for name in names:
        if name not in PACKAGES:
            problems.append(f"--frameworks {name}: there are {', '.join(PACKAGES)}.")
        elif not find_spec(PACKAGES[name]):
            problems.append(
                f"--frameworks {name}: {PACKAGES[name]} is not installed. pip install {PACKAGES[name]}"
            )
    if problems:
        raise UsageError(problems)
    return names


def usual_target(env: str) -> float:
    """The score at which a task counts as solved."""
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
    env: str,
    target: float,
    limit_s: float,
    seeds: int,
    frameworks: list[str],
    cold: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Seconds and curves by framework and seed; `tell` gets a line after each run."""
    wall_s: dict[str, list[float | None]] = {name: [] for name in frameworks}
    curves: dict[str, list[Curve]] = {name: [] for name in frameworks}
    with TemporaryDirectory() as folder:
        for seed in range(seeds):
            for name in frameworks:
                if name == "spreeze":
                    seconds, curve = _spreeze(env, target, limit_s, seed, Path(folder), cold)
                else:
                    seconds, curve = _peer(PACKAGES[name], env, target, limit_s, seed)
                wall_s[name].append(seconds)
                curves[name].append(curve)
                best = max((row[3] for row in curve), default=float("nan"))
                said = (
                    f"{seconds:.1f} s" if seconds is not None else f"not in time, best {best:.1f}"
                )
                tell(f"{env} to {target:g}, seed {seed}: {name} {said}")
    return {
        "env": env,
        "target": target,
        "limit_s": limit_s,
        "cold": cold,
        "wall_s": wall_s,
        "iqm_s": {name: _typical(seconds, limit_s) for name, seconds in wall_s.items()},
        "curves": curves,
    }


def _typical(seconds: list[float | None], limit_s: float) -> tuple[float, float, float]:
    """Interquartile mean and its 95 % interval; a run that did not get there counts as its limit."""
    values = np.array([[limit_s if value is None else value] for value in seconds])
    low, high = interval(values)
    return float(iqm(values)[0]), float(low[0]), float(high[0])


def _spreeze(
    env: str, target: float, limit_s: float, seed: int, folder: Path, cold: bool
) -> tuple[float | None, Curve]:
    """What the command says of itself."""
    name = f"seed-{seed}"
    command = ["train", env, "--target", str(target), "--time", f"{limit_s}s"]
    command += ["--seed", str(seed), "--runs", str(folder), "--name", name]
    variables = os.environ | ({"XDG_CACHE_HOME": str(folder / f"cache-{seed}")} if cold else {})
    _run([sys.executable, "-m", "spreeze", *command], env=variables)
    run = RunDir(folder / name)
    return run.read("summary")["time_to_target_s"], read_curve(run).tolist()


def _peer(
    package: str, env: str, target: float, limit_s: float, seed: int
) -> tuple[float | None, Curve]:
    """A framework with the interface of Stable-Baselines3, with its defaults: SAC, or PPO for Discrete actions."""
    numbers = (target, limit_s, seed, time.monotonic())
    command = [sys.executable, "-c", PEER, package, env, *map(str, numbers)]
    printed = _run(command, timeout=limit_s * (1 + JUDGING) + GRACE_S)
    curve = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    reached = [row[0] for row in curve if row[3] >= target]
    return (reached[0] if reached else None), curve


def _run(command: list[str], **options: Any) -> str:
    """What a command printed; its own words if it fails."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode()
    if done.returncode:
        raise RuntimeError(f"{done.stderr}\n{' '.join(command[:4])} ... failed")
    return str(done.stdout)
