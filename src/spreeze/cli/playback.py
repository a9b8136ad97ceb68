"""Playing a stored policy: in which environment, and whether the policy fits it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from spreeze.envs.suites import suite_of
from spreeze.errors import UsageError

if TYPE_CHECKING:
    from spreeze.envs.targets import EnvTarget
    from spreeze.policy import Policy
    from spreeze.store.rundir import RunDir


def env_to_play(policy: Policy, run: str, given: str | None) -> str:
    """The environment to play in: `given`, or the one of the run if it is a registered id.

    A run directory may come from anywhere, so it never decides which code is imported.
    """
    from spreeze.envs.targets import absolute_target

    env = absolute_target(given) if given else policy.spec.id
    if given is None and ":" in env:
        raise UsageError(
            [f"run {run} was trained on {env}, which is your own code. Name it again: --env {env}"]
        )
    if given is None and not re.search(r"-v\d+$", env):  # most ids end like this, and no class does
        import gymnasium as gym

        try:
            gym.spec(env)
        except gym.error.Error:
            raise UsageError(
                [
                    f"run {run} was trained on {env}, which is not a registered id. If it is your own class or "
                    f"function, name it: --env package.module:{env}"
                ]
            ) from None
    if given is None and (suite := suite_of(env)):
        print(f"Note: {env} imports the installed package {suite[1]}.", file=sys.stderr)
    return env


def as_trained(env: str, run: RunDir) -> EnvTarget:
    """The environment with the arguments and the time limit that the run gave it."""
    from spreeze.envs.targets import adjusted

    return adjusted(env, run.env_kwargs, run.max_episode_steps)


def check_fits(policy: Policy, target: EnvTarget, env: str) -> None:
    """Refuse an environment whose observations or actions are not those of the policy."""
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
