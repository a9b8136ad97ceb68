"""What an algorithm is: a config, two networks in flat vectors, and two pure losses.

`learning` does the rest for all algorithms: gradients, Adam, target networks, normalisation, devices,
compilation. Samplers need no torch: the config states the format of rows and of the policy as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from spreeze.algos.schedules import Schedule, scheduled
from spreeze.images import Encoder, EncoderKind, EncoderNorm
from spreeze.knobs import Auto, Effect, KnobGroup, knob, knobs_of
from spreeze.policy import Head, LastingNoise, PolicyForm
from spreeze.rows import RowFormat
from spreeze.spec import Activation, Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch.nn import Module

    from spreeze.networks import Arithmetic, Network, Shapes, Style
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec

Metrics = dict[str, "Tensor"]


class BuiltPolicy(NamedTuple):
    """A policy, as it is trained and as it acts."""

    network: Network
    form: PolicyForm
    why_torch: str = ""
    """Why numpy cannot run it; empty if it can."""


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
    actor_hidden: tuple[int, ...] | None = knob(
        None,
        "The same for the actor alone. None: as --algo.hidden.",
        low=1,
        high=65_536,
        effect=Effect.NETWORK,
    )
    critic_hidden: tuple[int, ...] | None = knob(
        None,
        "The same for the critic alone. None: as --algo.hidden.",
        low=1,
        high=65_536,
        effect=Effect.NETWORK,
    )
    activation: Activation = knob(
        "relu", "What follows each hidden layer, in actor and critic.", effect=Effect.NETWORK
    )
    residual: bool = knob(
        False,
        "Add its input to each hidden layer behind another one of the same width, in actor and critic.",
        effect=Effect.NETWORK,
    )
    encoder: EncoderKind | Auto = knob(
        "auto",
        "What reads images, in actor and critic. Auto: nature; small for images below 36 pixels.",
        effect=Effect.NETWORK,
    )
    encoder_width: int = knob(
        1, "Factor on the encoder's channels.", low=1, high=16, effect=Effect.NETWORK
    )
    encoder_norm: EncoderNorm = knob(
        "none",
        "layer: normalise the output of each convolution; spectral: its weights by their largest singular value.",
        effect=Effect.NETWORK,
    )
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
    layer_norm: bool = knob(
        False, "Layer normalisation in the critic, before the activation.", effect=Effect.NETWORK
    )
    actor_layer_norm: bool = knob(
        False, "Layer normalisation in the actor, before the activation.", effect=Effect.NETWORK
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
        return PolicyForm(
            hidden=self._widths(self.actor_hidden),
            head=self.head(spec),
            normalised=self.normalise_obs and spec.vector_size > 0,
            encoder=self.image_encoder(spec),
            layer_norm=self.actor_layer_norm,
            activation=self.activation,
            residual=self.residual,
        )

    def policy_module(self, inputs: int, outputs: int) -> Module | None:
        """Your own network for the policy: a torch module from this many inputs to this many outputs.

        None: the layers that the knobs say. Import torch inside, since samplers read this class without it.
        """
        return None

    @property
    def has_policy_module(self) -> bool:
        """Whether the policy is a torch module of the user's."""
        return type(self).policy_module is not AlgoConfig.policy_module

    def policy_network(self, spec: EnvSpec, arithmetic: Arithmetic) -> Network:
        """The policy as the losses train it. Needs torch, like the next."""
        return self.build_policy(spec, arithmetic).network

    def build_policy(self, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> BuiltPolicy:
        """The policy, as it is trained and as it acts."""
        from spreeze.networks import Style, network_for, policy_from_module

        form = self.policy_form(spec)
        if not self.has_policy_module:
            style = Style(form.activation, form.layer_norm, form.residual)
            sizes = form.sizes(spec)[1:]
            return BuiltPolicy(
                network_for(spec, form.encoder, sizes, arithmetic, style=style), form
            )
        sizes = spec.obs_size, form.outputs(spec)
        made = policy_from_module(lambda: self.policy_module(*sizes), *sizes, arithmetic)
        network, dense, why_not = made
        if dense is None:
            form = replace(form, hidden=(), module=network.shapes.items)
            return BuiltPolicy(network, form, why_not)
        activation, layer_norm, residual = dense.style
        hidden = dense.sizes[1:-1]
        form = replace(
            form, hidden=hidden, activation=activation, layer_norm=layer_norm, residual=residual
        )
        return BuiltPolicy(network, form)

    def critic_network(
        self,
        spec: EnvSpec,
        arithmetic: Arithmetic,
        outputs: int,
        *,
        with_action: bool = True,
        ensemble: int | None = None,
    ) -> Network:
        """A network (flat, obs, action) for a critic, as the knobs say; without action (flat, obs). Needs torch."""
        from spreeze.networks import network_for

        return network_for(
            spec,
            self.image_encoder(spec),
            [*self.widths(), outputs],
            arithmetic,
            more_inputs=spec.action_size if with_action else 0,
            ensemble=ensemble,
            style=self.critic_style(),
        )

    def image_encoder(self, spec: EnvSpec) -> Encoder | None:
        """What reads the images, in actor and critic; None without images."""
        if not spec.images:
            return None
        assert self.encoder != "auto", "settings.auto.resolve replaces it"
        return Encoder(self.encoder, self.encoder_width, self.encoder_norm)

    def widths(self) -> tuple[int, ...]:
        """Widths of the critic's hidden layers, once they are known."""
        return self._widths(self.critic_hidden)

    def _widths(self, own: tuple[int, ...] | None) -> tuple[int, ...]:
        assert self.hidden != "auto", "settings.auto.resolve replaces it"
        return tuple(self.hidden if own is None else own)

    def critic_style(self) -> Style:
        """What the critic does between its matrices."""
        from spreeze.networks import Style

        return Style(self.activation, self.layer_norm, self.residual)

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
