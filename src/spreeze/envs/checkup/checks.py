"""What a check-up tries, one function per check. `CHECKS` lists them in their order."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import cloudpickle
import numpy as np
import psutil
from gymnasium.vector import VectorEnv

from spreeze.envs.guard import EnvGuard
from spreeze.envs.inspect import inspect_env
from spreeze.envs.step_result import StepResult
from spreeze.envs.stepping import make_stepper
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.envs.traps import ADVICE
from spreeze.errors import EnvBroken
from spreeze.spec import EnvSpec

NUM_STEPS, STEPS_S = 3000, 10.0
SEEDED_STEPS = 200
SLOW_START_S, SLOW_STEP_US = 30.0, 20_000.0
LEAK_BYTES_PER_STEP, LEAK_BYTES = 1000, 4 << 20
LEAKED_FILES = 10
OUTPUT_BYTES_PER_STEP = 10


class Grade(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass
class Patient:
    """An environment, and what earlier checks have found out about it."""

    target: EnvTarget
    name: str
    output: int
    """The file descriptor of what it prints."""
    spec: EnvSpec | None = None
    guard: EnvGuard = field(default_factory=lambda: EnvGuard(most_errors=1.0))
    steps: int = 0
    """Env steps played with random actions."""


Found = Iterator[tuple[Grade, str, str]]


def _made(patient: Patient) -> Found:
    """Made once, with its spaces checked as before a run; samplers get it as a pickle."""
    cloudpickle.loads(cloudpickle.dumps(patient.target))
    patient.spec = spec = inspect_env(patient.target, patient.name)
    took_s, reset_s = spec.construct_s or 0.0, spec.reset_s or 0.0
    grade = Grade.WARNING if took_s > SLOW_START_S else Grade.OK
    advice = "Every sampler makes its own: the run starts, and restarts, this late."
    yield grade, f"made in {took_s:.2f} s, reset in {reset_s:.3f} s", advice


def _spaces(patient: Patient) -> Found:
    spec = patient.spec
    assert spec is not None
    actions = spec.num_actions or f"{spec.action_shape} in bounds"
    limit = spec.max_episode_steps or "no"
    yield Grade.OK, f"observations {spec.obs_shape}, actions {actions}, {limit} step limit", ""


def _traps(patient: Patient) -> Found:
    """What training would silently disregard."""
    assert patient.spec is not None
    for trap in patient.spec.traps:
        yield Grade.WARNING, *ADVICE[trap]
    if not patient.spec.traps:
        yield Grade.OK, "nothing that training would disregard", ""


def _speed(patient: Patient) -> Found:
    assert patient.spec is not None
    step_us = patient.spec.step_us or 0.0
    grade = Grade.WARNING if step_us > SLOW_STEP_US else Grade.OK
    yield grade, f"{step_us:,.0f} us per step", "Sampling will be slow; see docs/tuning.md."


def _seeds(patient: Patient) -> Found:
    """Two instances with the same seed and actions give the same numbers, inside their space."""
    first, second = make_env(patient.target), make_env(patient.target)
    if isinstance(first, VectorEnv) or isinstance(second, VectorEnv):
        yield Grade.OK, "not checked for vector environments", ""
        return
    same, outside = True, 0
    first.action_space.seed(0)
    results = [env.reset(seed=7)[0] for env in (first, second)]
    for _ in range(SEEDED_STEPS):
        same = same and _equal(*results)
        outside += not first.observation_space.contains(results[0])
        action = first.action_space.sample()
        steps = [env.step(action) for env in (first, second)]
        same = same and _equal([s[1:4] for s in steps[:1]], [s[1:4] for s in steps[1:]])
        results = [step[0] for step in steps]
        if any(step[2] or step[3] for step in steps):
            results = [env.reset(seed=8)[0] for env in (first, second)]
    for env in (first, second):
        env.close()
    grade = Grade.OK if same else Grade.WARNING
    said = "the same seed gives the same numbers" if same else "the same seed gives other numbers"
    yield grade, said, "Draw random numbers from self.np_random, after super().reset(seed=seed)."
    if outside:
        said = f"{outside} of {SEEDED_STEPS} observations are outside their space"
        yield Grade.WARNING, said, "Spreeze does not need the bounds; other tools may. Widen them."


def _equal(a: Any, b: Any) -> bool:
    try:
        np.testing.assert_equal(a, b)
    except AssertionError:
        return False
    return True


def _play(patient: Patient) -> Found:
    """Some thousand random steps, as a sampler makes them."""
    spec, guard = patient.spec, patient.guard
    assert spec is not None
    stepper = make_stepper(patient.target, 1, guard)
    out = StepResult(stepper.num_envs, spec)
    env: Any = stepper.env if hasattr(stepper, "env") else stepper.envs[0]
    env.action_space.seed(1)
    space, ends, began_s = env.action_space, [0, 0], time.monotonic()
    vector, before = isinstance(env, VectorEnv), (0, 0)
    try:
        stepper.reset_into(1, out)
        while patient.steps < NUM_STEPS and time.monotonic() - began_s < STEPS_S:
            if patient.steps >= NUM_STEPS // 4 and before == (0, 0):
                before = (_memory_used(), patient.steps)
            action = space.sample()
            stepper.step(action if vector else np.asarray(action)[None], out)
            patient.steps += stepper.num_envs
            ends = [ends[0] + int(out.terminated.sum()), ends[1] + int(out.truncated.sum())]
    except EnvBroken:
        pass  # the counts below say it
    after = (_memory_used(), patient.steps)
    stepper.close()
    yield from _faults(guard, patient.steps)
    said = f"{ends[0]} episodes terminated, {ends[1]} were truncated, each followed by a reset"
    never = Grade.OK if sum(ends) or spec.max_episode_steps else Grade.WARNING
    yield (
        never,
        said,
        "Episodes seem to have no end: give it a time limit (gymnasium.wrappers.TimeLimit).",
    )
    yield from _memory(before, after)


def _faults(guard: EnvGuard, steps: int) -> Found:
    if guard.errors:
        said = f"{guard.errors} exceptions in {steps:,} steps. The newest:\n{guard.newest.strip()}"
        yield Grade.PROBLEM, said, "Each ends an episode; above --limits.env-errors a run fails."
    elif guard.rejected:
        said = f"{guard.rejected} bad numbers in {steps:,} steps: {guard.newest}"
        yield Grade.PROBLEM, said, "Such steps are not stored; find out where they come from."
    if guard.simulation_resets:
        said = f"MuJoCo diverged {guard.simulation_resets} times"
        yield Grade.WARNING, said, "Use a smaller time step, or smaller forces."
    if not guard.errors + guard.rejected:
        yield Grade.OK, f"{steps:,} random steps without a bad number or an exception", ""


def _memory_used() -> int:
    """Bytes of this process alone: what it fills of the memory it was forked with counts too."""
    return int(psutil.Process().memory_full_info().uss)


def _memory(before: tuple[int, int], after: tuple[int, int]) -> Found:
    grown, steps = after[0] - before[0], after[1] - before[1]
    leaks = before[1] > 0 and steps > 0 and grown > max(LEAK_BYTES, LEAK_BYTES_PER_STEP * steps)
    said = f"memory grew by {grown / 2**20:.1f} MiB in {steps:,} steps"
    yield Grade.WARNING if leaks else Grade.OK, said, "It leaks: a long run will run out of memory."


def _files(patient: Patient) -> Found:
    """Files that stay open after episodes."""
    process = psutil.Process()
    before = process.num_fds()
    env = make_env(patient.target)
    for _ in range(LEAKED_FILES):
        env.reset(seed=0)
        env.step(env.action_space.sample())
    opened = process.num_fds() - before
    env.close()
    grade = Grade.WARNING if opened >= LEAKED_FILES else Grade.OK
    said = f"{opened} files open after {LEAKED_FILES} episodes"
    yield grade, said, "Close what each episode opens: a process may have about 1,000 open files."


def _prints(patient: Patient) -> Found:
    with suppress(ValueError):  # it may have closed its output
        sys.stdout.flush()
    printed = os.fstat(patient.output).st_size
    too_much = printed > OUTPUT_BYTES_PER_STEP * max(patient.steps, 1)
    grade = Grade.WARNING if too_much else Grade.OK
    yield grade, f"printed {printed:,} bytes", "It goes to the log of its process, and costs time."


def _left_behind(_: Patient) -> Found:
    left = psutil.Process().children(recursive=True)
    grade = Grade.PROBLEM if left else Grade.OK
    said = f"{len(left)} programs run on after close()"
    yield grade, said, "End them in close(): a run makes and closes many environments."


CHECKS = {
    "start": _made,
    "spaces": _spaces,
    "traps": _traps,
    "speed": _speed,
    "seeds": _seeds,
    "steps": _play,
    "files": _files,
    "output": _prints,
    "programs": _left_behind,
}
"""In the order in which they run."""
