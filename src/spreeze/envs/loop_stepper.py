"""Plain environments, stepped one after the other."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy import ndarray
from numpy.typing import NDArray

from spreeze.envs.calls import EnvCall, PendingCalls
from spreeze.envs.divergence import has_diverged, simulation_of
from spreeze.envs.guard import (
    ATTEMPTS,
    ENV_ERRORS,
    OTHER,
    SINGLE_NUMBERS,
    STEP,
    EnvGuard,
    as_flag,
    as_number,
    as_obs,
)
from spreeze.envs.step_result import StepResult
from spreeze.faults import Doing


class LoopStepper:
    """Plain environments, stepped one after the other: no pipes, no threads, no auto-reset.

    For speed it bypasses the wrappers that `gym.make` puts around every environment: the order of
    `reset` and `step` is right by construction, and the time limit is one comparison.
    """

    rules = None
    """Training takes its steps as they are."""

    def __init__(
        self,
        envs: list[gym.Env[Any, Any]],
        make: Callable[[], gym.Env[Any, Any]],
        guard: EnvGuard | None = None,
    ) -> None:
        """Take over the environments; `close` closes them. One that raises is closed and made again."""
        self.envs = envs
        self.num_envs = len(envs)
        self.guard = guard or EnvGuard()
        self._make = make
        self._steps: list[Any] = [None] * self.num_envs
        self._limits = [math.inf] * self.num_envs
        self._simulations: list[Any] = [None] * self.num_envs
        """MuJoCo's data where an environment has any."""
        self._calls = [PendingCalls() for _ in envs]
        for i, env in enumerate(envs):
            self._adopt(i, env)
        self._lengths = [0] * self.num_envs
        self._times = [math.inf] * self.num_envs
        """Simulated time after the last step; infinite after a reset, so that the first step is looked at."""
        self._shape = envs[0].observation_space.shape or ()
        self._flat = self._shape if len(self._shape) == 1 else None
        """The shape of an observation that need not be flattened."""
        self._types: dict[str, np.dtype[Any]] = {}
        """The type of the first observation of `reset` and of `step`."""
        self._usual: np.dtype[Any] | None = None
        """The type of the last observation of `step`, which the next most likely has too."""
        self._seed, self._remade = 0, 0

    def reset_into(self, seed: int, outcome: StepResult) -> None:
        """Start an episode in every environment."""
        self._seed = seed
        for i in range(self.num_envs):
            outcome.obs[i] = self._reset(i, seed + i)
        self.guard.doing[()] = OTHER

    def step(self, actions: NDArray[Any], outcome: StepResult) -> None:
        """Step each environment; one whose episode ended is reset at once."""
        next_obs, reward, lengths, guard = (
            outcome.next_obs,
            outcome.reward,
            self._lengths,
            self.guard,
        )
        if outcome.any_done_or_invalid:  # in the previous step
            outcome.terminated[:] = outcome.truncated[:] = False
            outcome.valid[:] = True
            outcome.infos.clear()
        guard.doing[()] = STEP
        guard.steps += self.num_envs
        done, failed = [], []
        limits, simulations, times, flat = self._limits, self._simulations, self._times, self._flat
        for i, step in enumerate(self._steps):
            try:
                after, gain, terminated, truncated, info = step(actions[i])
                # A quick test first, which may say no wrongly. No call: this runs for every env step.
                if type(after) is ndarray and after.dtype is self._usual and after.shape == flat:
                    next_obs[i] = after
                else:
                    next_obs[i] = self._checked(after, "step")
                reward[i] = gain if type(gain) in SINGLE_NUMBERS else as_number(gain)
                lengths[i] += 1
                if terminated or truncated or lengths[i] >= limits[i]:
                    outcome.terminated[i] = as_flag(terminated, "terminated")
                    late = lengths[i] >= limits[i]
                    outcome.truncated[i] = as_flag(truncated, "truncated") or late
                    outcome.infos[i] = info
                    done.append(i)
                if (simulation := simulations[i]) is not None:
                    before, times[i] = times[i], simulation.time
                    if times[i] <= before and has_diverged(simulation):
                        guard.simulation_reset()
                        failed.append(i)
            except ENV_ERRORS as error:
                guard.error(error)
                self._steps[i] = None
                failed.append(i)
        if failed or not guard.all_fine(outcome.numbers):
            done = self._refuse(failed, done, outcome)
        outcome.any_done_or_invalid = bool(done)
        outcome.obs[:] = next_obs
        for i in done:
            outcome.obs[i] = self._reset(i, None)
        guard.doing[()] = OTHER

    def take_calls(self, calls: Sequence[EnvCall]) -> None:
        """These are the newest calls. Each is made before an environment's next reset, or now if it says so."""
        for env, mine in zip(self.envs, self._calls, strict=True):
            mine.take(calls)
            try:
                mine.make(env, only_now=True)
            except ENV_ERRORS as error:  # tried again before the next reset
                self.guard.error(error)

    def _checked(self, obs: Any, method: str) -> NDArray[Any]:
        """An observation as a flat array; BadOutput if it does not fit, or is unlike the first of this method."""
        array = as_obs(obs, self._shape, self._types.get(method))
        self._types.setdefault(method, array.dtype)
        if method == "step":
            self._usual = array.dtype
        return array.ravel()

    def _refuse(self, failed: list[int], done: list[int], outcome: StepResult) -> list[int]:
        """Mark the steps that went wrong; returns all environments to be reset."""
        for i in failed:
            outcome.refuse(i)
        bad = np.flatnonzero(~self.guard.fine_rows(outcome.reward, outcome.next_obs)).tolist()
        if bad:
            first = outcome.next_obs[bad[0]], outcome.reward[bad[0]]
            self.guard.reject(len(bad), self.guard.bad_number("step", *first))
            for i in bad:
                outcome.refuse(i)
        if not outcome.valid.any():
            self.guard.all_failed(self.num_envs)
        return sorted({*failed, *bad, *done})

    def _reset(self, i: int, seed: int | None) -> NDArray[Any]:
        """Start an episode; an environment that raised is made again first."""
        self._lengths[i], self._times[i] = 0, math.inf
        for _ in range(ATTEMPTS):
            if self._steps[i] is None:
                self._remake(i)
                seed = self._fresh_seed() if seed is None else seed
            self.guard.begin(Doing.RESET)
            try:
                if self._calls[i].pending:
                    self._calls[i].make(self.envs[i])
                obs = self._checked(self.envs[i].reset(seed=seed)[0], "reset")
            except ENV_ERRORS as error:
                self.guard.error(error)
                self._steps[i] = None
            else:
                if self.guard.fine_obs(obs):
                    if self._simulations[i] is not None:  # a reset may make a new one
                        self._simulations[i] = simulation_of(self.envs[i])
                    return obs
                self.guard.reject(1, self.guard.bad_number("reset", obs))
            seed = self._fresh_seed()
        raise self.guard.broken(f"{ATTEMPTS} resets in a row failed")

    def _remake(self, i: int) -> None:
        self.guard.begin(Doing.CONSTRUCT)
        with contextlib.suppress(*ENV_ERRORS):
            self.envs[i].close()
        self.envs[i] = self._make()
        self._adopt(i, self.envs[i])
        self._calls[i].forget_made()

    def _adopt(self, i: int, env: gym.Env[Any, Any]) -> None:
        inner, self._limits[i] = _unwrap_standard(env)
        self._steps[i], self._simulations[i] = inner.step, simulation_of(env)

    def _fresh_seed(self) -> int:
        """The seed of an environment that was made again: as reproducible as the first one."""
        self._remade += 1
        words = np.random.SeedSequence([self._seed, self._remade]).generate_state(1)
        return int(words[0] % 2**31)

    def close(self) -> None:
        """Close every environment. One that raises is only logged: its work is done."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                traceback.print_exc()


def _unwrap_standard(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], float]:
    """The environment inside Gymnasium's standard wrappers, and the time limit they set."""
    limit: float = math.inf
    if type(env) is TimeLimit:
        limit, env = env._max_episode_steps, env.env
    while type(env) in (OrderEnforcing, PassiveEnvChecker):
        env = env.env  # type: ignore[attr-defined]
    return env, limit
