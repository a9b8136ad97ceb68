"""What follows the layers of a policy, in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spreeze.spec import Activation, Floats

LAYER_NORM_EPS = 1e-5
GELU_SCALE, GELU_CUBE = np.float32(np.sqrt(2 / np.pi)), np.float32(0.044715)


def _relu(x: Floats) -> None:
    np.maximum(x, 0, out=x)


def _tanh(x: Floats) -> None:
    np.tanh(x, out=x)


def _elu(x: Floats) -> None:
    below = np.expm1(np.minimum(x, 0))
    np.maximum(x, 0, out=x)
    x += below


def _silu(x: Floats) -> None:
    x *= 0.5 * (1 + np.tanh(0.5 * x))  # the logistic function, without its overflow


def _gelu(x: Floats) -> None:
    x *= 0.5 * (1 + np.tanh(GELU_SCALE * (x + GELU_CUBE * x * x * x)))


ACTIVATIONS: dict[Activation, Callable[[Floats], None]] = {
    "relu": _relu,
    "tanh": _tanh,
    "elu": _elu,
    "silu": _silu,
    "gelu": _gelu,
}
"""In place."""


def layer_norm(x: Floats) -> None:
    """Mean 0 and standard deviation 1 in every row, in place."""
    x -= x.mean(1, keepdims=True)
    x /= np.sqrt(np.square(x).mean(1, keepdims=True) + LAYER_NORM_EPS)
