"""What every role is given, and the loop around it.

A role is a generator: what comes before its first `yield` is set-up, each `yield` ends one unit of
work, `finally` is teardown. So stopping, heartbeat and crash report exist once, here, and running
all roles in one process is a loop over the same generators (`backends.serial`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from spreeze.envs.targets import EnvTarget
from spreeze.rows import Layout, row_layout
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.experience import Experience
from spreeze.wires.weights import Weights

ROLES = ("sampler", "learner", "evaluator", "visualizer")


@dataclass(frozen=True)
class Job:
    """One role to run: plain data, so that it can be sent to another process."""

    role: str
    index: int
    config: Config
    spec: EnvSpec
    env: EnvTarget
    run_path: Path
    started_s: float
    """When the command began, on the monotonic clock: times of all processes count from there."""

    @property
    def name(self) -> str:
        """As in file names and process titles."""
        return f"{self.role}-{self.index}"


@dataclass
class Context:
    """A job joined to the wires and the clock of the process it runs in."""

    job: Job
    experience: Experience
    weights: Weights
    control: Control
    now: Callable[[], float]
    """Seconds since the command began; steps of work in serial mode, so that a seed repeats."""
    idle: Callable[[float], None]
    """Do nothing for so many seconds."""
    recorder: Recorder

    @property
    def config(self) -> Config:
        """The resolved config of the run."""
        return self.job.config

    @property
    def spec(self) -> EnvSpec:
        """The environment's description."""
        return self.job.spec

    @property
    def layout(self) -> Layout:
        """The format of a row."""
        return row_layout(self.job.spec, self.config.hyper.row_format())

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return RunDir(self.job.run_path)

    @property
    def counters(self) -> Any:
        """This role's own record on the control wire."""
        table = {"sampler": "samplers"}.get(self.job.role, self.job.role)
        record = getattr(self.control, table)
        return record[self.job.index : self.job.index + 1].reshape(()) if record.ndim else record

    def seed(self, num: int = 1) -> list[int]:
        """Seeds of this role's own: independent of those of every other role and index."""
        key = (ROLES.index(self.job.role), self.job.index)
        sequence = np.random.SeedSequence(self.config.seed, spawn_key=key)
        return [int(word) for word in sequence.generate_state(num)]

    def note(self, what: str) -> None:
        """A line in this role's log, with the seconds since the command."""
        print(f"{self.now():8.2f} s  {what}", flush=True)

    def wait(self, seconds: float) -> None:
        """Idle on purpose, and count it as such."""
        before = self.now()
        self.idle(seconds)
        self.counters["waited_s"] += self.now() - before


def join(
    job: Job, arena: Arena, now: Callable[[], float], idle: Callable[[float], None]
) -> Context:
    """The context of a job whose run has its wires in `arena`."""
    block = resolved(job.config.sampler.envs_per_process)
    return Context(
        job=job,
        experience=Experience(arena, block),
        weights=Weights(arena),
        control=Control(arena),
        now=now,
        idle=idle,
        recorder=Recorder(RunDir(job.run_path).metrics / f"{job.name}.jsonl"),
    )


def start(context: Context) -> Iterator[None]:
    """The generator of a role; its module is imported only where it runs."""
    generator: Iterator[None] = import_module(f"spreeze.roles.{context.job.role}").run(context)
    return generator


def drive(context: Context) -> None:
    """Run one role until the run stops."""
    counters, control = context.counters, context.control
    role = start(context)
    try:
        for _ in role:
            counters["beats"] += 1
            if control.stopping:
                break
    finally:
        role.close()  # type: ignore[attr-defined]
        context.recorder.close()
