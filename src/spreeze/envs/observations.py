"""Observations that are no vector yet, Dict, Tuple and choices: their members, and environments that give them end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from spreeze.spec import Floats, ObsPart, flatten_obs


class NoVector(ValueError):
    """A member of an observation that cannot be laid into a vector; the message names it."""


def parts_of(space: Space[Any]) -> tuple[ObsPart, ...]:
    """The members of a space in Gymnasium's flat order, a choice being its only one; none for a Box."""
    made_of_parts = isinstance(space, Dict | Tuple | Discrete | MultiDiscrete | MultiBinary)
    return tuple(_parts(space, ())) if made_of_parts else ()


def _parts(space: Space[Any], path: tuple[str | int, ...]) -> Iterator[ObsPart]:
    if isinstance(space, Dict | Tuple):
        members: Any = space.items() if isinstance(space, Dict) else enumerate(space)
        for key, member in members:
            yield from _parts(member, (*path, key))
    elif isinstance(space, Discrete):
        yield ObsPart(path=path, shape=(), sizes=(int(space.n),), starts=(int(space.start),))
    elif isinstance(space, MultiDiscrete):
        sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        yield ObsPart(path=path, shape=space.shape, sizes=tuple(sizes), starts=tuple(starts))
    elif isinstance(space, Box | MultiBinary) and len(space.shape) <= 2:
        yield ObsPart(path=path, shape=tuple(space.shape))
    else:
        raise NoVector(f"{'.'.join(map(str, path))} is {space}")


class FlatObservation(gym.ObservationWrapper[Floats, Any, Any]):
    """An environment whose observations come end to end, as `policy.predict` lays them."""

    def __init__(self, env: gym.Env[Any, Any], parts: tuple[ObsPart, ...]) -> None:
        """Wrap `env`."""
        super().__init__(env)
        self.parts = parts
        size = sum(part.size for part in parts)
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation: Any) -> Floats:
        """The members end to end."""
        return flatten_obs(self.parts, observation)


def flattened(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment itself, or a wrapper around it if its observations have parts."""
    parts = parts_of(env.observation_space)
    return FlatObservation(env, parts) if parts else env
