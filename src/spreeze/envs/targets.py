"""What a user may name as an environment: made, checked and described.

What cannot be trained on is refused here by name, before anything else is started.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from spreeze.envs.suites import EXTRAS, missing, register_suite
from spreeze.errors import UsageError

EnvTarget = str | Callable[..., Any]
"""What a user may name: a Gymnasium id, `module:Id`, `package.module:EnvClass`, a class, a factory; a `Pool` of them."""


def make_env(
    target: EnvTarget, *, checked: bool = False, **kwargs: Any
) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """A new environment; with `checked`, under Gymnasium's own checker."""
    if isinstance(target, str):
        module_name, _, name = target.rpartition(":")
        if module_name:
            factory = _named_in_module(module_name, name)
            if factory is not None:
                return factory(**kwargs)  # type: ignore[no-any-return]
        if target not in gym.registry:
            register_suite(target)
        return gym.make(target, disable_env_checker=not checked, **kwargs)
    return target(**kwargs)  # type: ignore[no-any-return]


def _named_in_module(module_name: str, name: str) -> Callable[..., Any] | None:
    """`package.module:EnvClass` if the module has such a thing; None for `module:Id`."""
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there, but imports something that is not
        raise UsageError(
            [
                f"env {module_name}:{name}: there is no module {error.name!r} to import. "
                "Run from the folder that holds it, or install it."
            ]
        ) from None
    factory = getattr(module, name, None)
    if factory is None and not any(
        known.rpartition("/")[2] == name.rpartition("/")[2] for known in gym.registry
    ):
        public = [n for n in vars(module) if not n.startswith("_")]
        near = difflib.get_close_matches(name, public, 1)
        hint = f" Did you mean {module_name}:{near[0]}?" if near else ""
        raise UsageError(
            [
                f"env {module_name}:{name}: module {module_name} neither defines nor registers {name!r}.{hint}"
            ]
        )
    return factory


def target_name(target: EnvTarget) -> str:
    """How the environment is called in names and tables; what cannot be one is refused."""
    made = isinstance(target, gym.Env | VectorEnv)
    if made or not (isinstance(target, str) or callable(target)):
        what = "an environment that is made already" if made else "no environment"
        raise UsageError(
            [
                f"{target!r} is {what}: samplers make theirs. Give its id, its class, or a function "
                'that makes one, such as lambda: gymnasium.make("Pendulum-v1").'
            ]
        )
    return target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)


def picklable_target(target: EnvTarget) -> EnvTarget:
    """An id that only this process has registered, as something another process can make too."""
    if isinstance(target, str) and target in gym.registry:
        spec = gym.registry[target]
        if not str(spec.entry_point).startswith("gymnasium.envs."):
            return functools.partial(gym.make, spec, disable_env_checker=True)
    return target


def unknown_env(name: str, error: Exception) -> str:
    """What to tell a user whose environment id is not registered, with the nearest ids."""
    short = name.rpartition(":")[2]
    near = difflib.get_close_matches(short, list(gym.registry), 3, 0.6)
    versions = [
        known for known in gym.registry if known.rpartition("-")[0] == short.rpartition("-")[0]
    ]
    names = versions or near
    hint = f" Did you mean {' or '.join(sorted(names)[:-4:-1])}?" if names else f" ({error})"
    return f"env {name!r} is not registered.{hint} An environment of your own goes as package.module:EnvClass."


def missing_extra(name: str, error: str) -> str:
    """What to tell a user whose environment needs a package that is not installed."""
    for extra, module in EXTRAS.items():
        if module.lower() in error.lower():
            return missing(name, extra)
    return f"env {name} needs a package that is missing: {error}"
