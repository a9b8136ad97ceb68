"""The shared words: what an environment looks like and how one transition is laid out in memory.

Knows nothing of Gymnasium, torch or processes; everything above is built from these two descriptions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    pass

Floats = NDArray[np.float32]

Placement = Literal["gpu", "pinned", "host"]
"""Where the replay lies: on the GPU; in host memory that the GPU reads; in host memory that it cannot read."""
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

Engine = Literal["gymnasium", "envpool"]
"""What steps the environments of a sampler."""
ENGINES: tuple[Engine, ...] = get_args(Engine)

LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of a Gaussian policy's log standard deviation, in training and in deployment alike."""
LARGEST_RETURN = 5.0
"""Size that scaled returns should not exceed: categorical critics have their atoms up to there."""
CLIP = 10.0
"""Standard deviations to which normalised observations are cut, in training and in deployment alike."""


@dataclass(frozen=True, kw_only=True)
class ObsPart:
    """One member of a Dict or Tuple observation, and how it lies in the flat vector."""

    path: tuple[str | int, ...]
    """Keys and positions that lead to it, from the outside in."""
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    """Empty for numbers that are taken as they are. For choices: how many each has; each becomes a one-hot."""
    starts: tuple[int, ...] = ()
    """The smallest value of each choice."""

    @property
    def size(self) -> int:
        """Numbers that it takes in the flat vector."""
        return sum(self.sizes) if self.sizes else math.prod(self.shape)

    def flat(self, obs: Any) -> Floats:
        """This member of one observation, or of a batch of them."""
        for key in self.path:
            obs = obs[key]
        array = np.asarray(obs)
        lead = array.shape[: array.ndim - len(self.shape)]
        if array.shape[len(lead) :] != self.shape:
            name = ".".join(map(str, self.path))
            raise ValueError(f"{name} has shape {array.shape}; it should end in {self.shape}")
        if not self.sizes:
            return array.reshape(*lead, self.size).astype(np.float32)
        choices = array.reshape(*lead, len(self.sizes)) - np.array(self.starts)
        if np.any((choices < 0) | (choices >= self.sizes)):
            name = ".".join(map(str, self.path))
            raise ValueError(f"{name} is {obs}, which is not one of its choices")
        out = np.zeros((*lead, self.size), np.float32)
        firsts = np.cumsum((0, *self.sizes[:-1]))
        np.put_along_axis(out, choices + firsts, 1, axis=-1)
        return out


def flatten_obs(parts: tuple[ObsPart, ...], obs: Any) -> Floats:
    """An observation, or a batch of them, end to end: the order of `gymnasium.spaces.flatten`."""
    flat: Floats = np.concatenate([part.flat(obs) for part in parts], axis=-1)
    return flat


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What the rest of the program needs to know of an environment."""

    id: str
    obs_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    max_episode_steps: int | None = None
    vector_envs: int | None = None
    """How many environments the user's own vector environment has; None for a plain one."""
    step_us: float | None = None
    """Microseconds of one step when it was tried out."""
    obs_parts: tuple[ObsPart, ...] = ()
    """The members of an observation in their flat order; empty for a Box."""
    num_actions: int | None = None
    """How many actions there are to choose from; None for continuous ones, which have bounds instead."""
    first_action: int = 0
    """The number of the first of them."""

    @property
    def discrete(self) -> bool:
        """Whether an action is one of a few; in a row it is then its index, as one number."""
        return self.num_actions is not None

    @property
    def obs_size(self) -> int:
        """Numbers in one flattened observation."""
        return math.prod(self.obs_shape)

    @property
    def action_size(self) -> int:
        """Numbers in one flattened action."""
        return math.prod(self.action_shape)

    def flat(self, obs: Any) -> Any:
        """An observation as the environment gives it, end to end if it has parts; else as it is."""
        if not self.obs_parts:
            return obs
        path = self.obs_parts[0].path
        if not path:  # a choice is a whole number, its flat form is not
            whole = np.issubdtype(np.asarray(obs).dtype, np.integer)
            return flatten_obs(self.obs_parts, obs) if whole else obs
        in_tuple = isinstance(path[0], int)
        if not (isinstance(obs, Mapping) or (in_tuple and isinstance(obs, tuple))):
            return obs  # flat already
        try:
            return flatten_obs(self.obs_parts, obs)
        except LookupError as error:
            raise ValueError(f"the observation of {self.id} has no member {error}") from None

    def to_json(self) -> dict[str, Any]:
        """As plain data, for config.json."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> EnvSpec:
        """The inverse of `to_json`."""
        parts = tuple(ObsPart(**_tuples(part)) for part in data.get("obs_parts", ()))
        return EnvSpec(**_tuples(data) | {"obs_parts": parts})


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
