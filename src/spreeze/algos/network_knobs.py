"""The knobs of networks, and the networks that they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from spreeze.images import Encoder, EncoderKind, EncoderNorm, num_features
from spreeze.knobs import Auto, Effect, KnobGroup, knob
from spreeze.policy import Head, PolicyForm
from spreeze.spec import Activation

if TYPE_CHECKING:
    from torch.nn import Module

    from spreeze.networks import Arithmetic, Network, Style
    from spreeze.spec import EnvSpec


class BuiltPolicy(NamedTuple):
    """A policy, as it is trained and as it acts."""

    network: Network
    form: PolicyForm
    why_torch: str = ""
    """Why numpy cannot run it; empty if it can."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(KnobGroup):
    """Knobs of the networks that every algorithm has."""

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
        return type(self).policy_module is not NetworkConfig.policy_module

    def policy_network(self, spec: EnvSpec, arithmetic: Arithmetic) -> Network:
        """The policy as the losses train it. Needs torch, like the next."""
        return self.build_policy(spec, arithmetic).network

    def build_policy(self, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> BuiltPolicy:
        """The policy, as it is trained and as it acts."""
        from spreeze.networks import Style, policy_from_module

        form = self.policy_form(spec)
        if not self.has_policy_module:
            style = Style(form.activation, form.layer_norm, form.residual)
            sizes = self._input_size(spec), *form.hidden, form.outputs(spec)
            return BuiltPolicy(self._network(spec, arithmetic, sizes, None, style), form)
        given = spec.obs_size, form.outputs(spec)
        made = policy_from_module(
            lambda: self.policy_module(*given), *given, arithmetic, bool(spec.images)
        )
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
        inputs = self._input_size(spec) + (spec.action_size if with_action else 0)
        sizes = inputs, *self.widths(), outputs
        return self._network(spec, arithmetic, sizes, ensemble, self.critic_style())

    def _network(
        self,
        spec: EnvSpec,
        arithmetic: Arithmetic,
        sizes: tuple[int, ...],
        ensemble: int | None,
        style: Style,
    ) -> Network:
        """Dense layers of these sizes, behind an encoder if there are images."""
        from spreeze.networks import image_network, mlp_network

        dense = mlp_network(sizes, arithmetic, ensemble=ensemble, style=style)
        encoder = self.image_encoder(spec)
        return dense if encoder is None else image_network(spec, encoder, dense, arithmetic)

    def _input_size(self, spec: EnvSpec) -> int:
        """Numbers of an observation that the first dense layer reads: features in place of pixels."""
        encoder = self.image_encoder(spec)
        features = 0 if encoder is None else num_features(encoder, spec.images)
        return spec.vector_size + features

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
