"""One run of a framework, judged from outside: every policy that it saves is played by a separate program.

While the judge plays, all processes of the framework are stopped, and the clock with them. So every framework
has the machine to itself, and is judged by the same episodes at the same intervals.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from spreeze.bench.clock import POLL_S, Clock, Family
from spreeze.errors import RunFailed
from spreeze.machine.lifeline import adopt_orphans

EPISODES = 10
"""Of one judgement, each of them fresh."""
HELD = 5
"""So many judgements in a row at the target count as holding it."""
CONFIRMED_EPISODES = 50
"""Played once more with the policy that reached the target."""


class Saved(NamedTuple):
    """A policy on disk."""

    policy: str
    env_steps: int
    updates: int
    batch_size: int = 0
    """Transitions of an update; 0 if it is not known."""


@dataclass(frozen=True)
class Program:
    """How a framework is started, and where its newest policy is."""

    train: list[str]
    judge: list[str]
    variables: dict[str, str]
    newest: Callable[[], Saved | None]


@dataclass(frozen=True)
class Task:
    """A mean return to reach within a time, and how often is looked."""

    env: str
    target: float
    limit_s: float
    every_s: float


@dataclass
class Trial:
    """What came of a run."""

    seed: int
    reached_s: float | None = None
    """When the first policy at the target was saved, in seconds since the command, without the judge's."""
    held_s: float | None = None
    """When the first policy of HELD in a row at the target was saved."""
    confirmed: float | None = None
    """Mean return of fresh episodes of the policy that reached the target."""
    curve: list[list[float]] = field(default_factory=list)
    """Rows [time_s, env_steps, updates, return]."""
    learned_rows: int = 0
    """Transitions that updates went through, from the first row of the curve to the last."""
    own_cores: float = 0.0
    """Cores that its processes used, on average."""
    gpu_percent: float | None = None
    """Use of the GPUs just before each judgement, on average."""
    other_cores: float = 0.0
    """Cores that other programs used meanwhile, on average."""
    stolen_cores: float = 0.0
    """Cores that the machine's host took away, on average."""
    tries: int = 1
    """How often it was run until nothing disturbed it."""
    error: str | None = None
    """The end of what a framework printed that ended by itself, in error."""

    def to_json(self) -> dict[str, Any]:
        """As results keep it."""
        return asdict(self)


class Judge:
    """A program that plays policies. It loads the framework before the clock starts."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        """Start it, and wait until it is ready."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self._asked = 0
        self._answer()

    def mean(self, policy: str, episodes: int, seed: int) -> float:
        """The mean return of episodes that were not played before."""
        ask = {"policy": policy, "episodes": episodes, "seed": 1_000_000 * (seed + 1) + self._asked}
        self._asked += episodes
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(ask), file=self._process.stdin, flush=True)
        returns = self._answer()
        return sum(returns) / len(returns)

    def _answer(self) -> list[float]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            _, printed = self._process.communicate()
            raise RunFailed(f"the judge ended: {printed[-2000:].strip()}")
        returns: list[float] = json.loads(line)
        return returns

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def _cleaned_up() -> Iterator[None]:
    """Let SIGTERM leave this block as Ctrl-C does, with all that a framework has started ended on the way."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@_cleaned_up()
def run(program: Program, task: Task, seed: int, log: Path) -> Trial:
    """Start a framework's command and judge what it saves, until the target was held, or the time is up."""
    trial = Trial(seed)
    judge = Judge(program.judge, program.variables)
    family = Family()
    try:
        with log.open("w") as printed:
            process = psutil.Popen(
                program.train,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=program.variables,
                start_new_session=True,
            )
        clock = Clock(family)
        try:
            by_itself = _follow(program, task, trial, judge, process, clock)
            trial.own_cores, trial.other_cores, trial.stolen_cores = clock.cores()
            trial.gpu_percent = clock.gpu_percent()
        finally:
            family.end(process)
        if by_itself and process.returncode != 0:
            trial.error = log.read_text(errors="replace")[-2000:].strip()
    finally:
        adopt_orphans(False)
        judge.close()
    return trial


def _follow(
    program: Program, task: Task, trial: Trial, judge: Judge, process: psutil.Popen, clock: Clock
) -> bool:
    """Judge the newest policy whenever it is time, until the run is decided. True if it ended by itself."""
    saved, saved_s, judged_s, at_target = None, 0.0, -task.every_s, list[float]()
    ended = False
    while not ended and clock.seconds() < task.limit_s:
        ended = process.poll() is not None
        if (newest := program.newest()) != saved:
            saved, saved_s = newest, clock.seconds()
        if saved is None or clock.seconds() < judged_s + task.every_s:
            time.sleep(POLL_S)
            continue
        again = bool(trial.curve) and saved_s < judged_s
        judged_s = clock.seconds()
        with clock.stopped():
            saved = program.newest() or saved  # an older one may have been removed since
            mean = judge.mean(saved.policy, EPISODES, trial.seed)
            time_s = judged_s if again else saved_s
            if trial.curve:
                fresh = saved.updates - int(trial.curve[-1][2])
                trial.learned_rows += fresh * saved.batch_size
            trial.curve.append([round(time_s, 3), saved.env_steps, saved.updates, mean])
            if mean >= task.target and trial.reached_s is None:
                trial.reached_s = time_s
                trial.confirmed = judge.mean(saved.policy, CONFIRMED_EPISODES, trial.seed)
        at_target = [*at_target, time_s] if mean >= task.target else []
        if len(at_target) == HELD:
            trial.held_s = at_target[0]
            return False
    return ended
