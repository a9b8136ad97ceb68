"""The kernels as one differentiable function, with how each is cut for the size at hand.

`networks.mlp` in bfloat16 is the plain form of the same function, and the proof of this one.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spreeze.networks import kernels

FEW_ROWS = 4096
"""Batches up to this size are cut into small blocks of rows, so that all of the GPU has some."""
STEP = 64
"""Rows that a weight gradient takes up at a time."""
ROOMY = 160 << 10
"""Bytes on the chip for a block, from which on three steps can be on their way; desktop GPUs have 99 KB."""
TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
"""What hidden layers may compute in; float32 for tests on a CPU, in Triton's interpreter."""


def _pad(size: int) -> int:
    """What a matrix unit takes: a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _memory_of_a_block(tensor: Tensor) -> int:
    if not tensor.is_cuda:
        return 0
    properties: Any = torch.cuda.get_device_properties(tensor.device)
    return int(properties.shared_memory_per_block_optin)


@dataclass(frozen=True)
class Form:
    """Sizes of a network and its batch; from them follow the shapes of all tensors and of all blocks."""

    size0: int
    size1: int
    hidden: int
    out: int
    nets: int
    num_rows: int

    @property
    def num_params(self) -> int:
        """Numbers in the flat vector."""
        h, inputs = self.hidden, self.size0 + self.size1
        return self.nets * (inputs * h + h + h * h + h + h * self.out + self.out)

    @property
    def compiled_in(self) -> dict[str, int]:
        """What all kernels must know beforehand."""
        return {
            "SIZE0": self.size0,
            "SIZE1": self.size1,
            "H": self.hidden,
            "OUT": self.out,
            "OUT_PAD": _pad(self.out),
            "NETS": self.nets,
        }

    @property
    def few(self) -> bool:
        """Whether rows are so few that they must be cut small to keep all of the GPU busy."""
        return self.num_rows <= FEW_ROWS

    def cut(self, columns: int, stages: int, on: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
        """Blocks of a kernel that takes rows through all layers: the best of a search over all of it."""
        rows = 16 if self.few else 64
        columns = min(self.hidden, 128 if self.few else columns)
        stages = stages if _memory_of_a_block(on) >= ROOMY else 2
        sizes = {"ROWS": rows, "COLS": columns, "num_warps": 4, "num_stages": stages}
        return (triton.cdiv(self.num_rows, rows), self.nets), sizes

    @property
    def tile(self) -> int:
        """Lines and columns of a weight gradient that one block adds up."""
        return 32 if self.few else min(self.hidden, 128)

    @property
    def num_shares(self) -> int:
        """Parts of the batch whose weight gradients are added up separately."""
        return min(16, max(1, self.num_rows // (128 if self.few else 512)))

    def units(self, like: Tensor, wanted: bool) -> Tensor:
        """Room for a number per row and hidden unit, or for nothing."""
        return like.new_empty(self.nets, self.num_rows if wanted else 0, self.hidden)


def _forward_room(
    flat: Tensor, half: Tensor, x0: Tensor, x1: Tensor | None, sizes: list[int], save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    form = Form(*sizes)
    out = flat.new_empty(form.nets, form.num_rows, form.out)
    return out, form.units(half, save), form.units(half, save)


def _forward(
    flat: Tensor, half: Tensor, x0: Tensor, x1: Tensor | None, sizes: list[int], save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [nets, rows, out], and both layers' hidden units if they are to be saved."""
    form = Form(*sizes)
    out, h1, h2 = _forward_room(flat, half, x0, x1, sizes, save)
    second = x0 if x1 is None else x1
    grid, cut = form.cut(64, 2, flat)
    kernels.forward[grid](
        flat, half, x0, second, out, h1, h2, form.num_rows, x0.stride(0), second.stride(0),
        **form.compiled_in, PAD0=_pad(form.size0), PAD1=_pad(form.size1),
        SAVE=save, TYPE=TYPES[half.dtype], **cut,
    )  # fmt: skip
    return out, h1, h2


