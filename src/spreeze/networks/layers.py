"""Networks as pure functions of one flat parameter vector.

All parameters of a network live in ONE float32 vector; a `Shape` table says which part is which
matrix. So an optimiser step, a target update, a publication or a checkpoint is one operation on
one tensor, and a network is a plain function that torch.func can differentiate and torch.compile
can swallow whole. `policy.py` reads the same vectors with numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Arithmetic = Literal["float32", "half", "fused"]
"""How networks compute: as they are; hidden layers in bfloat16; the same in kernels made for it."""
FUSED_INPUTS, FUSED_WIDTHS, FUSED_OUTPUTS = 128, (64, 128, 256), 64
"""What the kernels are made for: all of a row's inputs are on the chip at once."""
MANY_ROWS, SHARES = 2048, 16
"""Rows from which on a product takes them in shares, and how many those are."""
MANY_OUTPUTS = 16
"""With more it pays to give a product a multiple of eight of them."""


def plain_arithmetic(precision: str) -> Arithmetic:
    """How networks compute at a precision, without kernels of our own."""
    return "half" if precision == "bf16" else "float32"


@dataclass(frozen=True)
class Shapes:
    """Names and shapes of the parameters in a flat vector, in order."""

    items: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(math.prod(shape) for _, shape in self.items)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The named parameters, as views. One `split`, so that its gradient is one concatenation."""
        sizes = [math.prod(shape) for _, shape in self.items]
        parts = torch.split(flat, sizes)
        return {
            name: part.view(shape) for (name, shape), part in zip(self.items, parts, strict=True)
        }

    def split_half(self, flat: Tensor) -> dict[str, Tensor]:
        """The same with all but the last layer in bfloat16.

        Eight bits are enough for hidden units, but not for a value of some hundreds, of which the
        loss takes small differences.
        """
        size = sum(math.prod(shape) for _, shape in self.items[-2:])
        hidden, last = torch.split(flat, [self.size - size, size])
        hidden_shapes, last_shapes = Shapes(self.items[:-2]), Shapes(self.items[-2:])
        return {**hidden_shapes.split(hidden.to(torch.bfloat16)), **last_shapes.split(last)}


def mlp_shapes(sizes: Sequence[int], ensemble: int | None = None) -> Shapes:
    """Layers `w0 [in, out], b0 [out], w1, ...`; with `ensemble`, that many side by side."""
    lead = () if ensemble is None else (ensemble,)
    items: list[tuple[str, tuple[int, ...]]] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        bias = (fan_out,) if ensemble is None else (ensemble, 1, fan_out)
        items += [(f"w{i}", (*lead, fan_in, fan_out)), (f"b{i}", bias)]
    return Shapes(tuple(items))


def init_uniform(shapes: Shapes, generator: torch.Generator) -> Tensor:
    """Every weight and bias uniform in +-1/sqrt(fan in), as `torch.nn.Linear` starts."""
    parts = []
    fan_in = 1
    for name, shape in shapes.items:
        if name.startswith("w"):
            fan_in = shape[-2]
        bound = 1 / math.sqrt(fan_in)
        parts.append((torch.rand(math.prod(shape), generator=generator) * 2 - 1) * bound)
    return torch.cat(parts)


def mlp(
    shapes: Shapes, flat: Tensor, arithmetic: Arithmetic, *inputs: Tensor, layer_norm: bool = False
) -> Tensor:
    """ReLU between layers, none after the last, on inputs side by side: [B, out] or [ensemble, B, out].

    With `layer_norm` sums are normalised before the ReLU; a gain and a shift of its own it does not
    need, the weights around it have both.
    """
    if arithmetic == "fused" and not layer_norm and _fusable(shapes, inputs):
        return _fused(shapes, flat, *inputs)
    params = shapes.split(flat) if arithmetic == "float32" else shapes.split_half(flat)
    num_layers = len(params) // 2
    x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)
    for i in range(num_layers):
        w, b = params[f"w{i}"], params[f"b{i}"]
        x = x.to(w.dtype)  # each layer computes in the type of its parameters
        outputs = w.shape[-1]
        if x.is_cuda:
            x, w, b = _in_eights(x, w, b)
        if w.ndim == 2:
            x = torch.addmm(b, x, w)
        else:
            x = x.expand(w.shape[0], *x.shape) if x.ndim == 2 else x
            # Not baddbmm: it copies the bias to full size first; a compiler fuses this addition.
            x = _side_by_side(x, w) + b
        x = x if x.shape[-1] == outputs else x[..., :outputs]
        if i < num_layers - 1:
            x = torch.relu(F.layer_norm(x, x.shape[-1:]) if layer_norm else x)
    return x


def _in_eights(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A layer with zeros up to multiples of eight: tensor cores read lines of that several times as fast."""
    inputs, outputs = -x.shape[-1] % 8, -w.shape[-1] % 8
    if inputs and w.dtype == torch.bfloat16:
        x, w = F.pad(x, (0, inputs)), F.pad(w, (0, 0, 0, inputs))
    if outputs and w.shape[-1] > MANY_OUTPUTS:
        w, b = F.pad(w, (0, outputs)), F.pad(b, (0, outputs))
    return x, w, b


