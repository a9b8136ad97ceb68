"""Which observation and action spaces are supported, and what to say of the others."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import VectorEnv, VectorWrapper

from spreeze.envs.observations import NotFlattenable, images_of, is_image, parts_of

MOST_COMBINATIONS = 10_000
"""Combinations of discrete actions that a policy can choose from one by one."""
IMAGE_SIDE = 32
"""Numbers with two sides of this length are an image, whatever their type."""


def action_space(env: Any) -> gym.Space[Any]:
    """The action space of one environment. ClipAction declares no bounds; take those it clips to."""
    name = "single_action_space" if isinstance(env, VectorEnv) else "action_space"
    space: gym.Space[Any] = getattr(env, name)
    layer = env
    while isinstance(layer, gym.Wrapper | VectorWrapper) and getattr(layer, name) is space:
        if isinstance(layer, wrappers.ClipAction | wrappers.vector.ClipAction):
            return action_space(layer.env)
        layer = layer.env
    return space


def obs_problems(name: str, space: gym.Space[Any]) -> list[str]:
    """Why no network can read these observations; empty if one can."""
    if image := find_image(space):
        return [
            f"env {name}: {image} looks like an image of type {image.dtype}. Images are bytes from 0 to 255: return "
            "np.uint8, and say so in the observation space. If it is no image, flatten it: "
            "gymnasium.wrappers.FlattenObservation."
        ]
    try:
        images, parts = images_of(space), parts_of(space)
    except NotFlattenable as error:
        return [
            f"env {name}: {error}. An image has the shape (height, width), (height, width, channels) or "
            "(channels, height, width); other members are Box of up to 2 dimensions, or discrete. "
            "Frames are stacked by --env.stack, not by a wrapper."
        ]
    if images or parts:
        empty = not images and sum(part.size for part in parts) == 0
        return [f"env {name}: observations {space} are empty."] if empty else []
    if not isinstance(space, gym.spaces.Box):
        return [
            f"env {name}: observations are {space}; supported are Box, Discrete, MultiDiscrete, "
            "MultiBinary, and a Dict or Tuple of them."
        ]
    if len(space.shape) > 2:
        return [
            f"env {name}: observations of shape {space.shape} have too many dimensions; flatten them to one."
        ]
    if int(np.prod(space.shape)) == 0:
        return [f"env {name}: observations of shape {space.shape} are empty."]
    if not np.issubdtype(space.dtype, np.number) and space.dtype != np.bool_:
        return [f"env {name}: observations of type {space.dtype} are not numbers."]
    return []


def action_problems(name: str, space: gym.Space[Any]) -> list[str]:
    """Why no policy can take these actions; empty if one can."""
    if isinstance(space, gym.spaces.Discrete):
        return []
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return [
            f"env {name}: actions are {space}; supported are Box and Discrete. {_one_action(space)}"
        ]
    if not isinstance(space, gym.spaces.Box):
        return [f"env {name}: actions are {space}; only Box and Discrete actions are supported."]
    if int(np.prod(space.shape)) == 0:
        return [f"env {name}: actions of shape {space.shape} are empty."]
    if not np.issubdtype(space.dtype, np.floating):
        return [f"env {name}: actions of type {space.dtype} are not continuous."]
    low, high = space.low.ravel(), space.high.ravel()
    open_ended = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if len(open_ended):
        which = ", ".join(f"{i}: [{low[i]}, {high[i]}]" for i in open_ended[:4])
        return [
            f"env {name}: actions without bounds on both sides ({which}) have no scale to explore on. "
            "Give the action space a finite low and high, for instance with gymnasium.wrappers.TransformAction."
        ]
    if np.any(low >= high):
        i = int(np.flatnonzero(low >= high)[0])
        return [f"env {name}: action {i} has bounds [{low[i]}, {high[i]}]: low must be below high."]
    return []


def _one_action(space: spaces.MultiDiscrete | spaces.MultiBinary) -> str:
    """How to choose several discrete actions as one."""
    sizes = np.broadcast_to(getattr(space, "nvec", 2), space.shape)
    number = math.prod(sizes.ravel().tolist())
    if number > MOST_COMBINATIONS:
        return f"There are {number:,} combinations, too many for one action each; use Box actions and round them."
    chosen = f"numpy.array(numpy.unravel_index(action, {tuple(sizes.ravel().tolist())}))"
    if space.shape and len(space.shape) > 1:
        chosen += f".reshape({space.shape})"
    if np.any(starts := getattr(space, "start", 0)):
        chosen += f" + {np.asarray(starts).tolist()}"
    return (
        f"With one action for each of the {number:,} combinations: gymnasium.wrappers.TransformAction(env, "
        f"lambda action: {chosen}, gymnasium.spaces.Discrete({number}))."
    )


class LooksLikeImage(NamedTuple):
    """A member of a space that may be meant as an image, but does not have bytes."""

    name: str
    dtype: Any

    def __str__(self) -> str:
        return self.name


def find_image(space: gym.Space[Any], name: str = "the observation") -> LooksLikeImage | None:
    """The member of a space whose numbers have two long sides, but are no bytes; None without one."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        members: Any = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        found = (find_image(member, f"observation {key!r}") for key, member in members)
        return next((image for image in found if image), None)
    if not isinstance(space, spaces.Box) or len(space.shape) < 2 or is_image(space):
        return None
    if sorted(space.shape)[-2] < IMAGE_SIDE:
        return None
    return LooksLikeImage(f"{name}, of shape {space.shape},", space.dtype)
