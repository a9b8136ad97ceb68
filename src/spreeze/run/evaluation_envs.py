"""The environments of evaluations, if they are not the one that is trained on: made and tried out before the run."""

from __future__ import annotations

import json
from dataclasses import replace

from spreeze.envs.inspect import difference
from spreeze.envs.targets import EnvTarget, NamedEnv, adjusted, picklable_target
from spreeze.errors import UsageError
from spreeze.run.plan import describe_env
from spreeze.run.processes.pool import Processes
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec


def evaluation_envs(config: Config, env: EnvTarget) -> tuple[NamedEnv, ...]:
    """What `--evaluator.env` and `--evaluator.kwargs` name; `env` is trained on. Empty: evaluate on that."""
    found = config.evaluations
    names = [name for name, _ in found]
    return tuple(
        NamedEnv(
            _label(name, kwargs if names.count(name) > 1 else {}),
            picklable_target(_target(config, env, name, kwargs)),
        )
        for name, kwargs in found
    )


def tried_out(
    envs: tuple[NamedEnv, ...], spec: EnvSpec, config: Config, processes: Processes | None
) -> tuple[NamedEnv, ...]:
    """The same, after each was tried out; UsageError if a policy for `spec` cannot act there."""
    problems: list[str] = []
    for env, (name, _) in zip(envs, config.evaluations, strict=True):
        try:
            found = describe_env(env.target, replace(config, env=name), processes, [])
        except UsageError as error:
            problems += error.problems
            continue
        if why := difference(found, spec):
            problems.append(f"--evaluator.env {name}: {why}, so the policy cannot act there.")
    if problems:
        raise UsageError(problems)
    return envs


def _target(config: Config, env: EnvTarget, name: str, kwargs: dict[str, object]) -> EnvTarget:
    """What makes one of them. The environment that is trained on keeps its limit of steps."""
    own = name == config.env
    limit = config.simulation.max_episode_steps if own else None
    return adjusted(env if own else name, kwargs, limit, "--evaluator.kwargs")


def _label(name: str, kwargs: dict[str, object]) -> str:
    """The name in metrics: with its arguments if the same environment is there twice."""
    told = [f"{key}={json.dumps(value)}" for key, value in kwargs.items()]
    return ",".join([name, *told]).replace("/", "-")
