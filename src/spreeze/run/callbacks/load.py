"""Finds the callbacks of a run, and refuses before the start what cannot work."""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spreeze.envs.calls import EnvMembers, find_members
from spreeze.envs.targets import EnvTarget, picklable_target
from spreeze.errors import UsageError
from spreeze.run.callbacks import HOOKS, Callback
from spreeze.run.callbacks.desk import UserCode
from spreeze.run.callbacks.live_run import ENVPOOL
from spreeze.run.processes.call import CallFailed, call
from spreeze.run.processes.pool import Processes
from spreeze.settings.config import Config
from spreeze.text import suggest
from spreeze.user_code import import_named

OPTION = "--callback"
CALLS = {"call_envs": "method", "set_env_attr": "attribute"}
"""The methods of a live run that reach into environments, and what their first argument names."""


class EnvName(NamedTuple):
    """A name of the environment that a callback uses."""

    callback: str
    method: str
    """`call_envs` or `set_env_attr`."""
    name: str


def load_callbacks(names: Sequence[str], given: Sequence[Any] = ()) -> list[Callback]:
    """The callbacks that are named as file.py:Class, then those that are given; UsageError with all that is wrong."""
    found, problems = [], []
    for name in names:
        try:
            found.append((f"{OPTION} {name}", _find(name)))
        except UsageError as error:
            problems += error.problems
    found += [(f"callbacks[{i}] {_name_of(thing)}", thing) for i, thing in enumerate(given)]
    callbacks = []
    for what, thing in found:
        try:
            callback = thing() if isinstance(thing, type) else thing
        except Exception:
            problems.append(f"{what}: making it failed:\n{traceback.format_exc().rstrip()}")
            continue
        problems += _check(what, callback)
        callbacks.append(callback)
    if problems:
        raise UsageError(problems)
    return callbacks


def _find(name: str) -> Any:
    where, _, attribute = name.rpartition(":")
    if not where:
        raise UsageError([f"{OPTION} {name}: name it as file.py:MyCallback."])
    try:
        module = import_named(OPTION, where)
    except UsageError:
        raise
    except Exception:  # the user's own mistake, in the user's own file
        trace = traceback.format_exc().rstrip()
        raise UsageError([f"{OPTION} {name}: importing it failed:\n{trace}"]) from None
    if not hasattr(module, attribute):
        public = [public for public in vars(module) if not public.startswith("_")]
        hint = suggest(attribute, public)
        raise UsageError([f"{OPTION} {name}: {where} does not define {attribute!r}.{hint}"])
    return getattr(module, attribute)


def _name_of(thing: Any) -> str:
    return (thing if isinstance(thing, type) else type(thing)).__name__


def _check(what: str, callback: Any) -> Iterator[str]:
    """What is wrong with one callback."""
    if not isinstance(callback, Callback):
        yield f"{what}: it is not a spreeze.Callback. Write: class {_name_of(callback)}(spreeze.Callback)."
        return
    methods = [
        name
        for name in dir(callback)
        if name.startswith("on_") and callable(getattr(callback, name))
    ]
    unknown = [name for name in methods if name not in HOOKS]
    for name in unknown:
        yield f"{what}: there is no hook {name}; there are {', '.join(HOOKS)}.{suggest(name, HOOKS)}"
    own = [name for name in HOOKS if _overwrites(callback, name)]
    if not own and not unknown:
        yield f"{what}: it has none of the hooks {', '.join(HOOKS)}, so it would never be called."
    for name in own:
        arguments = list(inspect.signature(getattr(Callback, name)).parameters)[1:]
        try:
            inspect.signature(getattr(callback, name)).bind(*arguments)
        except TypeError:
            yield f"{what}: {name} must take {', '.join(['self', *arguments])}."
        except ValueError:  # it has no signature that Python knows
            continue


def _overwrites(callback: Callback, hook: str) -> bool:
    method = getattr(callback, hook)
    return getattr(method, "__func__", method) is not getattr(Callback, hook)


def env_names(callbacks: Sequence[Callback]) -> list[EnvName]:
    """The names of the environment that are written out in the callbacks' code."""
    found = []
    for callback in callbacks:
        for kind in type(callback).__mro__:
            if issubclass(kind, Callback) and kind is not Callback:
                found += list(_names_in(kind))
    return found


def _names_in(kind: type) -> Iterator[EnvName]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return  # typed into a console: each call is still checked when it is made
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        first = node.args[0] if node.args else None
        if node.func.attr in CALLS and isinstance(first, ast.Constant | ast.JoinedStr | ast.Name):
            name = first.value if isinstance(first, ast.Constant) else ""
            yield EnvName(kind.__name__, node.func.attr, name if isinstance(name, str) else "")


def check_env_names(names: Sequence[EnvName], members: EnvMembers, env: str) -> None:
    """UsageError if callbacks use names that the environment lacks."""
    problems = []
    for used in names:
        kind = CALLS[used.method]
        known = members.methods if kind == "method" else members.attributes
        if used.name and used.name not in known:
            problems.append(
                f"{used.callback}: run.{used.method}({used.name!r}, ...), but env {env} has no {kind} "
                f"{used.name!r}.{suggest(used.name, known)}"
            )
    if problems:
        raise UsageError(problems)


def check_calls(
    code: UserCode, env: EnvTarget, config: Config, processes: Processes | None
) -> UserCode:
    """Find out what can be called in the environment, if callbacks do that; UsageError if it lacks a name.

    The environment is made once more, in a throw-away process.
    """
    names = env_names(code.callbacks)
    if not names:
        return code
    if config.simulation.engine == "envpool":
        raise UsageError(
            [f"{used.callback}: run.{used.method}({used.name!r}, ...): {ENVPOOL}" for used in names]
        )
    try:
        members = (
            call(processes, find_members, picklable_target(env)) if processes else find_members(env)
        )
    except CallFailed:  # it could be made a moment ago; each call is still checked when it is made
        return code
    check_env_names(names, members, config.env)
    return replace(code, members=members)
