"""What an environment looks like: its observations, its actions, and bounds that every part agrees on.

Imports neither Gymnasium nor torch, so that every package can import it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from spreeze.errors import DamagedFile
from spreeze.images import Bytes, FrameLayout, Image, leaf

Floats = NDArray[np.float32]

Engine = Literal["gymnasium", "envpool"]
"""The library that steps a sampler's environments."""

LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of a tanh-Gaussian policy's log standard deviation, in training and in deployment."""
LARGEST_RETURN = 5.0
"""Bound of scaled returns: the atoms of categorical critics reach from minus this to plus this."""
Activation = Literal["relu", "tanh", "elu", "silu", "gelu"]
"""What follows each hidden layer. gelu is the form with a tanh, which numpy computes too."""
OBS_CLIP = 10.0
"""Normalised observations are clipped to plus and minus this, in training and in deployment."""
MAX_NUMBERS, LARGEST_FLOAT = 1 << 28, float(np.finfo(np.float32).max)
"""The most numbers of a stored observation or action, and the largest number among stored bounds."""


@dataclass(frozen=True, kw_only=True)
class ObsPart:
    """One leaf of a Dict or Tuple observation space, and how it is flattened."""

    path: tuple[str | int, ...]
    """Keys and positions that lead to it, outermost first."""
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    """The number of values of each discrete entry, which becomes a one-hot; empty for a Box."""
    starts: tuple[int, ...] = ()
    """The smallest value of each discrete entry."""

    @property
    def size(self) -> int:
        """Its length in the flat vector."""
        return sum(self.sizes) if self.sizes else math.prod(self.shape)

    def makes_sense(self) -> bool:
        """Whether a stored description can be true."""
        named = isinstance(self.path, tuple) and len(self.path) <= 32
        named = named and all(type(key) is int or isinstance(key, str) for key in self.path)
        sized = _whole(self.shape, 0) and _whole(self.sizes, 1) and _whole(self.starts, -(2**53))
        if not (named and sized) or math.prod(self.shape) > MAX_NUMBERS:
            return False
        entries = math.prod(self.shape) if self.sizes else 0
        return len(self.sizes) == len(self.starts) == entries and sum(self.sizes) <= MAX_NUMBERS

    def flatten(self, obs: Any) -> Floats:
        """This part of one observation, or of a batch of them."""
        value = leaf(obs, self.path)
        array = np.asarray(value)
        lead = array.shape[: array.ndim - len(self.shape)]
        if array.shape[len(lead) :] != self.shape:
            name = ".".join(map(str, self.path))
            raise ValueError(f"{name} has shape {array.shape}; it should end in {self.shape}")
        if not self.sizes:
            return array.reshape(*lead, self.size).astype(np.float32)
        choices = array.reshape(*lead, len(self.sizes)) - np.array(self.starts)
        if np.any((choices < 0) | (choices >= self.sizes)):
            name = ".".join(map(str, self.path))
            raise ValueError(f"{name} is {value}, which is not a value of its discrete space")
        out = np.zeros((*lead, self.size), np.float32)
        firsts = np.cumsum((0, *self.sizes[:-1]))
        np.put_along_axis(out, choices + firsts, 1, axis=-1)
        return out


def flatten_obs(parts: tuple[ObsPart, ...], obs: Any) -> Floats:
    """An observation, or a batch of them, as one vector in the order of `gymnasium.spaces.flatten`."""
    flat: Floats = np.concatenate([part.flatten(obs) for part in parts], axis=-1)
    return flat


def pack_frame(
    images: tuple[Image, ...], parts: tuple[ObsPart, ...], obs: Any, num_envs: int | None = None
) -> Bytes:
    """An observation with images as one frame, or those of `num_envs` environments; ValueError if it does not fit."""
    layout = FrameLayout(images, sum(part.size for part in parts))
    lead = () if num_envs is None else (num_envs,)
    frame: Bytes = np.zeros((*lead, 4 * layout.words), np.uint8)
    pixels, numbers = layout.split_frame(frame)
    end = 0
    for image in images:
        array = np.asarray(leaf(obs, image.path))
        if array.dtype != np.uint8 or array.shape != (*lead, *image.shape):
            raise ValueError(
                f"{image.name} has shape {array.shape} and type {array.dtype}; it should be an image of shape "
                f"{(*lead, *image.shape)} and type uint8"
            )
        pixels[..., end : end + image.size] = array.reshape(*lead, image.size)
        end += image.size
    if parts:
        numbers[:] = flatten_obs(parts, obs)
        if not np.all(np.isfinite(numbers)):
            raise ValueError("an observation has numbers that are not finite")
    return frame


