"""Networks as pure functions of one flat parameter vector.

All parameters of a network live in ONE float32 vector; a `Shape` table says which part is which
matrix. So an optimiser step, a target update, a publication or a checkpoint is one operation on
one tensor, and a network is a plain function that torch.func can differentiate and torch.compile
can swallow whole. `policy.py` reads the same vectors with numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from spreeze.spec import LOG_STD_RANGE


@dataclass(frozen=True)
class Shapes:
    """Names and shapes of the parameters in a flat vector, in order."""

    items: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(math.prod(shape) for _, shape in self.items)

    def split(self, flat: Tensor, half: bool = False) -> dict[str, Tensor]:
        """The named parameters, as views. One `split`, so that its gradient is one concatenation.

        With `half`, all but the last layer come in bfloat16: eight bits are enough for hidden units,
        but not for a value of some hundreds, of which the loss takes small differences.
        """
        sizes = [math.prod(shape) for _, shape in self.items]
        parts = torch.split(flat, sizes)
        if half:
            body, head = torch.split(flat, [sum(sizes[:-2]), sum(sizes[-2:])])
            hidden = torch.split(body.to(torch.bfloat16), sizes[:-2])
            parts = (*hidden, *torch.split(head, sizes[-2:]))
        return {
            name: part.view(shape) for (name, shape), part in zip(self.items, parts, strict=True)
        }


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


def mlp(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """ReLU between layers, none after the last.  [B, in] -> [B, out] or [ensemble, B, out].

    Each layer computes in the type of its parameters.
    """
    num_layers = len(params) // 2
    for i in range(num_layers):
        w, b = params[f"w{i}"], params[f"b{i}"]
        x = x.to(w.dtype)
        if w.ndim == 2:
            x = torch.addmm(b, x, w)
        else:
            x = x.expand(w.shape[0], *x.shape) if x.ndim == 2 else x
            # Not baddbmm: it copies the bias to full size first; a compiler fuses this addition.
            x = torch.bmm(x, w) + b
        if i < num_layers - 1:
            x = torch.relu(x)
    return x


def tanh_gaussian(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Squashed Gaussian: action in [-1, 1] and its log-probability, from [mean | raw log-std].

    The raw log-std is bounded through tanh, not clamped: a clamp has no gradient outside.
    """
    mean, raw = head.chunk(2, dim=-1)
    low, high = LOG_STD_RANGE
    log_std = low + 0.5 * (high - low) * (torch.tanh(raw) + 1)
    u = mean + log_std.exp() * noise
    # log N(u) - log|d tanh/du|, the latter as 2 (log 2 - u - softplus(-2u)): no overflow for large u.
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return torch.tanh(u), (gaussian - squash).sum(-1)
