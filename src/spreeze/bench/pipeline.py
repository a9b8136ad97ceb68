"""How much samplers and learner cost each other: rates of both together, against each while the other is stopped.

All in one real run, in turns: the same policy acts, the same update learns, on the same cores.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from spreeze.bench.learner import compiled
from spreeze.machine.facts import detect_machine
from spreeze.roles.learner.compile_key import compile_key
from spreeze.run.launch import launch
from spreeze.run.plan import describe_env, make_plan
from spreeze.run.processes.pool import Processes
from spreeze.run.snapshot import Snapshot
from spreeze.settings.config import Config, config_with, resolved
from spreeze.store.rundir import RunDir

FREE = (0.0, 1e6)
"""Bounds of the ratio that hold nobody back."""
WARM_S, SETTLE_S, NUM_TURNS = 3.0, 0.3, 5
START_LIMIT_S = 120.0
STOPPED: dict[str, tuple[str, ...]] = {
    "together": (),
    "sample": ("learner",),
    "update": ("sampler",),
}
"""By what is measured: the roles that are stopped for it."""


@dataclass
class Turns:
    """Looks on at a run, and stops roles in turns."""

    seconds: float
    counts: dict[str, list[tuple[float, int, int]]] = field(
        default_factory=lambda: {name: [] for name in STOPPED}
    )
    """By turn: seconds, env steps and updates of each time."""

    def __post_init__(self) -> None:
        """Be ready for the first look."""
        self._now, self._pids = Snapshot(), dict[str, int]()
        self._course = self._take_turns()

    def __call__(self, snapshot: Snapshot, run: RunDir, config: Config) -> None:
        """One look."""
        self._now = replace(snapshot)  # it goes on changing
        self._pids = run.read("status").get("pids", {})
        next(self._course, None)

    def rate(self, name: str, which: int) -> float:
        """Env steps (1) or updates (2) per second in the turns of a name."""
        return sum(row[which] for row in self.counts[name]) / sum(r[0] for r in self.counts[name])

    def _take_turns(self) -> Iterator[None]:
        while self._now.updates == 0:
            yield
        yield from self._pass(WARM_S)
        each_s = self.seconds / (NUM_TURNS * len(STOPPED))
        for _ in range(NUM_TURNS):
            for what, roles in STOPPED.items():
                stopped = [pid for name, pid in self._pids.items() if name.startswith(roles)]
                stopped += [
                    child.pid for pid in stopped for child in psutil.Process(pid).children()
                ]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                try:
                    yield from self._pass(SETTLE_S)
                    before = self._now
                    yield from self._pass(each_s)
                    self.counts[what].append(_passed(before, self._now))
                finally:
                    for pid in stopped:
                        os.kill(pid, signal.SIGCONT)
        signal.raise_signal(signal.SIGINT)  # that was all

    def _pass(self, seconds: float) -> Iterator[None]:
        until_s = self._now.time_s + seconds
        while self._now.time_s < until_s:
            yield


def _passed(before: Snapshot, after: Snapshot) -> tuple[float, int, int]:
    return (
        after.time_s - before.time_s,
        after.env_steps - before.env_steps,
        after.updates - before.updates,
    )


def measure(config: Config, seconds: float) -> dict[str, Any]:
    """Sampling and update rates of one config: of the whole run, and with one side stopped."""
    config = config_with(config, {"learner.ratio_bounds": FREE, "sampler.random_steps": 0})
    processes = Processes()
    try:
        spec = describe_env(config.env, config, processes, [])
        chosen = make_plan(config, spec, detect_machine(), processes).config
    finally:
        processes.close()
    batch_size = resolved(chosen.learner.batch_size)
    compiled(compile_key(chosen, spec, batch_size))  # so that the run has it from the start
    turns = Turns(seconds)
    with TemporaryDirectory() as folder:
        limits: dict[str, Any] = {"runs": folder, "time": f"{START_LIMIT_S + 2 * seconds}s"}
        limits |= {"steps": None, "target": None, "dashboard": False}  # nobody looks on
        launch(config_with(chosen, limits), config.env, turns)
    if not all(turns.counts.values()):
        raise RuntimeError(f"the run did not begin to learn within {START_LIMIT_S:.0f} s")
    rates = {
        "sample_hz": turns.rate("together", 1),
        "update_hz": turns.rate("together", 2),
        "sample_alone_hz": turns.rate("sample", 1),
        "update_alone_hz": turns.rate("update", 2),
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
