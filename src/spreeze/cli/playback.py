"""Playing a stored policy: in which environment, and whether the policy fits it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from spreeze.envs.suites import suite_of
from spreeze.errors import DamagedFile, UsageError
from spreeze.user_code import import_named

if TYPE_CHECKING:
    from spreeze.algos import Entry
    from spreeze.envs.targets import EnvTarget
    from spreeze.policy import MakeModule, Policy
    from spreeze.store.rundir import RunDir


def env_to_play(policy: Policy, whose: str, given: str | None, option: str = "--env ") -> str:
    """The environment to play in: `given`, or the one that the policy was trained on if it is a registered id.

    A run directory may come from anywhere, so it never decides which code is imported. `option` is what the
    user types before an environment.
    """
    from spreeze.envs.targets import absolute_target

    env = absolute_target(given) if given else policy.spec.id
    if given is None and ":" in env:
        raise UsageError(
            [f"{whose} was trained on {env}, which is your own code. Name it again: {option}{env}"]
        )
    if given is None and not re.search(r"-v\d+$", env):  # most ids end like this, and no class does
        import gymnasium as gym

        try:
            gym.spec(env)
        except gym.error.Error:
            raise UsageError(
                [
                    f"{whose} was trained on {env}, which is not a registered id. If it is your own class or "
                    f"function, name it: {option}package.module:{env}"
                ]
            ) from None
    if given is None and (suite := suite_of(env)):
        print(f"Note: {env} imports the installed package {suite[1]}.", file=sys.stderr)
    return env


def network_to_play(given: str | None, run: RunDir) -> MakeModule | None:
    """What makes the torch module of a run's policy, from `file.py:NAME`; UsageError if it is none."""
    from spreeze.algos import Entry

    if given is None:
        return None
    where, _, name = given.rpartition(":")
    made = getattr(import_named("--network", where), name, None) if where else None
    if isinstance(made, Entry):
        return network_of(made, run)
    if not callable(made):
        raise UsageError(
            [
                f"--network {given}: name a class or function of (inputs, outputs) that gives a torch module, or your algorithm, as file.py:NAME."
            ]
        )
    make: MakeModule = made
    return make


def network_of(algorithm: Entry, run: RunDir) -> MakeModule:
    """What makes the policy's module by the user's algorithm, with the knobs of a run."""
    from spreeze.knobs import knobs_of

    stored = run.read("config").get("config")
    hyper = stored.get("hyper") if isinstance(stored, dict) else None
    if not isinstance(hyper, dict):
        raise DamagedFile(f"{run.path / 'config.json'} does not hold the settings of a run.")
    known: dict[str, Any] = {
        name: tuple(hyper[name]) if isinstance(hyper[name], list) else hyper[name]
        for name in knobs_of(algorithm.config)
        if name in hyper
    }
    return algorithm.config(**known).policy_module


def as_trained(env: EnvTarget, run: RunDir) -> EnvTarget:
    """The environment with the arguments and the time limit that the run gave it."""
    from spreeze.envs.targets import adjusted

    return adjusted(env, run.env_kwargs, run.max_episode_steps)


def target_to_play(env: EnvTarget, run: RunDir, policy: Policy, given: bool) -> EnvTarget:
    """The environment to evaluate a run's policy in; `given` says whether the user has named it."""
    from spreeze.envs.envpool import EnvPoolTarget
    from spreeze.envs.inspect import evaluation_env

    if not given and run.engine == "envpool":
        return evaluation_env(EnvPoolTarget(env), policy.spec)
    return as_trained(env, run)


def check_fits(policy: Policy, target: EnvTarget, env: str, option: str = "--env ") -> None:
    """Refuse an environment whose observations or actions are not those of the policy."""
    from spreeze.envs.inspect import inspect_env

    spec = inspect_env(target, env)
    facts = ("obs_shape", "action_shape", "num_actions")
    if any(getattr(spec, name) != getattr(policy.spec, name) for name in facts):
        raise UsageError(
            [
                f"{option}{env}: this policy takes observations {policy.spec.obs_shape} and gives actions "
                f"{policy.spec.action_shape}; {env} has {spec.obs_shape} and {spec.action_shape}."
            ]
        )
