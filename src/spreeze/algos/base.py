"""What an algorithm is: a config, two networks in flat vectors, and two pure losses.

`updates` does the rest for all of them: gradients, Adam, target mixing, devices, compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Shapes
    from spreeze.spec import Batch

Auto = Literal["auto"]


Metrics = dict[str, "Tensor"]


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """Knobs that every algorithm has."""

    gamma: float = 0.99
    """Discount per environment step."""
    n_step: int = 1
    """Env steps that one transition covers."""
    hidden: tuple[int, ...] | Auto = "auto"
    """Width of each hidden layer, actor and critic alike. Auto: small for small tasks."""
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
