"""Networks as pure functions of one flat parameter vector.

All parameters of a network are one float32 vector; a `Shapes` table says which part is which matrix.
So an optimiser step, a target update, a publication or a checkpoint is one operation on one tensor, and
torch.func can differentiate a network and torch.compile can compile it whole. `spreeze.policy` reads
the same vectors with numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from spreeze.spec import Activation

Arithmetic = Literal["float32", "bf16", "fused_bf16"]
"""How networks compute: in float32; with hidden layers in bfloat16; the same in our fused GPU kernels."""
FUSED_INPUTS, FUSED_WIDTHS, FUSED_OUTPUTS = 128, (64, 128, 256), 64
"""Largest input, hidden widths and largest output of the fused kernels: all inputs of a row fit on the chip."""
SPLIT_FROM_ROWS, NUM_SPLITS = 2048, 16
"""On a GPU, gradients of float32 batched products over at least this many rows are summed in this many parts."""
UNPADDED_OUTPUTS = 16
"""Layers with at most this many outputs are not padded: padding would cost more than it saves."""


def unfused_arithmetic(precision: str) -> Arithmetic:
    """The arithmetic of `--learner.precision` in plain PyTorch, without our fused kernels."""
    return "bf16" if precision == "bf16" else "float32"


class Style(NamedTuple):
    """What a network does between its matrices."""

    activation: Activation = "relu"
    layer_norm: bool = False
    """Normalise hidden layers before the activation, without learned gain and shift: the weights before and
    after it can express both."""
    residual: bool = False
    """Add its input to each hidden layer behind another one of the same width."""


RELU = Style()
"""Plain ReLU layers."""


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    # Clamped: the gradient of the branch that is not taken would be infinite.
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x.clamp(max=0))),
    "silu": F.silu,
    "gelu": _gelu,
}
"""As formulas of operations that our own compiler fuses."""


@dataclass(frozen=True)
class Shapes:
    """Names and shapes of the parameters in a flat vector, in order."""

    items: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(math.prod(shape) for _, shape in self.items)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views. A single `split`, so that its gradient is one concatenation."""
        sizes = [math.prod(shape) for _, shape in self.items]
        parts = torch.split(flat, sizes)
        return {
            name: part.view(shape) for (name, shape), part in zip(self.items, parts, strict=True)
        }

    def split_bf16(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name, with every layer except the last in bfloat16.

        Eight bits of precision are enough for hidden units. They are not enough for values of several
        hundred, because the loss depends on small differences between them.
        """
        size = sum(math.prod(shape) for _, shape in self.items[-2:])
        hidden, last = torch.split(flat, [self.size - size, size])
        hidden_shapes, last_shapes = Shapes(self.items[:-2]), Shapes(self.items[-2:])
        return {**hidden_shapes.split(hidden.to(torch.bfloat16)), **last_shapes.split(last)}


def mlp_shapes(sizes: Sequence[int], ensemble: int | None = None) -> Shapes:
    """Layers `w0 [in, out], b0 [out], w1, ...`; with `ensemble`, all have a leading ensemble dimension."""
    lead = () if ensemble is None else (ensemble,)
    items: list[tuple[str, tuple[int, ...]]] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        bias = (fan_out,) if ensemble is None else (ensemble, 1, fan_out)
        items += [(f"w{i}", (*lead, fan_in, fan_out)), (f"b{i}", bias)]
    return Shapes(tuple(items))


def init_uniform(shapes: Shapes, generator: torch.Generator) -> Tensor:
    """Weights and biases uniform in +-1/sqrt(fan in), the default of `torch.nn.Linear`."""
    parts = []
    fan_in = 1
    for name, shape in shapes.items:
        if name.startswith("w"):
            fan_in = shape[-2]
        bound = 1 / math.sqrt(fan_in)
        parts.append((torch.rand(math.prod(shape), generator=generator) * 2 - 1) * bound)
    return torch.cat(parts)


def mlp(
    shapes: Shapes, flat: Tensor, arithmetic: Arithmetic, *inputs: Tensor, style: Style = RELU
) -> Tensor:
    """A network of dense layers on the concatenated inputs: [B, out] or [ensemble, B, out]."""
    if arithmetic == "fused_bf16" and style == RELU and _fusable(shapes, inputs):
        return _fused(shapes, flat, *inputs)
    params = shapes.split(flat) if arithmetic == "float32" else shapes.split_bf16(flat)
    num_layers = len(params) // 2
    x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)
    for i in range(num_layers):
        w, b = params[f"w{i}"], params[f"b{i}"]
        x = before = x.to(w.dtype)  # each layer computes in the dtype of its parameters
        outputs = w.shape[-1]
        if x.is_cuda:
            x, w, b = pad_for_tensor_cores(x, w, b)
        if w.ndim == 2:
            x = torch.addmm(b, x, w)
        else:
            x = x.expand(w.shape[0], *x.shape) if x.ndim == 2 else x
            # Not baddbmm: it first expands the bias to full size. The compiler fuses this addition.
            x = _ensemble_matmul(x, w) + b
        x = x if x.shape[-1] == outputs else x[..., :outputs]
        if i < num_layers - 1:
            x = F.layer_norm(x, x.shape[-1:]) if style.layer_norm else x
            x = ACTIVATIONS[style.activation](x)
            if style.residual and i > 0 and before.shape[-1] == outputs:
                x = x + before
    return x


def pad_for_tensor_cores(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, weights and bias, zero-padded to multiples of 8: tensor cores read such rows several times faster."""
    inputs, outputs = -x.shape[-1] % 8, -w.shape[-1] % 8
    if inputs and w.dtype == torch.bfloat16:
        x, w = F.pad(x, (0, inputs)), F.pad(w, (0, 0, 0, inputs))
    if outputs and w.shape[-1] > UNPADDED_OUTPUTS:
        w, b = F.pad(w, (0, outputs)), F.pad(b, (0, outputs))
    return x, w, b


def _ensemble_matmul(x: Tensor, w: Tensor) -> Tensor:
    """x [nets, B, in] @ w [nets, in, out]."""
    rows = x.shape[1]
    if not x.is_cuda or w.dtype != torch.float32 or rows < SPLIT_FROM_ROWS or rows % NUM_SPLITS:
        return torch.bmm(x, w)
    product: Tensor = _SplitGradient.apply(x, w)  # type: ignore[no-untyped-call]
    return product


class _SplitGradient(torch.autograd.Function):
    """A batched product whose gradient by w is computed in parts.

    It sums over all rows, and in float32 cuBLAS gives that sum to a few of the GPU's many processors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.bmm(x, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        by_x = torch.bmm(grad, w.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return by_x, None
        nets, rows, _ = x.shape
        parts = (nets * NUM_SPLITS, rows // NUM_SPLITS, -1)
        by_w = torch.bmm(x.reshape(parts).mT, grad.reshape(parts))
        return by_x, by_w.view(nets, NUM_SPLITS, *w.shape[1:]).sum(1)


@dataclass(frozen=True)
class Network:
    """A network as a function of one flat vector: `network(flat, *inputs)`."""

    shapes: Shapes
    forward: Callable[..., Tensor]
    """(flat, *inputs [B, size]) -> [B, out], or [ensemble, B, out]."""
    initial: Callable[[torch.Generator], Tensor] | None = None
    """Fresh parameters; None: as `init_uniform` draws them."""

    def __call__(self, flat: Tensor, *inputs: Tensor) -> Tensor:
        """The network's outputs."""
        return self.forward(flat, *inputs)

    def init(self, generator: torch.Generator) -> Tensor:
        """Fresh parameters."""
        return (self.initial or partial(init_uniform, self.shapes))(generator)


def mlp_network(
    sizes: Sequence[int],
    arithmetic: Arithmetic,
    *,
    ensemble: int | None = None,
    style: Style = RELU,
) -> Network:
    """A network of dense layers; with `ensemble`, that many of them computed together."""
    shapes = mlp_shapes(sizes, ensemble)
    return Network(
        shapes, lambda flat, *inputs: mlp(shapes, flat, arithmetic, *inputs, style=style)
    )


def _fusable(shapes: Shapes, inputs: Sequence[Tensor]) -> bool:
    """Whether the fused kernels can run a network of these shapes."""
    if len(shapes.items) != 6 or any(x.shape[-1] > FUSED_INPUTS for x in inputs):
        return False
    widths = [shape[-1] for name, shape in shapes.items if name.startswith("w")]
    return widths[0] == widths[1] and widths[0] in FUSED_WIDTHS and widths[2] <= FUSED_OUTPUTS


def _fused(shapes: Shapes, flat: Tensor, x0: Tensor, x1: Tensor | None = None) -> Tensor:
    from spreeze.networks.fused import fused_mlp

    (_, first), (_, last) = shapes.items[0], shapes.items[-2]
    out = fused_mlp(flat, first[-1], last[-1], x0, x1)
    return out if len(first) == 3 else out.squeeze(0)