def _backward_rows_room(
    flat: Tensor, half: Tensor, h1: Tensor, h2: Tensor, dout: Tensor,
    sizes: list[int], for_weights: bool, for_x1: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    form = Form(*sizes)
    dx1 = flat.new_empty(form.nets, form.num_rows if for_x1 else 0, form.size1)
    return form.units(half, for_weights), form.units(half, for_weights), dx1


def _backward_rows(
    flat: Tensor, half: Tensor, h1: Tensor, h2: Tensor, dout: Tensor,
    sizes: list[int], for_weights: bool, for_x1: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of both layers' sums and of the second input, those that are asked for."""
    form = Form(*sizes)
    room = _backward_rows_room(flat, half, h1, h2, dout, sizes, for_weights, for_x1)
    grid, cut = form.cut(32 if for_x1 else 64, 3, flat)
    kernels.backward_rows[grid](
        flat, half, h1, h2, dout, *room, form.num_rows,
        **form.compiled_in, PAD1=_pad(form.size1),
        FOR_WEIGHTS=for_weights, FOR_X1=for_x1, TYPE=TYPES[half.dtype], **cut,
    )  # fmt: skip
    return room


def _backward_weights_room(
    x0: Tensor, x1: Tensor | None, h1: Tensor, h2: Tensor, dout: Tensor, dz1: Tensor, dz2: Tensor,
    sizes: list[int],
) -> Tensor:  # fmt: skip
    form = Form(*sizes)
    return dout.new_empty(form.num_shares, form.num_params)


def _backward_weights(
    x0: Tensor, x1: Tensor | None, h1: Tensor, h2: Tensor, dout: Tensor, dz1: Tensor, dz2: Tensor,
    sizes: list[int],
) -> Tensor:  # fmt: skip
    """Gradients of all parameters, by share of the batch: [shares, parameters]."""
    form = Form(*sizes)
    shares = _backward_weights_room(x0, x1, h1, h2, dout, dz1, dz2, sizes)
    second = x0 if x1 is None else x1
    across = form.hidden // form.tile
    inputs = 1 if form.size1 == 0 else 2
    jobs = across * (across + inputs + 3) + 1
    kernels.backward_weights[(jobs, form.nets, form.num_shares)](
        x0, second, h1, h2, dout, dz1, dz2, shares,
        form.num_rows, form.num_params, x0.stride(0), second.stride(0),
        **form.compiled_in, PAD0=_pad(form.size0), PAD1=_pad(form.size1), TILE=form.tile,
        SHARE=triton.cdiv(form.num_rows, form.num_shares * STEP) * STEP, STEP=STEP,
        TYPE=TYPES[h1.dtype], num_warps=4, num_stages=3,
    )  # fmt: skip
    return shares


# Operators of their own, so that a compiler takes each of them as it is. By the plain library interface:
# the decorator for it imports the whole compiler, seconds in which nothing is learned.
LIBRARY = torch.library.Library("spreeze", "DEF")  # type: ignore[no-untyped-call]
for schema, operator, room in (
    (
        "mlp_forward(Tensor flat, Tensor half, Tensor x0, Tensor? x1, int[] sizes, bool save)"
        " -> (Tensor, Tensor, Tensor)",
        _forward,
        _forward_room,
    ),
    (
        "mlp_backward_rows(Tensor flat, Tensor half, Tensor h1, Tensor h2, Tensor dout, "
        "int[] sizes, bool for_weights, bool for_x1) -> (Tensor, Tensor, Tensor)",
        _backward_rows,
        _backward_rows_room,
    ),
    (
        "mlp_backward_weights(Tensor x0, Tensor? x1, Tensor h1, Tensor h2, Tensor dout, Tensor dz1, "
        "Tensor dz2, int[] sizes) -> Tensor",
        _backward_weights,
        _backward_weights_room,
    ),
):
    name = LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, operator, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"spreeze::{name}", room, lib=LIBRARY)
OPS = torch.ops.spreeze


class FusedMLP(torch.autograd.Function):
    """The three kernels, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, half: Tensor, x0: Tensor, x1: Tensor | None, form: Form
    ) -> Tensor:
        """Outputs [nets, rows, out]."""
        save = any(ctx.needs_input_grad)
        ctx.sizes = list(astuple(form))
        out, h1, h2 = OPS.mlp_forward(flat, half, x0, x1, ctx.sizes, save)
        if save:
            ctx.save_for_backward(flat, half, x0, x1, h1, h2)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters and of the second input."""
        flat, half, x0, x1, h1, h2 = ctx.saved_tensors
        for_weights, _, for_x0, for_x1, _ = ctx.needs_input_grad
        assert not for_x0, "the first input takes no gradient"
        dout = dout.contiguous()
        dz1, dz2, dx1 = OPS.mlp_backward_rows(
            flat, half, h1, h2, dout, ctx.sizes, for_weights, for_x1
        )
        grad = None
        if for_weights:
            shares = OPS.mlp_backward_weights(x0, x1, h1, h2, dout, dz1, dz2, ctx.sizes)
            grad = shares.sum(0)
        return grad, None, None, dx1.sum(0) if for_x1 else None, None


def fused_mlp(
    flat: Tensor,
    hidden: int,
    out: int,
    x0: Tensor,
    x1: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Networks of two layers of `hidden` ReLU units, on x0 and x1 side by side: [nets, rows, out].

    Of the inputs only x1 gets a gradient.
    """
    num_rows, size0 = x0.shape
    size1 = 0 if x1 is None else x1.shape[1]
    one = Form(size0, size1, hidden, out, 1, num_rows)
    form = replace(one, nets=flat.numel() // one.num_params)
    half = flat.detach().to(dtype)
    result: Tensor = FusedMLP.apply(flat, half, x0, x1, form)  # type: ignore[no-untyped-call]
    return result
