"""What samplers and learner cost each other: both together, against each while the other is stopped.

Everything is measured in turns in one real run, with the same policy, update and cores.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

from spreeze.learning.compiled.job import compile_and_wait
from spreeze.machine.facts import detect_machine
from spreeze.roles.learner.compile_key import compile_keys
from spreeze.run.launch import launch
from spreeze.run.plan import describe_env, make_plan
from spreeze.run.processes.pool import Processes
from spreeze.run.snapshot import Snapshot
from spreeze.settings.config import Config, resolved
from spreeze.settings.defaults import config_with
from spreeze.store.rundir import RunDir

NO_RATIO_BOUNDS = (0.0, 1e6)
"""Updates per env step that never make a role wait."""
WARM_S, SETTLE_S, NUM_TURNS = 3.0, 0.3, 5
START_LIMIT_S = 120.0
STOPPED: dict[str, tuple[str, ...]] = {
    "together": (),
    "sample": ("learner",),
    "update": ("sampler",),
}
"""The roles that are stopped while something is measured."""


class Progress(NamedTuple):
    """What happened in one turn."""

    seconds: float
    env_steps: int
    updates: int


@dataclass
class Turns:
    """An observer of a run that stops roles in turns."""

    seconds: float
    turns: dict[str, list[Progress]] = field(default_factory=lambda: {name: [] for name in STOPPED})
    """The turns of each kind."""

    def __post_init__(self) -> None:
        """Prepare for the first snapshot."""
        self._now, self._pids = Snapshot(), dict[str, int]()
        self._course = self._take_turns()

    def __call__(self, snapshot: Snapshot, run: RunDir, config: Config) -> None:
        """Take a snapshot of the run."""
        self._now = replace(snapshot)  # the run goes on changing its own
        self._pids = run.read("status").get("pids", {})
        next(self._course, None)

    def sample_hz(self, kind: str) -> float:
        """Env steps per second in the turns of a kind."""
        return sum(turn.env_steps for turn in self.turns[kind]) / self._seconds(kind)

    def update_hz(self, kind: str) -> float:
        """Updates per second in the turns of a kind."""
        return sum(turn.updates for turn in self.turns[kind]) / self._seconds(kind)

    def _seconds(self, kind: str) -> float:
        return sum(turn.seconds for turn in self.turns[kind])

    def _take_turns(self) -> Iterator[None]:
        while self._now.updates == 0:
            yield
        yield from self._wait(WARM_S)
        turn_s = self.seconds / (NUM_TURNS * len(STOPPED))
        for _ in range(NUM_TURNS):
            for kind, roles in STOPPED.items():
                stopped = [pid for name, pid in self._pids.items() if name.startswith(roles)]
                stopped += [
                    child.pid for pid in stopped for child in psutil.Process(pid).children()
                ]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                try:
                    yield from self._wait(SETTLE_S)
                    before = self._now
                    yield from self._wait(turn_s)
                    self.turns[kind].append(_progress(before, self._now))
                finally:
                    for pid in stopped:
                        os.kill(pid, signal.SIGCONT)
        signal.raise_signal(signal.SIGINT)  # ends the run

    def _wait(self, seconds: float) -> Iterator[None]:
        """Take snapshots until this much time of the run has passed."""
        until_s = self._now.time_s + seconds
        while self._now.time_s < until_s:
            yield


def _progress(before: Snapshot, after: Snapshot) -> Progress:
    return Progress(
        after.time_s - before.time_s,
        after.env_steps - before.env_steps,
        after.updates - before.updates,
    )


def measure(config: Config, seconds: float) -> dict[str, Any]:
    """Env steps and updates per second of a run, and of each side while the other is stopped."""
    config = config_with(
        config, {"learner.ratio_bounds": NO_RATIO_BOUNDS, "sampler.random_steps": 0}
    )
    processes = Processes()
    try:
        spec = describe_env(config.env, config, processes, [])
        chosen = make_plan(config, spec, detect_machine(), processes).config
    finally:
        processes.close()
    batch_size = resolved(chosen.learner.batch_size)
    for key in compile_keys(chosen, spec, batch_size):
        compile_and_wait(key)  # so that the run has it from the start
    turns = Turns(seconds)
    with TemporaryDirectory() as folder:
        limits: dict[str, Any] = {"runs": folder, "time": f"{START_LIMIT_S + 2 * seconds}s"}
        limits |= {"steps": None, "target": None, "dashboard": False}
        launch(config_with(chosen, limits), config.env, turns)
    if not all(turns.turns.values()):
        raise RuntimeError(f"the run did not begin to learn within {START_LIMIT_S:.0f} s")
    rates = {
        "sample_hz": turns.sample_hz("together"),
        "update_hz": turns.update_hz("together"),
        "sample_alone_hz": turns.sample_hz("sample"),
        "update_alone_hz": turns.update_hz("update"),
    }
    return {
        "env": config.env,
        "device": chosen.device,
        "processes": resolved(chosen.sampler.processes),
        "envs_per_process": resolved(chosen.sampler.envs_per_process),
        "batch_size": batch_size,
        **rates,
        "sample_ratio": rates["sample_hz"] / rates["sample_alone_hz"],
        "update_ratio": rates["update_hz"] / rates["update_alone_hz"],
    }
