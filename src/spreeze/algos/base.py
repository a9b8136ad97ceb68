"""What an algorithm is: a config, two networks in flat vectors, and two pure losses.

`updates` does the rest for all of them: gradients, Adam, targets, scaling, devices, compilation. What
samplers need to know of it are plain facts that its config states: the form of rows and of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spreeze.policy import Head, PolicyForm
from spreeze.rows import RowFormat
from spreeze.spec import Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Shapes
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec

Auto = Literal["auto"]


Metrics = dict[str, "Tensor"]


RATES = ("lr", "tau")
AS_DATA = (
    *(*RATES, "gamma", "n_step", "termination_cost"),
    *("init_alpha", "noise", "spread", "hold", "epsilon"),
)
"""Knobs that do not change what an update computes, nor how fast: it gets them as data, or only samplers do.
Of a user's own algorithm that is known of the rates alone."""


def without_data(knobs: dict[str, Any], own: bool = False) -> dict[str, Any]:
    """The knobs of an algorithm, a user's own or one of the registry, that decide what its update computes."""
    names = RATES if own else AS_DATA
    return {name: value for name, value in knobs.items() if name not in names}


def evenly(first: float, last: float, num: int) -> Floats:
    """From the one to the other; one alone is in the middle."""
    if num == 1:
        return np.full(1, (first + last) / 2, np.float32)
    return np.linspace(first, last, num, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """Knobs that every algorithm has."""

    gamma: float = 0.99
    """Discount per environment step."""
    hidden: tuple[int, ...] | Auto = "auto"
    """Width of each hidden layer, actor and critic alike. Auto: small for small tasks."""
    lr: float | Auto = "auto"
    """Adam step size. Auto: follows the batch size."""
    beta2: float = 0.999
    """How slowly Adam forgets the size of gradients."""
    max_grad_norm: float | None = None
    """Longer gradients of a network are cut to this length. None: they stay as they are."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critic."""
    normalise_obs: bool = False
    """Bring observations to mean 0 and spread 1; the policy keeps the running statistics."""
    normalise_reward: bool = False
    """Divide rewards by the running spread of discounted returns."""
    statistics_rows: int = 100_000_000
    """Rows after which these statistics begin to forget (all but the largest return): what networks see must not change faster than they learn."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this."""
    termination_cost: float = 0.0
    """Taken from the reward of a step that terminates its episode, in training alone: gamma hides most of what a fall costs."""

    def head(self, spec: EnvSpec) -> Head:
        """What the policy's last layer means."""
        return "tanh_gaussian"

    def policy_form(self, spec: EnvSpec) -> PolicyForm:
        """The policy that samplers run and users deploy."""
        return PolicyForm(hidden=self.widths(), head=self.head(spec), normalised=self.normalise_obs)

    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, once they are known."""
        assert self.hidden != "auto", "tuner.resolve fills it"
        return tuple(self.hidden)

    def row_format(self) -> RowFormat:
        """What samplers write."""
        return RowFormat(
            gamma=self.gamma,
            termination_cost=self.termination_cost,
            past_return=self.normalise_reward,
        )

    def rates(self) -> tuple[float, float]:
        """Learning rate, and the share of the online network mixed into its target at each update."""
        assert self.lr != "auto", "tuner.resolve fills it"
        return self.lr, 1.0

    def critic_updates(self) -> int:
        """Updates of the critic to one of the actor."""
        return 1

    def priorities(self) -> tuple[float, float]:
        """Power of a row's error by which it is drawn, and how much of the bias is corrected."""
        return 0.0, 0.0

    def reuse(self) -> float | None:
        """How often a step is learned from at most; None: as often as there is time."""
        return None

    def exploration(self, num_envs: int) -> Floats | None:
        """How strongly each environment of all samplers explores; None: as the policy itself does."""
        return None

    def young_updates(self) -> int:
        """Updates in which policies become better too fast to be judged by their average."""
        return 100_000

    def longest_hold(self) -> int:
        """Steps that samplers keep their noise at most; 1: it is drawn anew for every step."""
        return 1


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgoConfig):
    """Knobs of algorithms that learn from transitions of any age."""

    n_step: int = 1
    """Env steps that one transition covers."""
    tau: float | Auto = "auto"
    """Share of the online network mixed into its target at each update. Auto: follows the batch size."""
    policy_delay: int = 1
    """Updates of the critic to one of the actor."""
    priority: float = 0.0
    """Rows are drawn by the size of their error to the power of this. 0: all alike."""
    priority_correction: float = 0.4
    """How much of the bias is made up for that drawing by error brings, from 0 to 1."""

    def row_format(self) -> RowFormat:
        """Transitions of n steps."""
        return replace(super().row_format(), n_step=self.n_step)

    def rates(self) -> tuple[float, float]:
        """Learning rate and tau."""
        assert self.lr != "auto" and self.tau != "auto", "tuner.resolve fills them"  # noqa: PT018
        return self.lr, self.tau

    def critic_updates(self) -> int:
        """The policy's delay."""
        return self.policy_delay

    def priorities(self) -> tuple[float, float]:
        """The knobs of that name."""
        return self.priority, self.priority_correction


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(OffPolicyConfig):
    """Knobs of algorithms whose policy is one action, to which samplers add noise."""

    noise: tuple[float, float] = (0.05, 0.5)
    """Spread of the noise on actions, in the environment that explores least and in the one that does most."""

    def head(self, spec: EnvSpec) -> Head:
        """The action itself."""
        return "tanh"

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest noise."""
        return evenly(*self.noise, num_envs)


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, built for one environment."""

    config: AlgoConfig
    spec: EnvSpec
    actor_shapes: Shapes
    """Empty if the critic itself is the policy."""
    critic_shapes: Shapes
    policy_size: int
    """The first so many numbers of the actor vector, or of the critic's, are the policy's network."""
    init: Callable[[Generator], tuple[Tensor, Tensor]]
    """Fresh actor and critic vectors."""
    critic_loss: Callable[[Tensor, Tensor, Tensor, Batch, Tensor], tuple[Tensor, Metrics]]
    """(critic, target critic, actor, batch, noise [B, action]) -> loss and metrics. The actor is the
    target actor if there is one, and the critic as it was if the critic is the policy."""
    actor_loss: Callable[[Tensor, Tensor, Batch, Tensor], tuple[Tensor, Metrics]] | None = None
    """(actor, critic, batch, noise [B, action]) -> loss and metrics. None: the critic is the policy."""
    target_actor: bool = False
    """Whether the actor has a target too, mixed like the critic's."""
