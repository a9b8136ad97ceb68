"""Inspection: an environment is made once, tried out and described before a run starts.

What training relies on is checked here: spaces, shapes, finite numbers. The result is an `EnvSpec`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.observations import NotFlattenable, parts_of
from spreeze.envs.targets import EnvTarget, TimeLimited, make_env, missing_extra, unknown_env
from spreeze.errors import UsageError
from spreeze.spec import EnvSpec, flatten_obs

RANDOM_STEPS, RANDOM_S = 200, 0.05
"""Most steps and seconds of random actions before a run."""


def inspect_env(target: EnvTarget, name: str) -> EnvSpec:
    """Make the environment once, check everything that training relies on, and describe it."""
    began_s = time.perf_counter()
    try:
        env = make_env(target, checked=True)
    except gym.error.UnregisteredEnv as error:
        raise UsageError([unknown_env(name, error)]) from None
    except gym.error.DependencyNotInstalled as error:
        raise UsageError([missing_extra(name, str(error))]) from None
    except gym.error.Error as error:
        raise UsageError([f"env {name}: {error}"]) from None
    construct_s = time.perf_counter() - began_s
    try:
        if not isinstance(env, gym.Env | VectorEnv):
            raise UsageError(
                [
                    f"env {name}: made a {type(env).__name__}, not a gymnasium.Env. "
                    "Environments of the old gym package need a wrapper such as shimmy's."
                ]
            )
        spec = _describe(name, env)
        if isinstance(target, TimeLimited):  # an environment without a registration does not say so
            spec = dataclasses.replace(spec, max_episode_steps=target.steps)
        resets = _Resets(env)
        _try_out(spec, env, resets)
        step_us, random_episode = _play_randomly(env, resets)
        spec = dataclasses.replace(
            spec,
            step_us=step_us,
            construct_s=construct_s,
            reset_s=resets.slowest_s,
            random_episode=random_episode,
        )
        # EnvPool makes as many environments as it is asked for.
        return (
            dataclasses.replace(spec, vector_envs=None)
            if isinstance(target, EnvPoolTarget)
            else spec
        )
    finally:
        with contextlib.suppress(Exception):
            env.close()


def evaluation_env(target: EnvTarget, spec: EnvSpec) -> EnvTarget:
    """The environment to evaluate on. For EnvPool: Gymnasium's environment of the same id, if it is
    installed and has the same spaces, so that scores can be compared."""
    if not isinstance(target, EnvPoolTarget):
        return target
    try:
        found = inspect_env(target.target, spec.id)
    except Exception:  # whatever is wrong with it, EnvPool's works
        return target
    same = found.obs_shape == spec.obs_shape and found.obs_parts == spec.obs_parts
    return target.target if same and _same_actions(found, spec) else target


def _same_actions(a: EnvSpec, b: EnvSpec) -> bool:
    """Compare action spaces; engines round bounds such as 0.4 differently."""
    return (
        (a.action_shape, a.num_actions, a.first_action)
        == (b.action_shape, b.num_actions, b.first_action)
        and np.allclose(a.action_low, b.action_low)
        and np.allclose(a.action_high, b.action_high)
    )


def _describe(name: str, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> EnvSpec:
    vector = isinstance(env, VectorEnv)
    obs: Any = env.single_observation_space if isinstance(env, VectorEnv) else env.observation_space
    act: Any = _action_space(env)
    problems = [*_obs_problems(name, obs), *_action_problems(name, act)]
    if vector and env.metadata.get("autoreset_mode") is None:
        problems.append(
            f'env {name}: this vector environment does not declare its auto-reset mode; set metadata["autoreset_mode"].'
        )
    if problems:
        raise UsageError(problems)
    parts = parts_of(obs)
    limit = env.spec.max_episode_steps if env.spec is not None else None
    discrete = isinstance(act, gym.spaces.Discrete)
    return EnvSpec(
        id=name,
        obs_shape=(sum(part.size for part in parts),) if parts else obs.shape,
        action_shape=act.shape,
        action_low=() if discrete else tuple(act.low.ravel().tolist()),
        action_high=() if discrete else tuple(act.high.ravel().tolist()),
        num_actions=int(act.n) if discrete else None,
        first_action=int(act.start) if discrete else 0,
        max_episode_steps=limit,
        vector_envs=env.num_envs if isinstance(env, VectorEnv) else None,
        obs_parts=parts,
    )


def _action_space(env: Any) -> gym.Space[Any]:
    """The action space of one environment. ClipAction declares no bounds; take those it clips to."""
    name = "single_action_space" if isinstance(env, VectorEnv) else "action_space"
    space: gym.Space[Any] = getattr(env, name)
    layer = env
    while isinstance(layer, gym.Wrapper | VectorWrapper) and getattr(layer, name) is space:
        if isinstance(layer, wrappers.ClipAction | wrappers.vector.ClipAction):
            return _action_space(layer.env)
        layer = layer.env
    return space


def _obs_problems(name: str, space: gym.Space[Any]) -> list[str]:
    try:
        parts = parts_of(space)
    except NotFlattenable as error:
        return [f"env {name}: observations cannot be flattened: {error}."]
    if parts:
        size = sum(part.size for part in parts)
        return [] if size else [f"env {name}: observations {space} are empty."]
    if not isinstance(space, gym.spaces.Box):
        return [
            f"env {name}: observations are {space}; supported are Box, Discrete, MultiDiscrete, "
            "MultiBinary, and a Dict or Tuple of them."
        ]
    if len(space.shape) > 2:
        return [
            f"env {name}: observations of shape {space.shape} look like images, which need a convolutional network."
        ]
    if int(np.prod(space.shape)) == 0:
        return [f"env {name}: observations of shape {space.shape} are empty."]
    if not np.issubdtype(space.dtype, np.number) and space.dtype != np.bool_:
        return [f"env {name}: observations of type {space.dtype} are not numbers."]
    return []


def _action_problems(name: str, space: gym.Space[Any]) -> list[str]:
    if isinstance(space, gym.spaces.Discrete):
        return []
    if not isinstance(space, gym.spaces.Box):
        return [f"env {name}: actions are {space}; only Box and Discrete actions are supported."]
    if int(np.prod(space.shape)) == 0:
        return [f"env {name}: actions of shape {space.shape} are empty."]
    if not np.issubdtype(space.dtype, np.floating):
        return [f"env {name}: actions of type {space.dtype} are not continuous."]
    low, high = space.low.ravel(), space.high.ravel()
    open_ended = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if len(open_ended):
        which = ", ".join(f"{i}: [{low[i]}, {high[i]}]" for i in open_ended[:4])
        return [
            f"env {name}: actions without bounds on both sides ({which}) have no scale to explore on. "
            "Give the action space a finite low and high, for instance with gymnasium.wrappers.TransformAction."
        ]
    if np.any(low >= high):
        i = int(np.flatnonzero(low >= high)[0])
        return [f"env {name}: action {i} has bounds [{low[i]}, {high[i]}]: low must be below high."]
    return []


class _Resets:
    """Resets an environment, and remembers how long the slowest reset took."""

    def __init__(self, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
        self._env, self.slowest_s = env, 0.0

    def __call__(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        began_s = time.perf_counter()
        obs, _ = self._env.reset(seed=seed, options=options)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began_s)
        return obs

    def where(self, done: Any) -> None:
        """Start a new episode where one has ended, unless the environment does that itself."""
        if not np.any(done):
            return
        if not isinstance(self._env, VectorEnv):
            self()
        elif AutoresetMode(self._env.metadata["autoreset_mode"]) is AutoresetMode.DISABLED:
            self(options={"reset_mask": done})


def _try_out(
    spec: EnvSpec, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], reset: _Resets
) -> None:
    """Take a few real steps: shapes and numbers must be what the spaces promise."""
    vector = isinstance(env, VectorEnv)
    shape = (env.num_envs, *spec.obs_shape) if isinstance(env, VectorEnv) else spec.obs_shape
    env.action_space.seed(0)
    _check_obs(spec, reset(seed=0), shape, "reset")
    for _ in range(5):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        _check_obs(spec, obs, shape, "step")
        if not vector and np.ndim(np.asarray(reward)):
            raise UsageError(
                [f"env {spec.id}: step returned the reward {reward}; it must be a single number."]
            )
        if not np.all(np.isfinite(np.asarray(reward, np.float64))):
            raise UsageError(
                [f"env {spec.id}: step returned the reward {reward}; rewards must be finite."]
            )
        reset.where(terminated | truncated)


def _check_obs(spec: EnvSpec, obs: Any, shape: tuple[int, ...], method: str) -> None:
    """UsageError unless an observation has this shape and is finite."""
    try:
        array = flatten_obs(spec.obs_parts, obs) if spec.obs_parts else np.asarray(obs)
    except (LookupError, ValueError) as error:
        problem = f"an observation that does not fit its space: {error}."
    else:
        if array.shape != shape:
            problem = f"an observation of shape {array.shape}; its space says {shape}."
        elif not np.all(np.isfinite(array)):
            i = int(np.flatnonzero(~np.isfinite(array.ravel()))[0])
            problem = f"{array.ravel()[i]} as observation {i}; observations must be finite."
        else:
            return
    raise UsageError([f"env {spec.id}: {method} returned {problem}"])


def _play_randomly(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], reset: _Resets
) -> tuple[float | None, float | None]:
    """Microseconds of an undisturbed step, and after how many steps random actions end an episode, if they do.

    The time is slightly too high, because Gymnasium's checker runs too. An environment that raises here
    has made some steps before: the run deals with it.
    """
    num = env.num_envs if isinstance(env, VectorEnv) else 1
    reset(seed=0)
    env.action_space.seed(0)
    spent_s: list[float] = []
    ends, began_s = 0, time.perf_counter()
    with contextlib.suppress(Exception):
        while len(spent_s) < RANDOM_STEPS and time.perf_counter() - began_s < RANDOM_S:
            action = env.action_space.sample()
            before_s = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            spent_s.append(time.perf_counter() - before_s)
            ends += int(np.sum(terminated))
            reset.where(terminated | truncated)
    if not spent_s:
        return None, None
    step_us = 1e6 * sorted(spent_s)[len(spent_s) // 4] / num
    return step_us, num * len(spent_s) / ends if ends else None
