"""Inspection: an environment is made once, tried out and described before a run starts.

What training relies on is checked here: spaces, shapes, finite numbers. The result is an `EnvSpec`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.observations import images_of, parts_of
from spreeze.envs.spaces import action_problems, action_space, obs_problems
from spreeze.envs.targets import (
    ANONYMOUS,
    Adjusted,
    EnvTarget,
    is_named,
    make_env,
    missing_extra,
    unknown_env,
)
from spreeze.envs.traps import find_traps, has_several_agents, several_agents_problem
from spreeze.errors import UsageError
from spreeze.spec import EnvSpec, flatten_obs, pack_frame

RANDOM_STEPS, RANDOM_S = 200, 0.05
"""Most steps and seconds of random actions before a run."""
ENOUGH_STEPS, NO_REWARD_S = 100, 1.0
"""Steps without a reward that are worth a word, and the most seconds that are spent to make so many."""


def inspect_env(target: EnvTarget, name: str, hurry: bool = True) -> EnvSpec:
    """Make the environment once, check everything that training relies on, and describe it.

    Without `hurry`, a slow machine sees as many random steps as a fast one, so it finds the same facts.
    """
    began_s = time.perf_counter()
    try:
        env = make_env(target, checked=True)
    except gym.error.UnregisteredEnv as error:
        raise UsageError([unknown_env(name, error)]) from None
    except gym.error.DependencyNotInstalled as error:
        raise UsageError([missing_extra(name, str(error))]) from None
    except gym.error.Error as error:
        raise UsageError([f"env {name}: {error}"]) from None
    except TypeError as error:
        if isinstance(target, Adjusted) and _refused_arguments(error):
            raise UsageError([f"env {name} does not take {target.option}: {error}."]) from None
        raise
    construct_s = time.perf_counter() - began_s
    try:
        if has_several_agents(env):
            raise UsageError([several_agents_problem(name)])
        if not isinstance(env, gym.Env | VectorEnv):
            raise UsageError([_no_env(name, env)])
        spec = _describe(name if is_named(name) else f"{_own_name(env)} ({ANONYMOUS})", env)
        if isinstance(target, Adjusted) and target.max_episode_steps is not None:
            # An environment without a registration does not say so.
            spec = dataclasses.replace(spec, max_episode_steps=target.max_episode_steps)
        resets = _Resets(env)
        _try_out(spec, env, resets)
        play = _play_randomly(env, resets, RANDOM_S if hurry else math.inf)
        spec = dataclasses.replace(
            spec,
            step_us=play.step_us,
            construct_s=construct_s,
            reset_s=resets.slowest_s,
            random_episode=play.random_episode,
            traps=tuple(find_traps(env, {*resets.info, *play.info}, play.found_reward)),
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


def _refused_arguments(error: TypeError) -> bool:
    """Whether it was raised by the call that makes the environment, and not by the environment's own code."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"] in (make_env.__module__, gym.make.__module__)


