"""What a user may name as an environment, and how one is made from it.

An unknown name is refused with the nearest known one, before a run starts.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from spreeze.envs.atari import Protocol, is_atari, make_atari, protocol_of
from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.messages import keep_mujoco_log_here
from spreeze.envs.suites import EXTRAS, missing, register_suite
from spreeze.envs.traps import has_several_agents, several_agents_problem
from spreeze.errors import UsageError
from spreeze.text import nearest
from spreeze.user_code import allow_beside, load_file

ANONYMOUS = "lambda"
"""The name of a function without a name; what it makes has a better one."""
EnvTarget = str | Callable[..., Any]
"""A Gymnasium id, `module:Id`, `package.module:EnvClass`, `path/file.py:EnvClass`, a class, a function that makes an environment,
an `EnvPoolTarget` or an `Adjusted` one."""


@dataclass(frozen=True)
class Adjusted:
    """An environment that is made with the user's arguments, and ends its episodes after their number of steps."""

    target: EnvTarget
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    """In place of the limit that `gymnasium.make` gives it; None: that limit."""
    option: str = "--env.kwargs"
    """What the user types before the arguments."""

    def __call__(self, **kwargs: Any) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
        """Make it."""
        return make_env(self, **kwargs)

    def limit(
        self, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]
    ) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
        """The environment with the new limit; itself if it is none of Gymnasium's, which is refused later."""
        steps = self.max_episode_steps
        if steps is None or not isinstance(env, gym.Env | VectorEnv):
            return env
        if isinstance(env, VectorEnv):
            env.close()
            raise UsageError(
                [
                    f"--env.max-episode-steps {steps}: a vector environment ends its own episodes; set its limit there."
                ]
            )
        return TimeLimit(env.env if isinstance(env, TimeLimit) else env, steps)


@dataclass(frozen=True)
class NamedEnv:
    """One of the environments of evaluations."""

    name: str
    """What its metrics are called, if there are several."""
    target: EnvTarget


def adjusted(
    target: EnvTarget,
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    option: str = Adjusted.option,
) -> EnvTarget:
    """The target with the user's arguments and time limit; itself without any."""
    if not kwargs and max_episode_steps is None:
        return target
    return Adjusted(target, kwargs, max_episode_steps, option)


def make_env(
    target: EnvTarget, *, checked: bool = False, **kwargs: Any
) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """Make a new environment; with `checked`, inside Gymnasium's own checker."""
    keep_mujoco_log_here()
    if isinstance(target, Adjusted):
        arguments = {**target.kwargs, **kwargs}
        if is_atari(target.target) and target.max_episode_steps is not None:
            # Where several games are one vector environment, only ale-py can cut them off.
            return make_env(
                target.target, **arguments | {"max_episode_steps": target.max_episode_steps}
            )
        return target.limit(make_env(target.target, checked=checked, **arguments))
    if isinstance(target, str):
        module_name, _, name = target.rpartition(":")
        if module_name:
            factory = _import_factory(module_name, name)
            if factory is not None:
                return factory(**kwargs)  # type: ignore[no-any-return]
            target = name
        if is_atari(target):
            return make_atari(target, **kwargs)
        if target not in gym.registry:
            register_suite(target)
        return gym.make(target, disable_env_checker=not checked, **kwargs)
    return target(**kwargs)  # type: ignore[no-any-return]


def atari_protocol(target: EnvTarget) -> Protocol | None:
    """How a game of Atari's is played; None for other environments."""
    options: Mapping[str, Any] = target.kwargs if isinstance(target, Adjusted) else {}
    plain = target.target if isinstance(target, Adjusted | EnvPoolTarget) else target
    return protocol_of(plain, options) if is_atari(plain) else None


def takes_num_envs(target: EnvTarget) -> bool:
    """Whether `make_env` takes `num_envs`: one vector environment then has as many as are asked for."""
    plain = target.target if isinstance(target, Adjusted) else target
    return isinstance(plain, EnvPoolTarget) or is_atari(plain)


