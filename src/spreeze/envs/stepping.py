"""Stepping: environments in, finished transitions out.

A transition that leaves here is complete: its `next_obs` is the true one, its `discount` says how
much the future counts (0 only after a true termination), and the fake step of an auto-reset never
becomes one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from spreeze.envs.observations import flattened, parts_of
from spreeze.envs.pool import Pool
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.spec import EnvSpec, Floats, Rows, flatten_obs


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


class LoopStepper:
    """Plain environments, one after the other: no pipes, no threads, no auto-reset."""

    def __init__(self, envs: list[gym.Env[Any, Any]]) -> None:
        """Take over the environments."""
        self.envs = envs
        self.num_envs = len(envs)

    def reset_into(self, seed: int, outcome: Outcome) -> None:
        """Begin an episode everywhere."""
        for i, env in enumerate(self.envs):
            outcome.obs[i] = _first_obs(env, seed + i)

    def step(self, actions: Floats, outcome: Outcome) -> None:
        """One step of each; an ended episode is followed by a reset at once."""
        next_obs, obs = outcome.next_obs, outcome.obs
        for i, env in enumerate(self.envs):
            after, reward, terminated, truncated, _ = env.step(actions[i])
            next_obs[i] = np.asarray(after).ravel()
            outcome.reward[i] = reward
            outcome.terminated[i] = terminated
            outcome.truncated[i] = truncated
        outcome.valid[:] = np.isfinite(outcome.reward) & np.isfinite(next_obs).all(1)
        obs[:] = next_obs
        for over in np.flatnonzero(outcome.terminated | outcome.truncated | ~outcome.valid):
            obs[over] = _first_obs(self.envs[over], None)

    def close(self) -> None:
        """Close every environment; one that raises then has done its work and is only noted."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                traceback.print_exc()


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

    def reset_into(self, seed: int, outcome: Outcome) -> None:
        """Begin an episode everywhere."""
        self._resetting[:] = False
        outcome.obs[:] = self._flat(self.env.reset(seed=seed)[0])

    def step(self, actions: Floats, outcome: Outcome) -> None:
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
        outcome.valid[:] = ~self._resetting
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
        if not finite.all():
            np.nan_to_num(outcome.obs, copy=False)

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def _flat(self, obs: Any, num: int | None = None) -> NDArray[Any]:
        array = flatten_obs(self._parts, obs) if self._parts else np.asarray(obs)
        return array.reshape(num or self.num_envs, -1)


Stepper = LoopStepper | VectorStepper


def make_stepper(target: EnvTarget, num_envs: int) -> Stepper:
    """`num_envs` environments, or as many as the target's own vector environment has."""
    if isinstance(target, Pool):
        return VectorStepper(target(num_envs))
    first = make_env(target)
    if isinstance(first, VectorEnv):
        return VectorStepper(first)
    rest = [make_env(target) for _ in range(num_envs - 1)]
    return LoopStepper([flattened(env) for env in (first, *rest)])  # type: ignore[arg-type]