def _own_name(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> str:
    """The id under which an environment is registered, or else its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _no_env(name: str, made: Any) -> str:
    """What to say of something that is no environment of Gymnasium."""
    return (
        f"env {name}: it made an object of class {type(made).__name__}, not a gymnasium.Env. "
        "Environments of the old gym package need a wrapper such as shimmy's."
    )


def evaluation_env(target: EnvTarget, spec: EnvSpec) -> EnvTarget:
    """The environment to evaluate on. For EnvPool: Gymnasium's environment of the same id, if it is
    installed and has the same spaces, so that scores can be compared."""
    if not isinstance(target, EnvPoolTarget):
        return target
    try:
        found = inspect_env(target.target, spec.id)
    except Exception:  # whatever is wrong with it, EnvPool's works
        return target
    return target.target if difference(found, spec) is None else target


def difference(found: EnvSpec, spec: EnvSpec) -> str | None:
    """Why a policy for `spec` cannot be evaluated on the environment that was found; None if it can."""
    looks = [(each.obs_shape, each.obs_parts, each.images) for each in (found, spec)]
    if looks[0] != looks[1]:
        return f"its observations are {found.obs_shape}, those of {spec.id} {spec.obs_shape}"
    if not _same_actions(found, spec):
        return f"its actions are {_actions(found)}, those of {spec.id} {_actions(spec)}"
    return None


def _actions(spec: EnvSpec) -> str:
    """An action space in a few words."""
    if spec.discrete:
        last = spec.first_action + (spec.num_actions or 1) - 1
        return f"whole numbers from {spec.first_action} to {last}"
    return f"{spec.action_shape} from {min(spec.action_low):g} to {max(spec.action_high):g}"


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
    act: Any = action_space(env)
    problems = [*obs_problems(name, obs), *action_problems(name, act)]
    if vector and env.metadata.get("autoreset_mode") is None:
        problems.append(
            f'env {name}: this vector environment does not declare its auto-reset mode; set metadata["autoreset_mode"].'
        )
    if problems:
        raise UsageError(problems)
    parts, images = parts_of(obs), images_of(obs)
    size = sum(part.size for part in parts) + sum(image.size for image in images)
    limit = env.spec.max_episode_steps if env.spec is not None else None
    discrete = isinstance(act, gym.spaces.Discrete)
    return EnvSpec(
        id=name,
        obs_shape=(size,) if parts else obs.shape,
        action_shape=act.shape,
        action_low=() if discrete else tuple(act.low.ravel().tolist()),
        action_high=() if discrete else tuple(act.high.ravel().tolist()),
        num_actions=int(act.n) if discrete else None,
        first_action=int(act.start) if discrete else 0,
        max_episode_steps=limit,
        vector_envs=env.num_envs if isinstance(env, VectorEnv) else None,
        obs_parts=parts,
        images=images,
    )


class _Resets:
    """Resets an environment, and remembers how long the slowest reset took."""

    def __init__(self, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
        self._env, self.slowest_s = env, 0.0
        self.info: dict[str, Any] = {}
        """What the newest reset told."""

    def __call__(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        began_s = time.perf_counter()
        obs, self.info = self._env.reset(seed=seed, options=options)
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
    num_envs = env.num_envs if isinstance(env, VectorEnv) else None
    env.action_space.seed(0)
    _check_obs(spec, reset(seed=0), num_envs, "reset")
    for _ in range(5):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        _check_obs(spec, obs, num_envs, "step")
        if not vector and np.ndim(np.asarray(reward)):
            raise UsageError(
                [f"env {spec.id}: step returned the reward {reward}; it must be a single number."]
            )
        if not np.all(np.isfinite(np.asarray(reward, np.float64))):
            raise UsageError(
                [f"env {spec.id}: step returned the reward {reward}; rewards must be finite."]
            )
        reset.where(terminated | truncated)


def _check_obs(spec: EnvSpec, obs: Any, num_envs: int | None, method: str) -> None:
    """UsageError unless an observation, or that of so many environments, has its shape and is finite."""
    shape = spec.obs_shape if num_envs is None else (num_envs, *spec.obs_shape)
    try:
        if spec.images:  # the packing checks shapes, types and numbers
            pack_frame(spec.images, spec.obs_parts, obs, num_envs)
            return
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


class _Play(NamedTuple):
    """What random actions have shown."""

    step_us: float | None
    """Microseconds of an undisturbed step; slightly too high, because Gymnasium's checker runs too."""
    random_episode: float | None
    """Steps after which they end an episode, if they do."""
    found_reward: bool
    """Whether a reward was found, or too few steps were made to tell."""
    info: dict[str, Any]
    """What the newest step told."""


def _play_randomly(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], reset: _Resets, most_s: float
) -> _Play:
    """Act at random for a moment, of at most so many seconds; longer if there is no reward yet.

    An environment that raises here has made some steps before: the run deals with it.
    """
    num = env.num_envs if isinstance(env, VectorEnv) else 1
    reset(seed=0)
    env.action_space.seed(0)
    spent_s: list[float] = []
    ends, any_reward, began_s = 0, False, time.perf_counter()
    info: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        while len(spent_s) < RANDOM_STEPS:
            told = any_reward or num * len(spent_s) >= ENOUGH_STEPS
            if time.perf_counter() - began_s >= (most_s if told else max(most_s, NO_REWARD_S)):
                break
            action = env.action_space.sample()
            before_s = time.perf_counter()
            _, reward, terminated, truncated, info = env.step(action)
            spent_s.append(time.perf_counter() - before_s)
            ends += int(np.sum(terminated))
            any_reward = any_reward or bool(np.any(np.asarray(reward)))
            reset.where(terminated | truncated)
    step_us = 1e6 * sorted(spent_s)[len(spent_s) // 4] / num if spent_s else None
    episode = num * len(spent_s) / ends if ends else None
    return _Play(step_us, episode, any_reward or num * len(spent_s) < ENOUGH_STEPS, info)
