"""What an algorithm is: a config, two networks in flat vectors, and two pure losses.

`learning` does the rest for all algorithms: gradients, Adam, target networks, normalisation, devices,
compilation. Samplers need no torch: the config states the format of rows and of the policy as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from spreeze.algos.network_knobs import NetworkConfig
from spreeze.algos.schedules import Schedule, scheduled
from spreeze.knobs import Auto, Effect, knob, knobs_of
from spreeze.policy import LastingNoise
from spreeze.rows import RowFormat
from spreeze.spec import Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Shapes
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec

Metrics = dict[str, "Tensor"]


@dataclass(frozen=True, kw_only=True)
class AlgoConfig(NetworkConfig):
    """Knobs that every algorithm has."""

    has_actor: ClassVar[bool] = True
    """Whether an actor learns beside the critic. Only then can training be split over two devices."""

    gamma: float = knob(0.99, "Discount per env step.", low=0, high=1, effect=Effect.DATA)
    lr: float | Auto = knob(
        "auto",
        "Adam's learning rate. Auto: follows the batch size.",
        low=1e-8,
        high=1,
        effect=Effect.RATE,
    )
    lr_schedule: Schedule = knob(
        "constant",
        "How the learning rate gets to --algo.lr-end, over the run's --steps or --time.",
        effect=Effect.RATE,
    )
    lr_end: float = knob(
        0.0, "Learning rate at the end of its schedule.", low=0, high=1, effect=Effect.RATE
    )
    beta2: float = knob(0.999, "Adam's decay rate for squared gradients.", low=0, high=0.999999)
    max_grad_norm: float | None = knob(
        None,
        "Clip the gradient of each network to this norm. None: no clipping.",
        low=1e-6,
        high=1e9,
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

    def schedules(self) -> list[str]:
        """The knobs whose schedules are not constant: `lr`."""
        return [
            name.removesuffix("_schedule")
            for name, value in vars(self).items()
            if name.endswith("_schedule") and value != "constant"
        ]

    def lr_at(self, share: float) -> float:
        """The learning rate after this share of the run."""
        return scheduled(self.lr_schedule, self.rates()[0], self.lr_end, share)

    def entropy_shift_at(self, share: float) -> float:
        """What is then added to the target entropy, or to the weight of an entropy bonus."""
        return 0.0

    def exploration_at(self, share: float) -> float:
        """The factor that exploration noise then has."""
        return 1.0

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

    def lasting_noise_when(self) -> tuple[LastingNoise, float]:
        """When exploration noise lasts for more than a step, and the colour it then has."""
        return "never", 0.0

    def explore_more(self) -> str:
        """The flag to try when a run finds no reward; empty if there is none."""
        return ""


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
