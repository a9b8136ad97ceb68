"""What an algorithm is: a config, two networks in flat vectors, and two pure losses.

`updates` does the rest for all of them: gradients, Adam, target mixing, devices, compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Shapes

Auto = Literal["auto"]


class Batch(NamedTuple):
    """Transitions as one update reads them; B of each."""

    obs: Tensor  # [B, obs]
    action: Tensor  # [B, action], in [-1, 1]
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_obs: Tensor  # [B, obs]


Metrics = dict[str, "Tensor"]


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """Knobs that every algorithm has."""

    gamma: float = 0.99
    """Discount per environment step."""
    n_step: int = 1
    """Env steps that one transition covers."""
    hidden: tuple[int, ...] = (256, 256)
    """Width of each hidden layer, actor and critic alike."""
    lr: float | Auto = "auto"
    """Adam step size. Auto: follows the batch size."""
    tau: float | Auto = "auto"
    """Share of the online critic mixed into the target at each update. Auto: follows the batch size."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, built for one environment."""

    actor_shapes: Shapes
    critic_shapes: Shapes
    policy_size: int
    """The first so many numbers of the actor vector are the policy that samplers run."""
    init: Callable[[Generator], tuple[Tensor, Tensor]]
    """Fresh actor and critic vectors."""
    critic_loss: Callable[[Tensor, Tensor, Tensor, Batch, Tensor], tuple[Tensor, Metrics]]
    """(critic, target critic, actor, batch, noise [B, action]) -> loss and metrics."""
    actor_loss: Callable[[Tensor, Tensor, Batch, Tensor], tuple[Tensor, Metrics]]
    """(actor, critic, batch, noise [B, action]) -> loss and metrics."""