def _import_factory(module_name: str, name: str) -> Callable[..., Any] | None:
    """The class or function that `package.module:EnvClass` names; None for `module:Id`, a registered id."""
    module = _import_module(module_name, name)
    factory = getattr(module, name, None)
    if factory is None and not any(
        known.rpartition("/")[2] == name.rpartition("/")[2] for known in gym.registry
    ):
        public = [n for n in vars(module) if not n.startswith("_")]
        near = nearest(name, public)
        hint = f" Did you mean {module_name}:{near}?" if near else ""
        raise UsageError(
            [
                f"env {module_name}:{name}: module {module_name} neither defines nor registers {name!r}.{hint}"
            ]
        )
    if factory is None and name in gym.registry:  # its class may be in another file of the user's
        allow_beside(module.__name__, str(gym.registry[name].entry_point).partition(":")[0])
    if factory is not None and not callable(factory):
        raise UsageError([_no_factory(f"{module_name}:{name}", factory)])
    return factory


def _no_factory(name: str, found: Any) -> str:
    """What to say of something in a module that makes no environment, such as a module of PettingZoo."""
    if has_several_agents(found):
        return several_agents_problem(name)
    return f"env {name}: this is a {type(found).__name__}. Name a class, or a function that makes an environment."


def _import_module(module_name: str, name: str) -> ModuleType:
    """A user's module, by name or by file."""
    if module_name.endswith(".py"):
        if not Path(module_name).is_file():
            raise UsageError([f"env {module_name}:{name}: there is no file {module_name}."])
        return load_file(Path(module_name))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module exists; something that it imports is missing
        raise UsageError(
            [
                f"env {module_name}:{name}: there is no module {error.name!r} to import. "
                "Run from the folder that contains it, or install it."
            ]
        ) from None


def target_name(target: EnvTarget) -> str:
    """The name of the environment in tables and folders; UsageError if `target` cannot make one."""
    made = isinstance(target, gym.Env | VectorEnv)
    if not callable(target) and has_several_agents(target):
        name = getattr(target, "__name__", type(target).__name__)
        raise UsageError([several_agents_problem(name)])
    if made or not (isinstance(target, str) or callable(target)):
        what = "an environment object" if made else "not an environment"
        raise UsageError(
            [
                f"{target!r} is {what}: every sampler makes its own. Give an id, a class, or a function "
                'that makes one, such as lambda: gymnasium.make("Pendulum-v1").'
            ]
        )
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, str):
        return target
    return getattr(target, "__name__", type(target).__name__).replace("<lambda>", ANONYMOUS)


def is_named(name: str) -> bool:
    """Whether a name tells people which environment it is."""
    return name != ANONYMOUS


def picklable_target(target: EnvTarget) -> EnvTarget:
    """A target that another process can make, even if only this process has registered its id."""
    if isinstance(target, Adjusted):
        return replace(target, target=picklable_target(target.target))
    if isinstance(target, str) and target in gym.registry and not is_atari(target):
        spec = gym.registry[target]
        if not str(spec.entry_point).startswith("gymnasium.envs."):
            return functools.partial(gym.make, spec, disable_env_checker=True)
    return absolute_target(target) if isinstance(target, str) else target


def absolute_target(name: str) -> str:
    """The same target in any folder: an environment may change the working folder."""
    return str(Path(name).absolute()) if ".py:" in name else name


def check_sendable(target: EnvTarget, name: str) -> None:
    """UsageError if `target` cannot be sent to another process."""
    try:
        cloudpickle.dumps(target)
    except (TypeError, pickle.PicklingError) as error:
        raise UsageError(
            [
                f"env {name}: every sampler makes its own environment, and this one cannot be sent to it: "
                f"{error}. Create what it refers to inside the function that makes it, or use --serial."
            ]
        ) from None


def unknown_env(name: str, error: Exception) -> str:
    """The message for an id that is not registered, with the nearest ids."""
    short = name.rpartition(":")[2]
    near = difflib.get_close_matches(short, list(gym.registry), 3, 0.6)
    versions = [
        known for known in gym.registry if known.rpartition("-")[0] == short.rpartition("-")[0]
    ]
    names = versions or near
    hint = f" Did you mean {' or '.join(sorted(names)[:-4:-1])}?" if names else f" ({error})"
    return f"env {name!r} is not registered.{hint} Name your own environment as package.module:EnvClass."


def missing_extra(name: str, error: str) -> str:
    """The message for an environment that needs a package; `error` is Gymnasium's message."""
    for extra, module in EXTRAS.items():
        if module.lower() in error.lower():
            return missing(name, extra)
    return f"env {name} needs a package that is missing: {error}"
