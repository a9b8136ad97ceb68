"""Seconds from the command to a score: Spreeze and other frameworks on this machine, one at a time.

Each framework starts as a command, so imports count, and each is judged from outside in the same way (see trial.py).
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np

from spreeze.bench import trial
from spreeze.bench.peers.environment import python_of, versions_of
from spreeze.bench.peers.settings import FOLDER, Contestant
from spreeze.bench.training import steps_per_row
from spreeze.bench.trial import Program, Saved, Task, Trial
from spreeze.errors import DamagedFile, RunFailed, UsageError
from spreeze.store.curves import interval, iqm
from spreeze.store.rundir import RunDir

TARGETS = {"Pendulum-v1": -200.0}
"""For tasks without a threshold in Gymnasium."""
SPREEZE, PREPARED = "spreeze", "spreeze prepared"
"""Prepared: a second run, which finds in the cache what the first one has compiled and measured."""
MAY_BE_USED, MAY_BE_STOLEN = 0.1, 0.05
"""Cores. A run during which other programs, or the machine's host, took more is repeated."""
MAX_TRIES = 3

Report = Callable[[str], None]


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


@dataclass(frozen=True)
class Contest:
    """Who runs, and how."""

    task: Task
    seeds: list[int]
    against: list[Contestant]
    cold: bool
    """Whether Spreeze starts with an empty cache."""
    prepared: bool
    """Whether it then runs again, with what the first run has left in the cache."""
    here: bool
    """Whether the others use the packages of this Python instead of their locked environments."""


def measure(contest: Contest, report: Report) -> dict[str, Any]:
    """Run everybody with every seed, in random order. `report` gets a line after each run."""
    pythons = {
        peer.framework: sys.executable if contest.here else python_of(peer.framework, report)
        for peer in contest.against
    }
    names = [SPREEZE, *[PREPARED] * contest.prepared, *(peer.name for peer in contest.against)]
    trials: dict[str, list[Trial]] = {name: [] for name in names}
    order = [(seed, peer) for seed in contest.seeds for peer in (None, *contest.against)]
    np.random.default_rng(0).shuffle(order)
    for seed, peer in order:
        one = Turn(contest.task, seed, report)
        if peer is not None:
            trials[peer.name].append(one.of_peer(peer, pythons[peer.framework]))
        else:
            for name, result in one.of_spreeze(contest.cold, contest.prepared).items():
                trials[name].append(result)
    for runs in trials.values():
        runs.sort(key=lambda result: result.seed)
    return {
        "env": contest.task.env,
        "target": contest.task.target,
        "limit_s": contest.task.limit_s,
        "judged_every_s": contest.task.every_s,
        "cold": contest.cold,
        "seeds": contest.seeds,
        "settings": {
            peer.name: {"source": peer.source, "arguments": peer.arguments}
            for peer in contest.against
        },
        "versions": {name: versions_of(python) for name, python in pythons.items()},
        "trials": {name: [result.to_json() for result in runs] for name, runs in trials.items()},
        **summary(trials, contest.task.limit_s),
    }


def summary(trials: dict[str, list[Trial]], limit_s: float) -> dict[str, Any]:
    """Seconds to reach and to hold the target by seed, their interquartile means, and the curves."""
    reached = {name: [result.reached_s for result in runs] for name, runs in trials.items()}
    held = {name: [result.held_s for result in runs] for name, runs in trials.items()}
    return {
        "wall_s": reached,
        "iqm_s": {name: typical(seconds, limit_s) for name, seconds in reached.items()},
        "held_s": held,
        "held_iqm_s": {name: typical(seconds, limit_s) for name, seconds in held.items()},
        "curves": {name: [result.curve for result in runs] for name, runs in trials.items()},
    }


def typical(seconds: list[float | None], limit_s: float) -> tuple[float, float, float]:
    """Interquartile mean and its 95 % interval. A run that missed the target counts as its limit."""
    values = np.array([[limit_s if value is None else value] for value in seconds])
    low, high = interval(values)
    return float(iqm(values)[0]), float(low[0]), float(high[0])


