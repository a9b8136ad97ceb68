"""Playing a stored policy: which environment, and whether the policy fits it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spreeze.errors import UsageError

if TYPE_CHECKING:
    from spreeze.envs.targets import EnvTarget
    from spreeze.policy import Policy


def env_to_play(policy: Policy, run: str, given: str | None) -> str:
    """The environment of a stored run; code of the user's own only if he names it himself."""
    env = given or policy.spec.id
    if given is None and ":" in env:
        raise UsageError(
            [f"run {run} was trained on {env}, which is code of yours. Name it again: --env {env}"]
        )
    if given is None and not re.search(r"-v\d+$", env):  # as most ids end, and no class does
        import gymnasium as gym

        try:
            gym.spec(env)
        except gym.error.Error:
            raise UsageError(
                [
                    f"run {run} was trained on {env}, which is no registered id; if it is a class or a function of "
                    f"yours, name it: --env package.module:{env}"
                ]
            ) from None
    return env


def check_fits(policy: Policy, target: EnvTarget, env: str) -> None:
    """Refuse an environment with other observations or actions than the policy's."""
    from spreeze.envs.inspect import inspect_env

    spec = inspect_env(target, env)
    facts = ("obs_shape", "action_shape", "num_actions")
    if any(getattr(spec, name) != getattr(policy.spec, name) for name in facts):
        raise UsageError(
            [
                f"--env {env}: this policy takes observations {policy.spec.obs_shape} and gives actions "
                f"{policy.spec.action_shape}; {env} has {spec.obs_shape} and {spec.action_shape}."
            ]
        )