class EnvGroup:
    """Environments stepped together whose steps come out as finished n-step transitions.

    Every step of an environment is emitted exactly once, n - 1 steps later, with a window that
    stops where its episode ended; so a step of N environments gives N rows, less the fake ones.
    """

    def __init__(self, stepper: Stepper, spec: EnvSpec, gamma: float, n_step: int) -> None:
        """Drive `stepper` and fold `n_step` rewards into each transition."""
        self._stepper = stepper
        self.num_envs = stepper.num_envs
        self._gamma = gamma
        self._n_step = n_step
        self._outcome = Outcome(self.num_envs, spec.obs_size)
        shape = (n_step, self.num_envs)
        self._past = {
            "obs": np.zeros((*shape, spec.obs_size), np.float32),
            "action": np.zeros((*shape, spec.action_size), np.float32),
            "next_obs": np.zeros((*shape, spec.obs_size), np.float32),
            "reward": np.zeros(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "ended": np.zeros(shape, np.bool_),
            "valid": np.zeros(shape, np.bool_),
            "version": np.zeros(shape, np.uint32),
        }
        self._steps = 0
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self.finished: list[tuple[float, int]] = []
        """Return and length of each episode that ended; the caller empties it."""
        self.num_rejected = 0
        """Steps with numbers that are not finite; they were not stored and their episodes were cut."""

    @property
    def obs(self) -> Floats:
        """What to act on, one line per environment; overwritten by the next step."""
        return self._outcome.obs

    def reset(self, seed: int) -> None:
        """Begin an episode everywhere."""
        self._stepper.reset_into(seed, self._outcome)

    def step(self, actions: Floats, env_actions: Floats, version: int, rows: Rows) -> int:
        """Step everywhere with `actions` in [-1, 1]; fills `rows`, returns how many are complete."""
        out = self._outcome
        newest = self._steps % self._n_step
        past = self._past
        past["obs"][newest] = out.obs
        past["action"][newest] = actions
        past["version"][newest] = version
        self._stepper.step(env_actions, out)
        past["next_obs"][newest] = out.next_obs
        past["reward"][newest] = out.reward
        past["terminated"][newest] = out.terminated
        past["ended"][newest] = out.terminated | out.truncated
        past["valid"][newest] = out.valid
        self._count_episodes(out, past["ended"][newest])
        self._steps += 1
        return self._emit(rows) if self._steps >= self._n_step else 0

    def close(self) -> None:
        """Close the environments."""
        self._stepper.close()

    def _emit(self, rows: Rows) -> int:
        """The transitions that began n - 1 steps ago."""
        past, num = self._past, self.num_envs
        first = self._steps % self._n_step
        rows = rows[:num]
        rows["obs"] = past["obs"][first].reshape(rows["obs"].shape)
        rows["action"] = past["action"][first].reshape(rows["action"].shape)
        rows["version"] = past["version"][first]
        total = np.zeros(num, np.float32)
        discount = np.ones(num, np.float32)
        next_obs = past["next_obs"][first].copy() if self._n_step > 1 else past["next_obs"][first]
        going = past["valid"][first].copy()
        for k in range(self._n_step):
            step = (first + k) % self._n_step
            going &= past["valid"][step]
            total += np.where(going, discount * past["reward"][step], 0)
            if k:
                next_obs[going] = past["next_obs"][step][going]
            discount[going] *= self._gamma * ~past["terminated"][step][going]
            going &= ~past["ended"][step]
        rows["reward"] = total
        rows["discount"] = discount
        rows["next_obs"] = next_obs.reshape(rows["next_obs"].shape)
        valid = past["valid"][first]
        if valid.all():
            return num
        kept = int(valid.sum())
        rows[:kept] = rows[valid]
        return kept

    def _count_episodes(self, out: Outcome, ended: NDArray[np.bool_]) -> None:
        real = out.valid
        if real.all():
            self._returns += out.reward
            self._lengths += 1
        else:
            self._returns[real] += out.reward[real]
            self._lengths[real] += 1
            broken = ~np.isfinite(out.reward) | ~np.isfinite(out.next_obs).all(1)
            self.num_rejected += int(broken.sum())
            self._returns[broken] = 0.0
            self._lengths[broken] = 0
        if ended.any():
            for i in np.flatnonzero(ended & real):
                self.finished.append((float(self._returns[i]), int(self._lengths[i])))
                self._returns[i], self._lengths[i] = 0.0, 0


def make_group(
    target: EnvTarget, spec: EnvSpec, num_envs: int, gamma: float = 1.0, n_step: int = 1
) -> EnvGroup:
    """`num_envs` environments of `target` as one group."""
    return EnvGroup(make_stepper(target, num_envs), spec, gamma, n_step)


def play_episodes(
    stepper: Stepper, spec: EnvSpec, act: Callable[[Floats], Floats], num_episodes: int, seed: int
) -> Generator[None, None, list[tuple[float, int]]]:
    """Play whole episodes, yielding after each step; returns (return, length) of each.

    Every environment plays one episode per round: were all first to end counted, short episodes
    would be counted too often.
    """
    out = Outcome(stepper.num_envs, spec.obs_size)
    results: list[tuple[float, int]] = []
    while len(results) < num_episodes:
        stepper.reset_into(seed + len(results), out)
        running = np.ones(stepper.num_envs, np.bool_)
        totals, lengths = np.zeros(stepper.num_envs), np.zeros(stepper.num_envs, np.int64)
        while running.any():
            stepper.step(act(out.obs), out)
            running &= out.valid  # a step that is not finite ends its episode without counting
            totals[running] += out.reward[running]
            lengths += running
            running &= ~(out.terminated | out.truncated)
            yield
        results += zip(totals.tolist(), lengths.tolist(), strict=True)
    return results[:num_episodes]
