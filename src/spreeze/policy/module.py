"""A policy whose network is a torch module of the user's, for what numpy cannot run.

Imports torch only when such a policy is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.errors import UsageError
from spreeze.images import Bytes
from spreeze.policy.form import MODULE_PREFIX, PolicyForm
from spreeze.policy.image_policy import ImagePolicy
from spreeze.policy.policy import Policy
from spreeze.spec import EnvSpec, Floats

MakeModule = Callable[[int, int], Any]
"""Makes a torch module from its number of inputs and of outputs; a class may do."""


class ModulePolicy(ImagePolicy):
    """A torch module that acts, with the head, the noise and the interface of `Policy`."""

    def __init__(
        self, spec: EnvSpec, form: PolicyForm, make: MakeModule, vector: Floats | None = None
    ) -> None:
        """The parameters of what `make` returns become views of `vector`; UsageError if they are others."""
        import torch

        super().__init__(spec, form, vector)
        self._torch, self._make = torch, make
        self.module = make(spec.obs_size, form.outputs(spec))
        """It acts; its parameters are those of the policy."""
        parameters = dict(self.module.named_parameters())
        found = tuple((name, tuple(value.shape)) for name, value in parameters.items())
        if found != form.module:
            raise UsageError(
                [
                    f"the network {_name(make)} has other parameters than this policy: {listed(found)}; "
                    f"the policy has {listed(form.module)}."
                ]
            )
        for name, value in parameters.items():
            value.requires_grad_(False)
            value.data = torch.from_numpy(self._params[MODULE_PREFIX + name])

    def _inputs(self, obs: NDArray[Any]) -> Floats:
        return super()._inputs(obs) if self.spec.images else Policy._inputs(self, obs)

    def _join(self, pixels: Bytes, numbers: Floats) -> Floats:
        """All pixels from 0 to 1, then the other numbers: the module has its own encoder."""
        flat = pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(255)
        return np.concatenate([flat, numbers], axis=1)

    def predict(self, observation: Any, *args: Any, **options: Any) -> tuple[NDArray[Any], Any]:
        """As its kind of observations needs it."""
        kind = ImagePolicy if self.spec.images else Policy
        return kind.predict(self, observation, *args, **options)

    def _network(self, x: Floats) -> Floats:
        torch = self._torch
        with torch.inference_mode():
            out = self.module(torch.from_numpy(x if x.flags.writeable else x.copy()))
        return np.array(out.float().numpy())  # a copy: the head overwrites it

    def copy(self) -> ModulePolicy:
        """A copy with separate parameters; its noise starts from the beginning."""
        return ModulePolicy(self.spec, self.form, self._make, self.vector.copy())


def make_policy(spec: EnvSpec, form: PolicyForm, make: MakeModule | None = None) -> Policy:
    """A policy with parameters 0, which acts in numpy, or with the module that `make` returns if its form has one."""
    if not form.module:
        return ImagePolicy(spec, form) if spec.images else Policy(spec, form)
    if make is None:
        raise UsageError(
            [
                f"this policy is a torch module of your own code, with {listed(form.module)}. A stored run does not "
                "choose code, so name what makes it, a class or function of (inputs, outputs): "
                "--network file.py:NAME, or spreeze.load(run, network=NAME)."
            ]
        )
    return ModulePolicy(spec, form, make)


def _name(make: MakeModule) -> str:
    return getattr(make, "__qualname__", type(make).__name__)


def listed(parameters: Any) -> str:
    """The parameters for a message, the first few of them."""
    some = [f"{name} {shape}" for name, shape in parameters[:4]]
    return ", ".join(some) + (f" and {len(parameters) - 4} others" if len(parameters) > 4 else "")