def _side_by_side(x: Tensor, w: Tensor) -> Tensor:
    """x [nets, B, in] @ w [nets, in, out].

    The gradient of w sums over all rows. In float32 a GPU's library gives that to a few of its many
    processors, unless the rows come in shares, each with a copy of w.
    """
    nets, rows, size = x.shape
    if not x.is_cuda or w.dtype != torch.float32 or rows < MANY_ROWS or rows % SHARES:
        return torch.bmm(x, w)
    copies = w.unsqueeze(1).expand(-1, SHARES, -1, -1).reshape(nets * SHARES, *w.shape[1:])
    return torch.bmm(x.reshape(nets * SHARES, -1, size), copies).view(nets, rows, -1)


@dataclass(frozen=True)
class Network:
    """A network as a function of one flat vector: `network(flat, *inputs)`."""

    shapes: Shapes
    forward: Callable[..., Tensor]
    """(flat, *inputs [B, size]) -> [B, out], or [ensemble, B, out]."""

    def __call__(self, flat: Tensor, *inputs: Tensor) -> Tensor:
        """The outputs."""
        return self.forward(flat, *inputs)

    def init(self, generator: torch.Generator) -> Tensor:
        """Fresh parameters."""
        return init_uniform(self.shapes, generator)


def mlp_network(
    sizes: Sequence[int],
    arithmetic: Arithmetic,
    *,
    ensemble: int | None = None,
    layer_norm: bool = False,
) -> Network:
    """A network of ReLU layers; with `ensemble`, that many side by side."""
    shapes = mlp_shapes(sizes, ensemble)
    return Network(
        shapes, lambda flat, *inputs: mlp(shapes, flat, arithmetic, *inputs, layer_norm=layer_norm)
    )


def _fusable(shapes: Shapes, inputs: Sequence[Tensor]) -> bool:
    """Whether there are kernels for a network of these shapes."""
    if len(shapes.items) != 6 or any(x.shape[-1] > FUSED_INPUTS for x in inputs):
        return False
    widths = [shape[-1] for name, shape in shapes.items if name.startswith("w")]
    return widths[0] == widths[1] and widths[0] in FUSED_WIDTHS and widths[2] <= FUSED_OUTPUTS


def _fused(shapes: Shapes, flat: Tensor, x0: Tensor, x1: Tensor | None = None) -> Tensor:
    from spreeze.networks.fused import fused_mlp

    (_, first), (_, last) = shapes.items[0], shapes.items[-2]
    out = fused_mlp(flat, first[-1], last[-1], x0, x1)
    return out if len(first) == 3 else out.squeeze(0)
