"""EnvPool: many environments of one id, stepped in C++ by one thread.

EnvPool is a Gymnasium vector environment with ways of its own. It is seeded when it is made, wants
actions of one exact type, and resets an ended environment in the step after (NEXT_STEP).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from spreeze.envs.suites import missing
from spreeze.errors import UsageError

SEEDS = 2**31 - 2**16
"""EnvPool takes 32 bits and gives environment i the seed plus i."""


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """EnvPool's environments of one id as a vector environment like any other."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, env_id: str, num_envs: int = 1) -> None:
        """Nothing is simulated before the first reset, which brings the seed."""
        try:
            import envpool
        except ModuleNotFoundError as error:
            if error.name != "envpool":
                raise
            raise UsageError([f"--env.engine envpool: {missing(env_id, 'envpool')}"]) from None
        known = envpool.list_all_envs()
        if env_id not in known:
            # By letters and digits alone: dm_control/cheetah-run-v0 is CheetahRun-v1 here.
            plain = {re.sub(r".*/|[^a-z0-9]", "", name.lower()): name for name in known}
            near = difflib.get_close_matches(
                re.sub(r".*/|[^a-z0-9]", "", env_id.lower()), list(plain), 1
            )
            hint = f" The nearest is {plain[near[0]]}." if near else ""
            raise UsageError(
                [f"--env.engine envpool: EnvPool has no environment {env_id!r}.{hint}"]
            )
        spec = envpool.make_spec(env_id)
        limit = spec.config.max_episode_steps
        self.spec = Registration(env_id, max_episode_steps=limit)
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
        """Begin an episode everywhere; a seed makes a new pool."""
        if self._pool is None or seed is not None:
            self._pool = self._make(
                self.spec.id,  # type: ignore[union-attr]
                env_type="gymnasium",
                num_envs=self.num_envs,
                # A sampler is one core's work: the pool's thread runs while ours sleeps.
                num_threads=1,
                seed=(seed or 0) % SEEDS,
            )
        return self._pool.reset()  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of all."""
        assert self._pool is not None, "reset comes first"
        exact = actions.astype(self.single_action_space.dtype, copy=False)
        return self._pool.step(exact)  # type: ignore[no-any-return]

    def close(self, **_: Any) -> None:
        """Let go of the pool; its thread ends with it."""
        self._pool = None


@dataclass(frozen=True)
class EnvPoolTarget:
    """An environment to be simulated by EnvPool."""

    target: Any
    """Its id; anything else is refused when it is made."""

    def __call__(self, num_envs: int = 1) -> VectorEnv[Any, Any, Any]:
        """So many environments of it."""
        if not isinstance(self.target, str) or ":" in self.target:
            raise UsageError(
                ["--env.engine envpool: takes ids that EnvPool has, not environments of your own."]
            )
        return EnvPoolVectorEnv(self.target, num_envs)
