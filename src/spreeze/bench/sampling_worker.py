"""One measured process: a sampler and the bare simulator, in turns.

The reference steps the same environments from the same seeds with the actions that the sampler took,
and does nothing else. Both sides simulate the same, so the difference is the cost of the sampler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

import cloudpickle
import numpy as np
import psutil
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spreeze.envs.group import make_group
from spreeze.envs.targets import make_env
from spreeze.roles.context import Context, join, start
from spreeze.rows import steps_in_row
from spreeze.settings.config import resolved
from spreeze.wires.arena import Arena, Block
from spreeze.wires.experience import COMMITTED

PARTS_ROUNDS = 200
WORKING_SHARE = 0.9
"""Share of a turn that is measured. The rest lets slower processes catch up."""


class Side(StrEnum):
    """What takes turns."""

    SAMPLER = "sampler"
    SAME_ACTIONS = "same actions"
    """The bare simulator with the actions that the sampler took."""
    RANDOM_ACTIONS = "random actions"
    """The bare simulator with uniformly random actions."""


class StartLine:
    """Shared flags that let all processes begin at the same time."""

    def __init__(self, arena: Arena) -> None:
        """Look at an arena that has `blocks`."""
        self.ready, self.go = arena["bench.ready"], arena["bench.go"]

    @staticmethod
    def blocks(num_processes: int) -> list[Block]:
        """Memory for the flags: one per process that is ready, and one that starts them."""
        ready = Block("bench.ready", (num_processes,), np.int64)
        return [ready, Block("bench.go", (1,), np.int64)]

    def wait(self, index: int) -> None:
        """Report this process as ready and wait for the start."""
        self.ready[index] = 1
        while not self.go[0]:
            time.sleep(0.001)


@dataclass
class Timing:
    """Env steps and the seconds they took."""

    steps: int = 0
    seconds: float = 0.0

    @property
    def hz(self) -> float:
        """Steps per second."""
        return self.steps / max(self.seconds, 1e-9)


Play = Callable[[Timing, float], None]
"""Steps the bare simulator and adds to a timing, until it covers the given seconds or the actions run out."""


def main(payload: bytes, report_fd: int, arena_fd: int) -> int:
    """The main function of a measured process."""
    job, blocks, num_rounds, turn_s = cloudpickle.loads(payload)
    arena = Arena(arena_fd, blocks)
    ctx = join(job, arena, lambda: time.monotonic() - job.started_s, time.sleep)
    bench = SamplerBench(ctx)
    bench.run_sampler(turn_s, Timing())  # warms up, and takes the actions for the reference
    bench.prepare_references()
    StartLine(arena).wait(job.index)
    began = time.monotonic()
    hz: dict[Side, list[float]] = {side: [] for side in Side}
    for turn, side in enumerate(list(Side) * num_rounds):
        timing = Timing()
        bench.take_turn(side, turn_s * WORKING_SHARE, timing)
        hz[side].append(timing.hz)
        time.sleep(max(0.0, began + (turn + 1) * turn_s - time.monotonic()))
    parts = bench.parts(1e6 / median(hz[Side.SAMPLER]))
    os.write(report_fd, cloudpickle.dumps({"hz": hz, "parts": parts, "pss_mb": bench.pss_mb}))
    return 0


class SamplerBench:
    """One sampler, and the bare simulator that takes the same actions."""

    def __init__(self, ctx: Context) -> None:
        """Measure the sampler of `ctx`, which is set up as in a run."""
        self._ctx = ctx
        self._num_envs = resolved(ctx.config.sampler.envs_per_process)
        self._lane: NDArray[np.void] = ctx.experience._rows[ctx.job.index]
        self._segment = steps_in_row(ctx.spec, ctx.config.hyper.row_format())
        self._rounds = (len(self._lane) // self._num_envs - 1) * self._segment
        self._references: dict[Side, Play] = {}
        self.pss_mb = 0.0
        """Memory of the sampler, measured before the references are made in this process."""

    def run_sampler(self, seconds: float, timing: Timing) -> None:
        """Run the sampler's role, each time from its first step."""
        counters = self._ctx.counters
        counters["env_steps"] = 0
        self._ctx.experience._words[self._ctx.job.index] = 0
        role = start(self._ctx)
        next(role)
        steps, began = int(counters["env_steps"]), time.perf_counter()
        for i in range(self._rounds):
            next(role)
            if time.perf_counter() - began > seconds and i >= self._segment:
                break
        timing.seconds += time.perf_counter() - began
        timing.steps += int(counters["env_steps"]) - steps
        self.pss_mb = self.pss_mb or _pss_mb()
        role.close()

    def take_turn(self, side: Side, seconds: float, timing: Timing) -> None:
        """One turn of a side. A bare simulator starts over until the time is up."""
        if side is Side.SAMPLER:
            self.run_sampler(seconds, timing)
            return
        while timing.seconds < seconds:
            self._references[side](timing, seconds)

    def prepare_references(self) -> None:
        """Make the same environments, with the actions that the sampler took and with random ones."""
        ctx, num = self._ctx, self._num_envs
        stored = int(ctx.experience._words[ctx.job.index, COMMITTED])
        num_rows = min(int(ctx.counters["env_steps"]) // self._segment, stored) // num
        policy = ctx.make_policy()
        rows = self._lane["action"][: num_rows * num].reshape(num_rows, num, self._segment, -1)
        taken = rows.swapaxes(1, 2).reshape(num_rows * self._segment, num, -1)
        policy.seed(0)
        random = policy.act_randomly(len(taken) * num).reshape(taken.shape)
        seed = ctx.seed(2)[0] % 2**31
        first: Any = make_env(ctx.job.env)
        vector = isinstance(first, VectorEnv)
        envs = [] if vector else [first, *(make_env(ctx.job.env) for _ in range(num - 1))]
        for side, chosen in ((Side.SAME_ACTIONS, taken), (Side.RANDOM_ACTIONS, random)):
            actions = np.stack([policy.to_env_action(row) for row in chosen])
            self._references[side] = (
                _vector_reference(first, actions, seed)
                if vector
                else _loop_reference(envs, actions, seed)
            )

    def parts(self, us_per_step: float) -> dict[str, float]:
        """Microseconds of an env step by what they are spent on."""
        ctx, num = self._ctx, self._num_envs
        hyper = ctx.config.hyper
        group = make_group(ctx.job.env, ctx.spec, num, hyper.row_format())
        policy = ctx.make_policy()
        ctx.weights.fetch(policy.vector, 0)
        lane = ctx.experience.writer(ctx.job.index)
        spent = dict.fromkeys(("simulate", "act", "step"), 0.0)
        stepper: Any = group._stepper
        bare = stepper.step

        def timed(*arguments: Any) -> None:
            began = time.perf_counter()
            bare(*arguments)
            spent["simulate"] += time.perf_counter() - began

        stepper.step = timed
        group.reset(0)
        for _ in range(PARTS_ROUNDS):
            began = time.perf_counter()
            actions = policy.act(group.obs, True)
            env_actions = policy.to_env_action(actions)
            acted = time.perf_counter()
            lane.commit(group.step(actions, env_actions, 1, lane.reserve(), policy.log_prob))
            spent["act"] += acted - began
            spent["step"] += time.perf_counter() - acted
        group.close()
        us = {name: 1e6 * value / (PARTS_ROUNDS * num) for name, value in spent.items()}
        write = us.pop("step") - us["simulate"]
        return {**us, "write": write, "rest": us_per_step - sum(us.values()) - write}


def _loop_reference(envs: list[Any], actions: NDArray[np.float32], seed: int) -> Play:
    """Plain environments as `gymnasium.make` gives them, one after the other."""
    steps = [env.step for env in envs]

    def play(timing: Timing, seconds: float) -> None:
        for i, env in enumerate(envs):
            env.reset(seed=seed + i)
        began, limit = time.perf_counter(), seconds - timing.seconds
        for row in actions:
            for i, step in enumerate(steps):
                _, _, terminated, truncated, _ = step(row[i])
                if terminated or truncated:
                    envs[i].reset()
            timing.steps += len(envs)
            if time.perf_counter() - began > limit:
                break
        timing.seconds += time.perf_counter() - began

    return play


def _vector_reference(
    env: VectorEnv[Any, Any, Any], actions: NDArray[np.float32], seed: int
) -> Play:
    """The vector environment as it is."""

    def play(timing: Timing, seconds: float) -> None:
        env.reset(seed=seed)
        began, limit = time.perf_counter(), seconds - timing.seconds
        for row in actions:
            env.step(row)
            timing.steps += env.num_envs
            if time.perf_counter() - began > limit:
                break
        timing.seconds += time.perf_counter() - began

    return play


def _pss_mb() -> float:
    """Memory of this process in MB. Shared pages count in proportion (PSS)."""
    return float(psutil.Process().memory_full_info().pss) / 2**20
