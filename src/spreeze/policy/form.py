"""The architecture of a policy, and where each parameter lies in its flat vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from spreeze.errors import DamagedFile
from spreeze.images import Encoder, encoder_parameters, num_features
from spreeze.spec import Activation, EnvSpec

Parameters = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes, in order."""
MODULE_PREFIX = "module."
"""What the names of a module's parameters start with, beside those of a head or of normalisation."""
Head = Literal["tanh_gaussian", "tanh", "gaussian", "categorical", "values"]
"""What the last layer's outputs mean:

tanh_gaussian  mean and raw log-std of a tanh-squashed Gaussian (SAC)
tanh           a squashed deterministic action; samplers add noise (TD3)
gaussian       the mean of a Gaussian; its log-std is a parameter that does not depend on the state (PPO)
categorical    logits of the actions (PPO)
values         the value of the state, then one advantage per action (dueling DQN), each the mean of its quantiles
"""


@dataclass(frozen=True, kw_only=True)
class PolicyForm:
    """The architecture of a policy: everything except its parameters and its environment."""

    hidden: tuple[int, ...]
    """Widths of the hidden layers."""
    head: Head = "tanh_gaussian"
    quantiles: int = 1
    """Numbers per value and advantage of the head `values`."""
    normalised: bool = False
    """Whether observations are normalised; their mean and scale then follow the weights in the vector."""
    layer_norm: bool = False
    """Whether hidden layers are normalised before the activation."""
    activation: Activation = "relu"
    """What follows each hidden layer. Policies of earlier versions have ReLU, and nothing residual."""
    residual: bool = False
    """Whether each hidden layer behind another one of the same width adds its input."""
    encoder: Encoder | None = None
    """What reads images; None without any."""
    module: Parameters = ()
    """The parameters of a torch module that takes the place of all layers; empty if there is none."""

    @staticmethod
    def from_json(data: Any) -> PolicyForm:
        """The inverse of `asdict`. The data may come from anywhere; DamagedFile if they make no sense."""
        try:
            module = read_parameters(data.get("module", ()))
            encoder = Encoder(**data["encoder"]) if data.get("encoder") else None
            read = {"hidden": tuple(data["hidden"]), "module": module, "encoder": encoder}
            form = PolicyForm(**{**data, **read})
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DamagedFile("the description of the policy is damaged.") from None
        widths = len(form.hidden) <= 100 and all(
            type(x) is int and 0 < x <= 65_536 for x in form.hidden
        )
        quantiles = type(form.quantiles) is int and form.quantiles >= 1
        flags = all(
            isinstance(flag, bool) for flag in (form.normalised, form.layer_norm, form.residual)
        )
        words = ((form.head, Head), (form.activation, Activation))
        known = all(isinstance(word, str) and word in get_args(kind) for word, kind in words)
        known = known and (form.encoder is None or form.encoder.makes_sense())
        if not (widths and quantiles and flags and known):
            raise DamagedFile("the description of the policy is damaged.")
        return form

    def outputs(self, spec: EnvSpec) -> int:
        """How many numbers the head needs."""
        return {
            "tanh_gaussian": 2 * spec.action_size,
            "tanh": spec.action_size,
            "gaussian": spec.action_size,
            "categorical": spec.num_actions or 0,
            "values": (1 + (spec.num_actions or 0)) * self.quantiles,
        }[self.head]

    def sizes(self, spec: EnvSpec) -> list[int]:
        """The input size of each dense layer, then the output size of the last one."""
        inputs = spec.vector_size
        if self.encoder is not None:
            inputs += num_features(self.encoder, spec.images)
        return [inputs, *self.hidden, self.outputs(spec)]

    def shapes(self, spec: EnvSpec) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in the order of the flat vector."""
        shapes = {MODULE_PREFIX + name: shape for name, shape in self.module}
        if self.encoder is not None and not self.module:
            shapes |= encoder_parameters(self.encoder, spec.images, spec.stack)
        for i, (fan_in, fan_out) in enumerate(pairwise(self.sizes(spec))):
            if not self.module:
                shapes |= {f"w{i}": (fan_in, fan_out), f"b{i}": (fan_out,)}
        if self.head == "gaussian":
            shapes["log_std"] = (spec.action_size,)
        if self.normalised:
            shapes |= {"obs_mean": (spec.vector_size,), "obs_scale": (spec.vector_size,)}
        return shapes

    def size(self, spec: EnvSpec) -> int:
        """Length of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes(spec).values())


def read_parameters(data: Any) -> Parameters:
    """Names and shapes as JSON has them. They may come from anywhere; DamagedFile if they make no sense."""
    try:
        found = tuple((name, tuple(shape)) for name, shape in data)
    except (TypeError, ValueError):
        raise DamagedFile("the parameters of a network are described in another form.") from None
    if not all(map(_is_parameter, found)):
        raise DamagedFile("the parameters of a network make no sense.")
    return found


def _is_parameter(parameter: tuple[Any, tuple[Any, ...]]) -> bool:
    """Whether it is a name of usual length, and a shape."""
    name, shape = parameter
    sizes = len(shape) <= 8 and all(type(x) is int and 0 <= x <= 1 << 28 for x in shape)
    return isinstance(name, str) and 0 < len(name) <= 200 and sizes