class Trap(StrEnum):
    """Something about an environment that training silently disregards."""

    ACTION_MASK = "action_mask"
    """`info` says which actions are allowed."""
    GOALS = "goals"
    """Observations name a goal, which may be replaced in hindsight."""
    NO_REWARD = "no_reward"
    """All rewards of random actions were zero."""


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What the rest of the program needs to know about an environment."""

    id: str
    obs_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    max_episode_steps: int | None = None
    vector_envs: int | None = None
    """The number of environments in a vector environment; None for a single environment."""
    step_us: float | None = None
    """Microseconds per step, measured when the environment was inspected."""
    construct_s: float | None = None
    """Seconds it took to make the environment when it was inspected."""
    reset_s: float | None = None
    """Seconds of its slowest reset then."""
    random_episode: float | None = None
    """Steps after which an episode ended by itself when actions were random; None if none did."""
    traps: tuple[Trap, ...] = ()
    """What was noticed when it was inspected, and what the user should know."""
    obs_parts: tuple[ObsPart, ...] = ()
    """The leaves of a Dict, Tuple or discrete observation that are no images, in flat order; empty for a Box."""
    images: tuple[Image, ...] = ()
    """The images of an observation, in the order of its space."""
    stack: int = 1
    """How many of the newest frames the policy sees."""
    num_actions: int | None = None
    """The number of discrete actions; None for continuous actions, which have bounds instead."""
    first_action: int = 0
    """The smallest discrete action."""

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete; a row then stores the action's index as one number."""
        return self.num_actions is not None

    @property
    def frames(self) -> FrameLayout:
        """How observations with images lie in memory."""
        return FrameLayout(self.images, sum(part.size for part in self.obs_parts), self.stack)

    @property
    def obs_size(self) -> int:
        """Numbers that a network reads: those of a flattened observation, or of a stack of frames."""
        return self.frames.stack_numbers if self.images else math.prod(self.obs_shape)

    @property
    def vector_size(self) -> int:
        """The last of those, which are no pixels. Only they are normalised."""
        return self.frames.numbers if self.images else self.obs_size

    @property
    def obs_width(self) -> int:
        """Elements of an observation as samplers keep it: numbers, or the bytes of a frame."""
        return 4 * self.frames.words if self.images else self.obs_size

    @property
    def action_size(self) -> int:
        """Length of a flattened action."""
        return math.prod(self.action_shape)

    def flatten(self, obs: Any) -> Any:
        """A raw observation as one vector if it has parts; a Box or an already flat one is unchanged."""
        if not self.obs_parts:
            return obs
        path = self.obs_parts[0].path
        if not path:  # a raw discrete observation has an integer type, its one-hot does not
            raw = np.issubdtype(np.asarray(obs).dtype, np.integer)
            return flatten_obs(self.obs_parts, obs) if raw else obs
        in_tuple = isinstance(path[0], int)
        if not (isinstance(obs, Mapping) or (in_tuple and isinstance(obs, tuple))):
            return obs  # flat already
        try:
            return flatten_obs(self.obs_parts, obs)
        except LookupError as error:
            raise ValueError(f"the observation of {self.id} has no key {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Plain data for config.json."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Any) -> EnvSpec:
        """The inverse of `to_json`. The data may come from anywhere; DamagedFile if they make no sense."""
        try:
            parts = tuple(ObsPart(**_tuples(part)) for part in data.get("obs_parts", ()))
            images = tuple(Image(**_tuples(image)) for image in data.get("images", ()))
            traps = tuple(Trap(trap) for trap in data.get("traps", ()))
            read = {"obs_parts": parts, "traps": traps, "images": images}
            spec = EnvSpec(**_tuples(data) | read)
            wrong = next((name for name, fine in spec._checks() if not fine), None)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise DamagedFile(f"the description of the environment is damaged: {error}.") from None
        if wrong is not None:
            raise DamagedFile(f"the description of the environment is damaged: {wrong}.")
        return spec

    def _checks(self) -> Iterator[tuple[str, bool]]:
        """Each thing that must hold of a stored description, and whether it does."""
        yield "id", isinstance(self.id, str) and self.id.isprintable() and len(self.id) <= 500
        for name in ("obs_shape", "action_shape"):
            shape = getattr(self, name)
            yield name, _whole(shape, 0) and len(shape) <= 32 and math.prod(shape) <= MAX_NUMBERS
        for name in ("max_episode_steps", "vector_envs", "num_actions"):
            value = getattr(self, name)
            yield name, value is None or _whole((value,), 1)
        yield "num_actions", (self.num_actions or 0) <= MAX_NUMBERS
        yield "first_action", _whole((self.first_action,), -(2**53))
        for name in ("step_us", "construct_s", "reset_s", "random_episode"):
            value = getattr(self, name)
            yield name, value is None or _finite((value,))
        bounds = 0 if self.discrete else self.action_size
        for name in ("action_low", "action_high"):
            value = getattr(self, name)
            yield name, _finite(value) and len(value) == bounds
        yield "obs_parts", all(part.makes_sense() for part in self.obs_parts)
        yield "images", all(image.makes_sense() for image in self.images)
        yield "stack", type(self.stack) is int and 1 <= self.stack <= 64
        one = math.prod(self.obs_shape)
        sizes = sum(part.size for part in self.obs_parts) + self.frames.image_bytes
        yield "obs_parts", sizes == one or not (self.obs_parts or self.images)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _whole(values: Any, low: int) -> bool:
    """Whether these are whole numbers of a sensible size."""
    return isinstance(values, tuple) and all(type(x) is int and low <= x <= 2**53 for x in values)


def _finite(values: Any) -> bool:
    """Whether these are finite numbers."""
    return isinstance(values, tuple) and all(
        type(x) in (int, float) and abs(x) <= LARGEST_FLOAT for x in values
    )
