"""Observations that are not a vector: how Dict, Tuple and discrete ones become one, and images become frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from spreeze.images import Bytes, FrameLayout, Image, image_of
from spreeze.spec import Floats, ObsPart, flatten_obs, pack_frame


class NotFlattenable(ValueError):
    """A member of an observation space has no flat form; the message names it."""


def parts_of(space: Space[Any]) -> tuple[ObsPart, ...]:
    """The members of a space that are no images, in the order of `gymnasium.spaces.flatten`; empty for a Box."""
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
    elif is_image(space):
        pass
    elif isinstance(space, Box | MultiBinary) and len(space.shape) <= 2:
        yield ObsPart(path=path, shape=tuple(space.shape))
    else:
        raise NotFlattenable(f"{'.'.join(map(str, path))} is {space}")


def images_of(space: Space[Any]) -> tuple[Image, ...]:
    """The members of a space that are images, in its order; NotFlattenable for one without an axis of channels."""
    return tuple(_images(space, ()))


def _images(space: Space[Any], path: tuple[str | int, ...]) -> Iterator[Image]:
    if isinstance(space, Dict | Tuple):
        members: Any = space.items() if isinstance(space, Dict) else enumerate(space)
        for key, member in members:
            yield from _images(member, (*path, key))
    elif is_image(space):
        image = image_of(path, space.shape or ())
        if image is None:
            raise NotFlattenable(f"{'.'.join(map(str, path)) or 'it'} is {space}")
        yield image


def is_image(space: Space[Any]) -> bool:
    """Whether a space is an image: bytes in two or more dimensions."""
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) >= 2


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


class FrameObservation(gym.ObservationWrapper[Bytes, Any, Any]):
    """Packs observations with images into frames."""

    def __init__(
        self, env: gym.Env[Any, Any], images: tuple[Image, ...], parts: tuple[ObsPart, ...]
    ) -> None:
        """Wrap `env`, whose observations have these images and other parts."""
        super().__init__(env)
        self.images, self.parts = images, parts
        words = FrameLayout(images, sum(part.size for part in parts)).words
        self.observation_space = Box(0, 255, (4 * words,), np.uint8)

    def observation(self, observation: Any) -> Bytes:
        """All members in one frame."""
        return pack_frame(self.images, self.parts, observation)


def flattened(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """`env` with flat observations: itself if they are a Box of numbers, else a wrapper around it."""
    parts = parts_of(env.observation_space)
    if images := images_of(env.observation_space):
        return FrameObservation(env, images, parts)
    return FlatObservation(env, parts) if parts else env
