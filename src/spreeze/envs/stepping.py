"""Stepping: one step of several environments, however they reset.

Auto-reset and truncation are resolved here and nowhere else. Afterwards `next_obs` is where the action
led, and the fake step of an auto-reset is marked as invalid. `transitions` turns the outcome into rows.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.observations import flattened, parts_of
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.spec import EnvSpec, Floats, flatten_obs

Episode = tuple[float, int]
"""Return and length of a whole episode."""


class StepResult:
    """The result of one step of several environments; the arrays are reused from step to step."""

    def __init__(self, num_envs: int, obs_size: int) -> None:
        """Allocate the arrays."""
        self.next_obs = np.zeros((num_envs, obs_size), np.float32)
        """Where the action led, even if that was the last observation of an episode."""
        self.obs = np.zeros((num_envs, obs_size), np.float32)
        """What to act on next: `next_obs`, or the first observation of the next episode."""
        self.reward = np.zeros(num_envs, np.float32)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.valid = np.ones(num_envs, np.bool_)
        """False where this was not a transition: the fake step of an auto-reset, or numbers that are not finite."""
        self.any_done_or_invalid = False
        """Whether any episode ended or any step was invalid. Mostly false, and then callers skip those checks."""


class LoopStepper:
    """Plain environments, stepped one after the other: no pipes, no threads, no auto-reset.

    For speed it bypasses the wrappers that `gym.make` puts around every environment: the order of
    `reset` and `step` is right by construction, and the time limit is one comparison.
    """

    def __init__(self, envs: list[gym.Env[Any, Any]]) -> None:
        """Take over the environments; `close` closes them."""
        self.envs = envs
        self.num_envs = len(envs)
        within = [_unwrap_standard(env) for env in envs]
        self._steps = [env.step for env, _ in within]
        self._limits = [limit for _, limit in within]
        self._lengths = [0] * self.num_envs

    def reset_into(self, seed: int, outcome: StepResult) -> None:
        """Start an episode in every environment."""
        for i in range(self.num_envs):
            outcome.obs[i] = self._reset(i, seed + i)

    def step(self, actions: NDArray[Any], outcome: StepResult) -> None:
        """Step each environment; one whose episode ended is reset at once."""
        next_obs, reward, lengths = outcome.next_obs, outcome.reward, self._lengths
        if outcome.any_done_or_invalid:  # in the previous step
            outcome.terminated[:] = outcome.truncated[:] = False
            outcome.valid[:] = True
        done = []
        for i, step in enumerate(self._steps):
            after, reward[i], terminated, truncated, _ = step(actions[i])
            next_obs[i] = (
                after if type(after) is np.ndarray and after.ndim == 1 else np.ravel(after)
            )
            lengths[i] += 1
            if terminated or truncated or lengths[i] >= self._limits[i]:
                outcome.terminated[i] = terminated
                outcome.truncated[i] = truncated or lengths[i] >= self._limits[i]
                done.append(i)
        # One sum finds any number that is not finite. If the sum itself overflows, the check below
        # finds nothing.
        if not math.isfinite(np.add.reduce(next_obs, axis=None) + np.add.reduce(reward)):
            outcome.valid[:] = np.isfinite(reward) & np.isfinite(next_obs).all(1)
            done += [i for i in np.flatnonzero(~outcome.valid).tolist() if i not in done]
        outcome.any_done_or_invalid = bool(done)
        outcome.obs[:] = next_obs
        for i in done:
            outcome.obs[i] = self._reset(i, None)

    def _reset(self, i: int, seed: int | None) -> NDArray[Any]:
        self._lengths[i] = 0
        return _first_obs(self.envs[i], seed)

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


def _first_obs(env: gym.Env[Any, Any], seed: int | None) -> NDArray[Any]:
    obs = np.asarray(env.reset(seed=seed)[0]).ravel()
    if not np.isfinite(obs).all():
        raise ValueError(f"reset of {env} returned an observation that is not finite: {obs}")
    return obs


class VectorStepper:
    """A `gymnasium.vector.VectorEnv`, in any auto-reset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Take over the environment; `close` closes it."""
        self.env = env
        self.num_envs = env.num_envs
        self._mode = AutoresetMode(env.metadata["autoreset_mode"])
        self._parts = parts_of(env.single_observation_space)
        self._resetting = np.zeros(env.num_envs, np.bool_)
        self._skip_next = np.zeros(env.num_envs, np.bool_)
        """Where the last observation was not finite: the policy acted on zeros, so the next step is invalid."""

    def reset_into(self, seed: int, outcome: StepResult) -> None:
        """Start an episode in every environment."""
        self._resetting[:] = self._skip_next[:] = False
        outcome.obs[:] = self._flat(self.env.reset(seed=seed)[0])

    def step(self, actions: NDArray[Any], outcome: StepResult) -> None:
        """Step all environments, and undo what auto-reset did to the observations."""
        after, reward, terminated, truncated, info = self.env.step(actions)
        outcome.next_obs[:] = self._flat(after)
        outcome.reward[:] = reward
        outcome.terminated[:] = terminated
        outcome.truncated[:] = truncated
        done = outcome.terminated | outcome.truncated
        outcome.obs[:] = outcome.next_obs
        # NEXT_STEP: the step after the end of an episode ignores its action and returns the first
        # observation of the next one. It is not a transition.
        outcome.valid[:] = ~self._resetting & ~self._skip_next
        if self._mode is AutoresetMode.NEXT_STEP:
            self._resetting = done
        elif self._mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(done):
                outcome.next_obs[i] = self._flat(info["final_obs"][i], 1)[0]
        elif done.any():
            fresh, _ = self.env.reset(options={"reset_mask": done})
            outcome.obs[done] = self._flat(fresh)[done]
        finite = np.isfinite(outcome.reward) & np.isfinite(outcome.next_obs).all(1)
        outcome.valid &= finite
        self._skip_next[:] = ~np.isfinite(outcome.obs).all(1)
        outcome.obs[self._skip_next] = 0
        outcome.any_done_or_invalid = bool(done.any()) or not outcome.valid.all()

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def _flat(self, obs: Any, num: int | None = None) -> NDArray[Any]:
        array = flatten_obs(self._parts, obs) if self._parts else np.asarray(obs)
        return array.reshape(num or self.num_envs, -1)


Stepper = LoopStepper | VectorStepper


def make_stepper(target: EnvTarget, num_envs: int) -> Stepper:
    """Make `num_envs` environments; a vector environment keeps its own number."""
    if isinstance(target, EnvPoolTarget):
        return VectorStepper(target(num_envs))
    first = make_env(target)
    if isinstance(first, VectorEnv):
        return VectorStepper(first)
    rest = [make_env(target) for _ in range(num_envs - 1)]
    return LoopStepper([flattened(env) for env in (first, *rest)])  # type: ignore[arg-type]


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
    out = StepResult(stepper.num_envs, spec.obs_size)
    finished: list[Episode] = []
    while len(finished) < num_episodes:
        stepper.reset_into(seed + len(finished), out)
        running = np.ones(stepper.num_envs, np.bool_)
        returns, lengths = np.zeros(stepper.num_envs), np.zeros(stepper.num_envs, np.int64)
        while running.any():
            stepper.step(act(out.obs), out)
            returns[running & ~out.valid] = np.nan
            running &= out.valid
            returns[running] += out.reward[running]
            lengths += running
            running &= ~(out.terminated | out.truncated)
            if not running.any():
                finished += zip(returns.tolist(), lengths.tolist(), strict=True)
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