@dataclass(frozen=True)
class Turn:
    """One framework with one seed."""

    task: Task
    seed: int
    report: Report

    def of_spreeze(self, cold: bool, prepared: bool) -> dict[str, Trial]:
        """`spreeze train`, and a second time in the cache that the first has left."""
        with TemporaryDirectory() as folder:
            cache: list[Path | None] = [None]

            def first(tried: Path) -> Program:
                cache[0] = tried / "cache" if cold else None
                return spreeze(self.task, self.seed, tried, cache[0])

            results = {SPREEZE: self._undisturbed(SPREEZE, first, Path(folder) / "first")}
            if prepared:
                second = self._undisturbed(
                    PREPARED,
                    lambda tried: spreeze(self.task, self.seed, tried, cache[0]),
                    Path(folder) / "second",
                )
                results[PREPARED] = second
            return results

    def of_peer(self, peer: Contestant, python: str) -> Trial:
        """Another framework."""
        with TemporaryDirectory() as folder:
            return self._undisturbed(
                peer.name,
                lambda tried: driven(peer, self.task, self.seed, tried, python),
                Path(folder),
            )

    def _undisturbed(self, name: str, program: Callable[[Path], Program], folder: Path) -> Trial:
        """The first run that nothing disturbed, or else the last."""
        for number in range(1, MAX_TRIES + 1):
            tried = folder / f"try-{number}"
            tried.mkdir(parents=True)
            try:
                result = trial.run(program(tried), self.task, self.seed, tried / "printed.txt")
            except RunFailed as error:
                result = Trial(self.seed, error=str(error))
            self.report(f"{self.task.env}, seed {self.seed}: {name} {in_words(result, self.task)}")
            if result.other_cores <= MAY_BE_USED and result.stolen_cores <= MAY_BE_STOLEN:
                break
        return replace(result, tries=number)


def in_words(result: Trial, task: Task) -> str:
    """What came of a run."""
    if result.error is not None:
        return f"failed: {result.error.splitlines()[-1] if result.error else 'it printed nothing'}"
    best = max((row[3] for row in result.curve), default=float("nan"))
    words = (
        f"{result.reached_s:.1f} s"
        if result.reached_s is not None
        else f"not in {task.limit_s:g} s, best {best:.1f}"
    )
    if result.other_cores > MAY_BE_USED or result.stolen_cores > MAY_BE_STOLEN:
        words += f"; other programs used {result.other_cores:.1f} cores, the host took {result.stolen_cores:.1f}"
    return words


def spreeze(task: Task, seed: int, folder: Path, cache: Path | None) -> Program:
    """`spreeze train`. What is judged is the policy that its run folder offers, checkpoints/best."""
    limit = f"{2 * task.limit_s + 60:g}s"  # it is ended from outside
    train = [sys.executable, "-m", "spreeze", "train", task.env, "--time", limit]
    train += ["--seed", str(seed), "--runs", str(folder), "--name", "run"]
    variables = os.environ | {"SPREEZE_BACKGROUND": "0"}  # nothing goes on beside the next run
    if cache is not None:
        variables["XDG_CACHE_HOME"] = str(cache)
    run = RunDir(folder / "run")

    @functools.cache
    def batch_size() -> int:
        rows = int(run.read("config")["config"]["learner"]["batch_size"])
        return rows * steps_per_row(run)

    def newest() -> Saved | None:
        try:
            path = run.checkpoint("best")
            facts = json.loads((path / "config.json").read_text())
        except (UsageError, DamagedFile, OSError):
            return None
        return Saved(str(path), facts["env_steps"], facts["updates"], batch_size())

    judge = driver(sys.executable, "judge", Contestant("spreeze"), task, seed, folder)
    return Program(train, judge, variables, newest)


def driven(peer: Contestant, task: Task, seed: int, folder: Path, python: str) -> Program:
    """Another framework's driver. What is judged is the policy that it has saved last."""

    def newest() -> Saved | None:
        try:
            number, *counts = json.loads((folder / "newest.json").read_text())
        except FileNotFoundError:
            return None
        return Saved(str(folder / f"policy-{number}"), *counts)

    train, judge = (driver(python, what, peer, task, seed, folder) for what in ("train", "judge"))
    return Program(train, judge, dict(os.environ), newest)


def driver(
    python: str, what: str, peer: Contestant, task: Task, seed: int, folder: Path
) -> list[str]:
    """The command of a driver; drivers/program.py says what it reads."""
    request = {
        "framework": peer.framework,
        "env": task.env,
        "seed": seed,
        "settings": peer.arguments,
        "folder": str(folder),
        "every_s": task.every_s,
    }
    return [python, "-P", str(FOLDER / "drivers" / "program.py"), what, json.dumps(request)]
