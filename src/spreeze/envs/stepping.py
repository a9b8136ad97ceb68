"""Stepping: one step of several environments, however they reset and whatever they do wrong.

Auto-reset, truncation and faults are resolved by the steppers and nowhere else. Afterwards `next_obs` is where the
action led, and what was no transition is marked as invalid. `transitions` turns the outcome into rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.episodes import Episode, numbers_in
from spreeze.envs.guard import EnvGuard
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.observations import flattened
from spreeze.envs.step_result import StepResult
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.faults import Doing
from spreeze.spec import EnvSpec, Floats

Stepper = LoopStepper | VectorStepper


def make_stepper(target: EnvTarget, num_envs: int, guard: EnvGuard | None = None) -> Stepper:
    """Make `num_envs` environments; a vector environment keeps its own number."""
    guard = guard or EnvGuard()
    make: Callable[[], Any] = (
        partial(target, num_envs)
        if isinstance(target, EnvPoolTarget)
        else partial(make_env, target)
    )

    def made() -> Any:
        guard.begin(Doing.CONSTRUCT)
        return make()

    first = made()
    is_vector = isinstance(first, VectorEnv)
    envs = [first, *(made() for _ in range(0 if is_vector else num_envs - 1))]
    guard.doing[()] = Doing.OTHER
    if is_vector:
        return VectorStepper(first, make, guard)
    return LoopStepper([flattened(env) for env in envs], lambda: flattened(make()), guard)


def play_episodes(
    stepper: Stepper,
    spec: EnvSpec,
    act: Callable[[Floats], NDArray[Any]],
    num_episodes: int,
    seed: int,
) -> Iterator[list[Episode]]:
    """Play whole episodes. Each step yields the episodes finished so far; the last yield has all of them.

    Every environment plays one episode per round: counting whichever ends first would favour short
    episodes. An episode with a step that is not finite ends there, with the return NaN.
    """
    out = StepResult(stepper.num_envs, spec)
    finished: list[Episode] = []
    while len(finished) < num_episodes:
        stepper.reset_into(seed + len(finished), out)
        seen = out.seen(restarted=True)
        running = np.ones(stepper.num_envs, np.bool_)
        returns, lengths = np.zeros(stepper.num_envs), np.zeros(stepper.num_envs, np.int64)
        infos: list[dict[str, float]] = [{} for _ in range(stepper.num_envs)]
        while running.any():
            stepper.step(act(seen), out)
            seen = out.seen()
            returns[running & ~out.valid] = np.nan
            running &= out.valid
            returns[running] += out.reward[running]
            lengths += running
            for i, info in out.infos.items():
                if running[i]:
                    infos[i] = numbers_in(info)
            running &= ~(out.terminated | out.truncated)
            if not running.any():
                finished += map(Episode, returns.tolist(), lengths.tolist(), infos)
                del finished[num_episodes:]
            yield finished


def play_to_end(
    stepper: Stepper,
    spec: EnvSpec,
    act: Callable[[Floats], NDArray[Any]],
    num_episodes: int,
    seed: int,
) -> list[Episode]:
    """Play whole episodes without interruption."""
    return deque(play_episodes(stepper, spec, act, num_episodes, seed), maxlen=1).pop()
