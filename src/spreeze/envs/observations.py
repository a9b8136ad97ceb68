"""Observations that are not a Box: how Dict, Tuple and discrete ones become one flat vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from spreeze.spec import Floats, ObsPart, flatten_obs


class NotFlattenable(ValueError):
    """A member of an observation space has no flat form; the message names it."""


def parts_of(space: Space[Any]) -> tuple[ObsPart, ...]:
    """The members of a space, in the order of `gymnasium.spaces.flatten`; empty for a Box."""
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
        raise NotFlattenable(f"{'.'.join(map(str, path))} is {space}")


class FlatObservation(gym.ObservationWrapper[Floats, Any, Any]):
    """Flattens observations the way `policy.predict` does."""

    def __init__(self, env: gym.Env[Any, Any], parts: tuple[ObsPart, ...]) -> None:
        """Wrap `env`, whose observations have these parts."""
        super().__init__(env)
        self.parts = parts
        size = sum(part.size for part in parts)
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation: Any) -> Floats:
        """All members in one vector."""
        return flatten_obs(self.parts, observation)


def flattened(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """`env` with flat observations: itself if they are a Box, else a wrapper around it."""
    parts = parts_of(env.observation_space)
    return FlatObservation(env, parts) if parts else env
