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

from spreeze.errors import RunFailed
from spreeze.machine.lifeline import adopt_orphans

POLL_S = 0.01
EPISODES = 10
"""Of one judgement, each of them fresh."""
HELD = 5
"""So many judgements in a row at the target count as holding it."""
CONFIRMED_EPISODES = 50
"""Played once more with the policy that reached the target."""
KILL_AFTER_S = 10.0


class Saved(NamedTuple):
    """A policy on disk."""

    policy: str
    env_steps: int
    updates: int


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


class Use(NamedTuple):
    """Seconds of CPU time."""

    busy: float
    """By all programs, with what the host has taken."""
    stolen: float
    family: float
    """By a framework's processes."""

    @classmethod
    def until_now(cls, family: list[psutil.Process]) -> Use:
        """Since the machine, and the processes, were started."""
        cpu, used = psutil.cpu_times(), 0.0
        for process in family:
            with contextlib.suppress(psutil.Error):
                used += sum(process.cpu_times()[:4])  # with children that have ended
        busy = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal
        return cls(busy, cpu.steal, used)


class Family:
    """All that this process has started since, directly or not. It adopts what a parent leaves behind."""

    def __init__(self) -> None:
        """From now on."""
        self._strangers = set(psutil.Process().children())
        adopt_orphans()

    def members(self) -> list[psutil.Process]:
        """The processes now, parents first."""
        found = []
        for child in psutil.Process().children():
            if child not in self._strangers:
                with contextlib.suppress(psutil.Error):
                    found += [child, *child.children(recursive=True)]
        return found

    def end(self, first: psutil.Popen) -> None:
        """Ask the first process to end, then kill what is left, until nothing is."""
        _send(first, signal.SIGTERM)
        with contextlib.suppress(psutil.TimeoutExpired):
            first.wait(KILL_AFTER_S)
        deadline = time.monotonic() + KILL_AFTER_S
        while (left := self.members()) and time.monotonic() < deadline:
            for process in left:
                _send(process, signal.SIGKILL)
            first.poll()  # before anything else can take its exit code
            psutil.wait_procs([process for process in left if process.pid != first.pid], POLL_S)


class Clock:
    """Seconds since the command, without those in which its processes were stopped."""

    def __init__(self, family: Family) -> None:
        """Start."""
        self._family = family
        self._began_s = time.monotonic()
        self._stopped_s = self._others_s = self._stolen_s = 0.0
        self._before = Use.until_now(family.members())

    def seconds(self) -> float:
        """Now."""
        return time.monotonic() - self._began_s - self._stopped_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the framework inside this block."""
        began_s = time.monotonic()
        for _ in range(2):  # a process may have been started in between
            family = self._family.members()
            for process in family:
                _send(process, signal.SIGSTOP)
        self._add_use(family)
        try:
            yield
        finally:
            self._before = Use.until_now(family)
            for process in reversed(family):
                _send(process, signal.SIGCONT)
            self._stopped_s += time.monotonic() - began_s

    def disturbance(self) -> tuple[float, float]:
        """Cores that other programs used, and that the machine's host took, while the clock ran."""
        self._add_use(self._family.members())
        passed_s = max(self.seconds(), POLL_S)
        return max(0.0, self._others_s) / passed_s, self._stolen_s / passed_s

    def _add_use(self, family: list[psutil.Process]) -> None:
        now, before = Use.until_now(family), self._before
        stolen = now.stolen - before.stolen
        self._stolen_s += stolen
        self._others_s += (now.busy - before.busy) - (now.family - before.family) - stolen
        self._before = now


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


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
            trial.other_cores, trial.stolen_cores = clock.disturbance()
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
            trial.curve.append([round(time_s, 3), saved.env_steps, saved.updates, mean])
            if mean >= task.target and trial.reached_s is None:
                trial.reached_s = time_s
                trial.confirmed = judge.mean(saved.policy, CONFIRMED_EPISODES, trial.seed)
        at_target = [*at_target, time_s] if mean >= task.target else []
        if len(at_target) == HELD:
            trial.held_s = at_target[0]
            return False
    return ended
