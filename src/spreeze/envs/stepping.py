"""Stepping: several environments as one, whatever they are and however they reset.

What a step gave is true: `next_obs` is where the action led, and the fake step of an auto-reset is
marked as none. `transitions` makes rows of it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Generator
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


class Outcome:
    """What one step of several environments gave; the arrays are reused from step to step."""

    def __init__(self, num_envs: int, obs_size: int) -> None:
        """Room for `num_envs` results."""
        self.next_obs = np.zeros((num_envs, obs_size), np.float32)
        """Where the action led, the last observation of an ended episode included."""
        self.obs = np.zeros((num_envs, obs_size), np.float32)
        """What to act on next: `next_obs`, or the first observation of a new episode."""
        self.reward = np.zeros(num_envs, np.float32)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.valid = np.ones(num_envs, np.bool_)
        """False where this was no transition: the fake step of an auto-reset, or numbers that are not finite."""
        self.any_done_or_invalid = False
        """Whether anything ended or was not valid; if not, nobody needs to look for it."""


class LoopStepper:
    """Plain environments, one after the other: no pipes, no threads, no auto-reset.

    The wrappers that `gym.make` puts around every environment are stepped past: whether `reset` comes
    before `step` is known here, and the time limit is a comparison.
    """

    def __init__(self, envs: list[gym.Env[Any, Any]]) -> None:
        """Take over the environments."""
        self.envs = envs
        self.num_envs = len(envs)
        within = [_within_standard_wrappers(env) for env in envs]
        self._steps = [env.step for env, _ in within]
        self._limits = [limit for _, limit in within]
        self._lengths = [0] * self.num_envs

    def reset_into(self, seed: int, outcome: Outcome) -> None:
        """Begin an episode everywhere."""
        for i in range(self.num_envs):
            outcome.obs[i] = self._reset(i, seed + i)

    def step(self, actions: NDArray[Any], outcome: Outcome) -> None:
        """One step of each; an ended episode is followed by a reset at once."""
        next_obs, reward, lengths = outcome.next_obs, outcome.reward, self._lengths
        if outcome.any_done_or_invalid:  # the last time
            outcome.terminated[:] = outcome.truncated[:] = False
            outcome.valid[:] = True
        over = []
        for i, step in enumerate(self._steps):
            after, reward[i], terminated, truncated, _ = step(actions[i])
            next_obs[i] = (
                after if type(after) is np.ndarray and after.ndim == 1 else np.ravel(after)
            )
            lengths[i] += 1
            if terminated or truncated or lengths[i] >= self._limits[i]:
                outcome.terminated[i] = terminated
                outcome.truncated[i] = truncated or lengths[i] >= self._limits[i]
                over.append(i)
        # One sum tells whether any number is not finite. One that overflows is looked at in vain.
        if not math.isfinite(np.add.reduce(next_obs, axis=None) + np.add.reduce(reward)):
            outcome.valid[:] = np.isfinite(reward) & np.isfinite(next_obs).all(1)
            over += [i for i in np.flatnonzero(~outcome.valid).tolist() if i not in over]
        outcome.any_done_or_invalid = bool(over)
        outcome.obs[:] = next_obs
        for i in over:
            outcome.obs[i] = self._reset(i, None)

    def _reset(self, i: int, seed: int | None) -> NDArray[Any]:
        self._lengths[i] = 0
        return _first_obs(self.envs[i], seed)

    def close(self) -> None:
        """Close every environment; one that raises then has done its work and is only noted."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                traceback.print_exc()


def _within_standard_wrappers(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], float]:
    """What to step instead of `env`, and after how many steps its episodes are cut."""
    limit: float = math.inf
    if type(env) is TimeLimit:
        limit, env = env._max_episode_steps, env.env
    while type(env) in (OrderEnforcing, PassiveEnvChecker):
        env = env.env  # type: ignore[attr-defined]
    return env, limit


def _first_obs(env: gym.Env[Any, Any], seed: int | None) -> NDArray[Any]:
    obs = np.asarray(env.reset(seed=seed)[0]).ravel()
    if not np.isfinite(obs).all():
        raise ValueError(f"reset of {env} gave an observation that is not finite: {obs}")
    return obs


class VectorStepper:
    """A `gymnasium.vector.VectorEnv` as it is, in any of its auto-reset modes."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Take over the environment."""
        self.env = env
        self.num_envs = env.num_envs
        self._mode = AutoresetMode(env.metadata["autoreset_mode"])
        self._parts = parts_of(env.single_observation_space)
        self._resetting = np.zeros(env.num_envs, np.bool_)
        self._lost = np.zeros(env.num_envs, np.bool_)
        """Where the last observation was not finite, and another was acted on in its place."""

    def reset_into(self, seed: int, outcome: Outcome) -> None:
        """Begin an episode everywhere."""
        self._resetting[:] = self._lost[:] = False
        outcome.obs[:] = self._flat(self.env.reset(seed=seed)[0])

    def step(self, actions: NDArray[Any], outcome: Outcome) -> None:
        """One step of all; what the auto-reset did to the observations is undone here."""
        after, reward, terminated, truncated, info = self.env.step(actions)
        outcome.next_obs[:] = self._flat(after)
        outcome.reward[:] = reward
        outcome.terminated[:] = terminated
        outcome.truncated[:] = truncated
        done = outcome.terminated | outcome.truncated
        outcome.obs[:] = outcome.next_obs
        # NEXT_STEP: the step after an end ignores its action and only returns the new episode's
        # first observation. It is no transition.
        outcome.valid[:] = ~self._resetting & ~self._lost
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
        self._lost[:] = ~np.isfinite(outcome.obs).all(1)
        outcome.obs[self._lost] = 0
        outcome.any_done_or_invalid = bool(done.any()) or not outcome.valid.all()

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def _flat(self, obs: Any, num: int | None = None) -> NDArray[Any]:
        array = flatten_obs(self._parts, obs) if self._parts else np.asarray(obs)
        return array.reshape(num or self.num_envs, -1)


Stepper = LoopStepper | VectorStepper


def make_stepper(target: EnvTarget, num_envs: int) -> Stepper:
    """`num_envs` environments, or as many as the target's own vector environment has."""
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
) -> Generator[None, None, list[tuple[float, int]]]:
    """Play whole episodes, yielding after each step; returns (return, length) of each.

    Every environment plays one episode per round: were all first to end counted, short episodes
    would be counted too often. One with a step that is not finite ends there and has the return NaN.
    """
    out = Outcome(stepper.num_envs, spec.obs_size)
    results: list[tuple[float, int]] = []
    while len(results) < num_episodes:
        stepper.reset_into(seed + len(results), out)
        running = np.ones(stepper.num_envs, np.bool_)
        totals, lengths = np.zeros(stepper.num_envs), np.zeros(stepper.num_envs, np.int64)
        while running.any():
            stepper.step(act(out.obs), out)
            totals[running & ~out.valid] = np.nan
            running &= out.valid
            totals[running] += out.reward[running]
            lengths += running
            running &= ~(out.terminated | out.truncated)
            yield
        results += zip(totals.tolist(), lengths.tolist(), strict=True)
    return results[:num_episodes]
