"""What an algorithm is: a config, two networks in flat vectors, and two pure losses.

`learning` does the rest for all algorithms: gradients, Adam, target networks, normalisation, devices,
compilation. Samplers need no torch: the config states the format of rows and of the policy as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from spreeze.knobs import Auto, Effect, KnobGroup, knob, knobs_of
from spreeze.policy import NOISE_BLOCK, Head, PolicyForm
from spreeze.rows import RowFormat
from spreeze.spec import LARGEST_RETURN, Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Shapes
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec

Metrics = dict[str, "Tensor"]


def evenly(first: float, last: float, num: int) -> Floats:
    """`num` values from `first` to `last`; a single one lies in the middle."""
    if num == 1:
        return np.full(1, (first + last) / 2, np.float32)
    return np.linspace(first, last, num, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class AlgoConfig(KnobGroup):
    """Knobs that every algorithm has."""

    has_actor: ClassVar[bool] = True
    """Whether an actor learns beside the critic. Only then can training be split over two devices."""

    gamma: float = knob(0.99, "Discount per env step.", low=0, high=1, effect=Effect.DATA)
    hidden: tuple[int, ...] | Auto = knob(
        "auto",
        "Width of each hidden layer, in actor and critic. Auto: 64 64 for small tasks, else 256 256.",
        low=1,
        high=65_536,
        effect=Effect.NETWORK,
    )
    lr: float | Auto = knob(
        "auto",
        "Adam's learning rate. Auto: follows the batch size.",
        low=1e-8,
        high=1,
        effect=Effect.RATE,
    )
    beta2: float = knob(0.999, "Adam's decay rate for squared gradients.", low=0, high=0.999999)
    max_grad_norm: float | None = knob(
        None,
        "Clip the gradient of each network to this norm. None: no clipping.",
        low=1e-6,
        high=1e9,
    )
    layer_norm: bool = knob(
        False, "Layer normalisation in the critic, before the ReLU.", effect=Effect.NETWORK
    )
    normalise_obs: bool = knob(
        False,
        "Normalise observations by their running mean and standard deviation, which the policy carries.",
        effect=Effect.NETWORK,
    )
    normalise_reward: bool = knob(
        False,
        "Divide rewards by the running standard deviation of discounted returns.",
        effect=Effect.NETWORK,
    )
    statistics_rows: int = knob(
        100_000_000,
        "Rows after which running statistics start to forget (the largest return is kept).",
        low=1000,
        high=1_000_000_000,
    )
    reward_scale: float = knob(1.0, "Multiply rewards by this.", low=1e-9, high=1e9)
    termination_cost: float = knob(
        0.0,
        "Subtracted from the reward of a terminal step, in training only. Discounting hides most of what a fall costs.",
        low=0,
        high=1e9,
        effect=Effect.DATA,
    )

    def problems(self) -> list[str]:
        """What is wrong with these knobs together; each knob's type and bounds are checked elsewhere."""
        return []

    def head(self, spec: EnvSpec) -> Head:
        """What the policy's last layer means."""
        return "tanh_gaussian"

    def policy_form(self, spec: EnvSpec) -> PolicyForm:
        """The policy that samplers run and users deploy."""
        return PolicyForm(hidden=self.widths(), head=self.head(spec), normalised=self.normalise_obs)

    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, once they are known."""
        assert self.hidden != "auto", "settings.auto.resolve replaces it"
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
        assert self.lr != "auto", "settings.auto.resolve replaces it"
        return self.lr, 1.0

    def critic_updates(self) -> int:
        """Critic updates per actor update."""
        return 1

    def priorities(self) -> tuple[float, float]:
        """Exponent of prioritised replay (0: uniform), and how much of its bias is corrected."""
        return 0.0, 0.0

    @property
    def prioritised(self) -> bool:
        """Whether rows are drawn by priority."""
        return self.priorities()[0] > 0

    def reuse(self) -> float | None:
        """How often a step may be learned from; None: without limit."""
        return None

    def exploration(self, num_envs: int) -> Floats | None:
        """How strongly each environment of all samplers explores; None: as the policy itself does."""
        return None

    def young_updates(self) -> int:
        """Updates in which policies improve too fast to be judged by their average."""
        return 100_000

    def longest_hold(self) -> int:
        """Steps for which samplers repeat their noise at most; 1: fresh noise at every step."""
        return 1


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgoConfig):
    """Knobs of algorithms that learn from transitions of any age."""

    n_step: int = knob(
        1, "Env steps per transition, for n-step returns.", low=1, high=100, effect=Effect.DATA
    )
    tau: float | Auto = knob(
        "auto",
        "Share of the online network mixed into its target at each update. Auto: follows the network width.",
        low=1e-8,
        high=1,
        effect=Effect.RATE,
    )
    policy_delay: int = knob(1, "Critic updates per actor update.", low=1, high=64)
    priority: float = knob(
        0.0,
        "Prioritised replay: draw rows by their error to this power. 0: uniformly.",
        low=0,
        high=4,
    )
    priority_correction: float = knob(
        0.4, "How much of the bias of prioritised replay is corrected.", low=0, high=1
    )

    def row_format(self) -> RowFormat:
        """Transitions of n steps."""
        return replace(super().row_format(), n_step=self.n_step)

    def rates(self) -> tuple[float, float]:
        """Learning rate and tau."""
        lr, _ = super().rates()
        assert self.tau != "auto", "settings.auto.resolve replaces it"
        return lr, self.tau

    def critic_updates(self) -> int:
        """The policy delay."""
        return self.policy_delay

    def priorities(self) -> tuple[float, float]:
        """From the knobs."""
        return self.priority, self.priority_correction


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(OffPolicyConfig):
    """Knobs of algorithms whose policy is deterministic; samplers add noise to its actions."""

    noise: tuple[float, float] = knob(
        (0.05, 0.5),
        "Standard deviation of exploration noise, in the least and in the most exploring environment.",
        low=0,
        high=10,
        effect=Effect.DATA,
    )

    def head(self, spec: EnvSpec) -> Head:
        """The action itself."""
        return "tanh"

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest noise."""
        return evenly(*self.noise, num_envs)


