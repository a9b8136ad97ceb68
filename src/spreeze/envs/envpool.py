"""EnvPool: many environments of one id, stepped in C++ by one thread.

EnvPool is almost a Gymnasium vector environment. This module hides the three differences:
the seed is fixed when the pool is made, actions must have the exact dtype of the action space, and an
ended environment is reset in the step after its last (NEXT_STEP). Atari games are played by the protocol of `atari`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from spreeze.envs.atari import Protocol, TrainingRules, is_atari
from spreeze.envs.suites import missing
from spreeze.errors import UsageError
from spreeze.text import nearest

SEEDS = 2**31 - 2**16
"""Seeds stay below this: EnvPool takes 32 bits and gives environment i the seed plus i."""


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """EnvPool's environments of one id, as a standard vector environment."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, env_id: str, num_envs: int = 1) -> None:
        """Describe the environments; the pool itself is made by the first reset, which has the seed."""
        try:
            import envpool
        except ModuleNotFoundError as error:
            if error.name != "envpool":
                raise
            raise UsageError([f"--env.engine envpool: {missing(env_id, 'envpool')}"]) from None
        known = envpool.list_all_envs()
        name = env_id.removeprefix("ALE/") if is_atari(env_id) else env_id
        if name not in known:
            raise UsageError([_unknown_id(env_id, known)])
        spec = envpool.make_spec(name)
        self.rules: TrainingRules | None = None
        self._options: dict[str, Any] = {}
        if hasattr(spec.config, "use_fire_reset"):  # a game of Atari's
            protocol = Protocol()
            self.rules, self._options = TrainingRules(protocol, num_envs), _options(protocol)
            spec = envpool.make_spec(name, **self._options)
        limit = spec.config.max_episode_steps
        self.spec = Registration(name, max_episode_steps=limit)
        self.num_envs = num_envs
        self.single_observation_space = spec.gymnasium_observation_space
        self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._make: Any = envpool.make
        self._pool: Any = None

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment; a seed makes a new pool."""
        if self._pool is None or seed is not None:
            self._pool = self._make(
                self.spec.id,  # type: ignore[union-attr]
                env_type="gymnasium",
                num_envs=self.num_envs,
                # A sampler has one core: the pool's thread runs while ours sleeps.
                num_threads=1,
                seed=(seed or 0) % SEEDS,
                **self._options,
            )
        obs, info = self._pool.reset()
        if self.rules is not None:
            self.rules.restart(info["lives"])
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        assert self._pool is not None, "reset comes first"
        exact = actions.astype(self.single_action_space.dtype, copy=False)
        obs, reward, terminated, truncated, info = self._pool.step(exact)
        if self.rules is not None:
            self.rules.count(info["lives"], terminated | truncated)
            info = {}  # the console's memory and the like
        return obs, reward, terminated, truncated, info

    def close(self, **_: Any) -> None:
        """Drop the pool; its thread ends with it."""
        self._pool = None


def _options(protocol: Protocol) -> dict[str, Any]:
    """The protocol in EnvPool's words. Scores are raw, and games are whole: `TrainingRules` does the rest."""
    return {
        "stack_num": 1,
        "frame_skip": protocol.frameskip,
        "noop_max": protocol.noop_max,
        "use_fire_reset": protocol.use_fire_reset,
        "img_height": protocol.img_height,
        "img_width": protocol.img_width,
        "gray_scale": protocol.grayscale,
        "full_action_space": protocol.full_action_space,
        "repeat_action_probability": protocol.repeat_action_probability,
        "max_episode_steps": protocol.max_episode_steps,
        "reward_clip": False,
        "episodic_life": False,
    }


def _unknown_id(env_id: str, known: list[str]) -> str:
    # Compare letters and digits only: dm_control/cheetah-run-v0 is called CheetahRun-v1 in EnvPool.
    plain = {_letters_and_digits(name): name for name in known}
    near = nearest(_letters_and_digits(env_id), plain)
    hint = f" The nearest is {plain[near]}." if near else ""
    return f"--env.engine envpool: EnvPool has no environment {env_id!r}.{hint}"


def _letters_and_digits(env_id: str) -> str:
    """An id without its namespace and punctuation, in lower case."""
    return re.sub(r".*/|[^a-z0-9]", "", env_id.lower())


@dataclass(frozen=True)
class EnvPoolTarget:
    """An environment that EnvPool simulates."""

    target: Any
    """Its EnvPool id; anything else is refused when the environment is made."""

    def __call__(self, num_envs: int = 1) -> VectorEnv[Any, Any, Any]:
        """Make `num_envs` of them."""
        if not isinstance(self.target, str) or ":" in self.target:
            raise UsageError(
                ["--env.engine envpool: takes EnvPool's ids only, not your own environments."]
            )
        return EnvPoolVectorEnv(self.target, num_envs)
