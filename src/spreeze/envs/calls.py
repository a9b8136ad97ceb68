"""Calls into environments while a run goes on: a method with arguments, or an attribute with its value.

Of each method and attribute, the newest call counts. Environments that are made later get it too, so a call should
say how things are (`set_difficulty(0.4)`), not how they change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from spreeze.envs.targets import EnvTarget, make_env


class EnvCall(NamedTuple):
    """One call. As a list it is plain JSON."""

    number: int
    """Later calls have higher numbers."""
    name: str
    arguments: list[Any]
    """Of the method; or the attribute's value alone."""
    is_attribute: bool
    now: bool
    """Whether it is made at once, in the middle of an episode; otherwise before the next one."""

    @property
    def key(self) -> tuple[str, bool]:
        """What a newer call replaces."""
        return self.name, self.is_attribute

    def __str__(self) -> str:
        values = ", ".join(map(repr, self.arguments))
        return f"{self.name} = {values}" if self.is_attribute else f"{self.name}({values})"


class EnvMembers(NamedTuple):
    """The public names of an environment and its wrappers."""

    methods: frozenset[str]
    attributes: frozenset[str]


class PendingCalls:
    """The calls that one environment, or one vector environment, has still to get."""

    def __init__(self) -> None:
        """None yet."""
        self._all: list[EnvCall] = []
        self.pending: list[EnvCall] = []

    def take(self, calls: Iterable[EnvCall]) -> None:
        """These are the newest calls of all methods and attributes."""
        known = {call.number for call in self._all} - {call.number for call in self.pending}
        self._all = list(calls)
        self.pending = [call for call in self._all if call.number not in known]

    def forget_made(self) -> None:
        """The environment is a new one: it needs all of them."""
        self.pending = list(self._all)

    def make(self, env: Any, only_now: bool = False) -> None:
        """Make the pending calls in their order; one that raises stays pending, with those after it."""
        for call in [call for call in self.pending if call.now or not only_now]:
            call_env(env, call)
            self.pending.remove(call)


def call_env(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], call: EnvCall) -> None:
    """Make a call in one environment, or in all environments of a vector environment."""
    if isinstance(env, VectorEnv):
        _call_vector_env(env, call)
    elif call.is_attribute:
        env.set_wrapper_attr(call.name, *call.arguments)
    else:
        env.get_wrapper_attr(call.name)(*call.arguments)


def _call_vector_env(env: Any, call: EnvCall) -> None:
    """Gymnasium's have `call` and `set_attr`; a class of your own is called itself."""
    if call.is_attribute and hasattr(env, "set_attr"):
        # As a list, because a list as the value would be shared out among the environments.
        env.set_attr(call.name, call.arguments * env.num_envs)
    elif not call.is_attribute and hasattr(env, "call"):
        env.call(call.name, *call.arguments)
    elif call.is_attribute:
        setattr(env.unwrapped, call.name, *call.arguments)
    else:
        getattr(env.unwrapped, call.name)(*call.arguments)


def find_members(target: EnvTarget) -> EnvMembers:
    """Make an environment, and list what can be called and set in it."""
    env: Any = make_env(target)
    one = env
    try:
        if isinstance(env, VectorEnv) and hasattr(env, "call"):
            inner: Any = env.unwrapped
            one = inner.env_fns[0]() if isinstance(inner, AsyncVectorEnv) else inner.envs[0]
        else:
            one = env.unwrapped if isinstance(env, VectorEnv) else env
        with contextlib.suppress(Exception):  # attributes often appear in the first reset
            one.reset(seed=0)
        return _members_of(one)
    finally:
        for made in (one, env):
            with contextlib.suppress(Exception):
                made.close()


def _members_of(env: Any) -> EnvMembers:
    methods: set[str] = set()
    attributes: set[str] = set()
    while env is not None:
        for name in dir(env):
            if not name.startswith("_"):
                with contextlib.suppress(Exception):  # a property may raise
                    (methods if callable(getattr(env, name)) else attributes).add(name)
        env = env.env if isinstance(env, gym.Wrapper) else None
    return EnvMembers(frozenset(methods), frozenset(attributes))