@dataclass(frozen=True, kw_only=True)
class SoftConfig(OffPolicyConfig):
    """Knobs of algorithms with a learned temperature, as in SAC."""

    init_alpha: float = knob(0.2, "Initial temperature.", low=1e-8, high=1000, effect=Effect.DATA)
    target_entropy_per_action: float = knob(
        -1.0, "Target entropy per action dimension.", low=-100, high=100
    )
    hold: int = knob(
        1,
        "Repeat exploration noise for up to this many steps; the length is random, most often 1.",
        low=1,
        high=NOISE_BLOCK,
        effect=Effect.DATA,
    )

    def longest_hold(self) -> int:
        """As the knob says."""
        return self.hold


@dataclass(frozen=True, kw_only=True)
class CategoricalConfig(OffPolicyConfig):
    """Knobs of algorithms with categorical critics, and the defaults that go with them."""

    lr: float | Auto = 3e-4
    beta2: float = 0.95
    policy_delay: int = 2
    layer_norm: bool = True
    normalise_obs: bool = True
    normalise_reward: bool = True
    num_atoms: int = knob(
        101,
        "Atoms of the critics' return distribution.",
        low=2,
        high=10_001,
        effect=Effect.NETWORK,
    )

    def problems(self) -> list[str]:
        """Refuse rewards whose returns would leave the range of the atoms."""
        why = f"the critics only represent returns from -{LARGEST_RETURN:g} to {LARGEST_RETURN:g}"
        problems = super().problems()
        if not self.normalise_reward:
            problems.append(f"--algo.no-normalise-reward: {why}.")
        if self.reward_scale > 1:
            problems.append(f"--algo.reward-scale {self.reward_scale:g}: at most 1, because {why}.")
        return problems


def update_knobs(kind: type[AlgoConfig], knobs: Mapping[str, Any], own: bool) -> dict[str, Any]:
    """The knobs that decide what an update computes, and how fast; the others reach it as data.

    In a user's own algorithm only the rates are sure to be data: its losses may read any other knob.
    """
    as_data = {Effect.RATE} if own else {Effect.RATE, Effect.DATA}
    known = knobs_of(kind)
    return {name: value for name, value in knobs.items() if known[name].effect not in as_data}


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, built for one environment."""

    config: AlgoConfig
    spec: EnvSpec
    actor_shapes: Shapes
    """Empty if the critic itself is the policy."""
    critic_shapes: Shapes
    policy_size: int
    """Length of the policy's network: the first part of the actor vector, or of the critic's if it is the policy."""
    init: Callable[[Generator], tuple[Tensor, Tensor]]
    """Fresh actor and critic vectors."""
    critic_loss: Callable[[Tensor, Tensor, Tensor, Batch, Tensor], tuple[Tensor, Metrics]]
    """(critic, target critic, actor, batch, noise [B, action]) -> loss and metrics. `actor` is the target
    actor if there is one. If the critic is the policy, it is the critic before this update."""
    actor_loss: Callable[[Tensor, Tensor, Batch, Tensor], tuple[Tensor, Metrics]] | None = None
    """(actor, critic, batch, noise [B, action]) -> loss and metrics. None: the critic is the policy."""
    target_actor: bool = False
    """Whether the actor has a target network too, updated like the critic's."""
