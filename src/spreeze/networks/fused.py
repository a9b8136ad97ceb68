"""The fused kernels as one differentiable function, and the block sizes that they are launched with.

`networks.mlp` in bf16 computes the same function in plain PyTorch; the tests compare the two.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spreeze.networks import kernels

SMALL_BATCH = 4096
"""Batches up to this size are cut into small blocks of rows, so that every processor of the GPU gets some."""
STEP = 64
"""Rows that a weight gradient reads at a time."""
DEEP_PIPELINE_BYTES = 160 << 10
"""Shared memory per block that a three-stage pipeline needs; desktop GPUs have 99 KB."""
TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
"""Types of the hidden layers; float32 is for tests in Triton's interpreter, on a CPU."""


def _pad(size: int) -> int:
    """Round up to a size that a matrix unit accepts: a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _shared_memory(tensor: Tensor) -> int:
    """Bytes of shared memory that a block may use on the tensor's GPU; 0 on a CPU."""
    if not tensor.is_cuda:
        return 0
    properties: Any = torch.cuda.get_device_properties(tensor.device)
    return int(properties.shared_memory_per_block_optin)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network and its batch, which decide the shapes of all tensors and blocks."""

    size0: int
    size1: int
    hidden: int
    out: int
    nets: int
    num_rows: int

    @property
    def num_params(self) -> int:
        """Length of the flat vector."""
        h, inputs = self.hidden, self.size0 + self.size1
        return self.nets * (inputs * h + h + h * h + h + h * self.out + self.out)

    @property
    def constants(self) -> dict[str, int]:
        """Compile-time constants that all kernels take."""
        return {
            "SIZE0": self.size0,
            "SIZE1": self.size1,
            "H": self.hidden,
            "OUT": self.out,
            "OUT_PAD": _pad(self.out),
            "NETS": self.nets,
        }

    @property
    def small_batch(self) -> bool:
        """Whether blocks must be small to keep the whole GPU busy."""
        return self.num_rows <= SMALL_BATCH

    def launch(
        self, columns: int, stages: int, like: Tensor
    ) -> tuple[tuple[int, int], dict[str, int]]:
        """Grid and block sizes of a kernel over rows, found by an exhaustive search on a GPU."""
        rows = 16 if self.small_batch else 64
        columns = min(self.hidden, 128 if self.small_batch else columns)
        stages = stages if _shared_memory(like) >= DEEP_PIPELINE_BYTES else 2
        sizes = {"ROWS": rows, "COLS": columns, "num_warps": 4, "num_stages": stages}
        return (triton.cdiv(self.num_rows, rows), self.nets), sizes

    @property
    def tile(self) -> int:
        """Lines and columns of a weight gradient that one block sums."""
        return 32 if self.small_batch else min(self.hidden, 128)

    @property
    def num_shares(self) -> int:
        """Parts of the batch whose weight gradients are summed separately."""
        return min(16, max(1, self.num_rows // (128 if self.small_batch else 512)))

    def hidden_buffer(self, like: Tensor, wanted: bool) -> Tensor:
        """An uninitialised tensor with a number per row and hidden unit; without rows if not wanted."""
        return like.new_empty(self.nets, self.num_rows if wanted else 0, self.hidden)


# The `_empty_*` functions allocate an operator's results; as its fake implementation they tell a compiler
# their shapes.
def _empty_forward(
    flat: Tensor, rounded: Tensor, x0: Tensor, x1: Tensor | None, sizes: list[int], save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    net = Sizes(*sizes)
    out = flat.new_empty(net.nets, net.num_rows, net.out)
    return out, net.hidden_buffer(rounded, save), net.hidden_buffer(rounded, save)


def _forward(
    flat: Tensor, rounded: Tensor, x0: Tensor, x1: Tensor | None, sizes: list[int], save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [nets, rows, out]; with `save`, also the hidden units of both layers."""
    net = Sizes(*sizes)
    out, h1, h2 = _empty_forward(flat, rounded, x0, x1, sizes, save)
    second = x0 if x1 is None else x1
    grid, blocks = net.launch(64, 2, flat)
    kernels.forward[grid](
        flat, rounded, x0, second, out, h1, h2, net.num_rows, x0.stride(0), second.stride(0),
        **net.constants, PAD0=_pad(net.size0), PAD1=_pad(net.size1),
        SAVE=save, TYPE=TYPES[rounded.dtype], **blocks,
    )  # fmt: skip
    return out, h1, h2


def _empty_backward_rows(
    flat: Tensor, rounded: Tensor, h1: Tensor, h2: Tensor, dout: Tensor,
    sizes: list[int], for_weights: bool, for_x1: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    net = Sizes(*sizes)
    dx1 = flat.new_empty(net.nets, net.num_rows if for_x1 else 0, net.size1)
    return net.hidden_buffer(rounded, for_weights), net.hidden_buffer(rounded, for_weights), dx1


def _backward_rows(
    flat: Tensor, rounded: Tensor, h1: Tensor, h2: Tensor, dout: Tensor,
    sizes: list[int], for_weights: bool, for_x1: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of both layers' pre-activations and of the second input, as requested."""
    net = Sizes(*sizes)
    grads = _empty_backward_rows(flat, rounded, h1, h2, dout, sizes, for_weights, for_x1)
    grid, blocks = net.launch(32 if for_x1 else 64, 3, flat)
    kernels.backward_rows[grid](
        flat, rounded, h1, h2, dout, *grads, net.num_rows,
        **net.constants, PAD1=_pad(net.size1),
        FOR_WEIGHTS=for_weights, FOR_X1=for_x1, TYPE=TYPES[rounded.dtype], **blocks,
    )  # fmt: skip
    return grads


def _empty_backward_weights(
    x0: Tensor, x1: Tensor | None, h1: Tensor, h2: Tensor, dout: Tensor, dz1: Tensor, dz2: Tensor,
    sizes: list[int],
) -> Tensor:  # fmt: skip
    net = Sizes(*sizes)
    return dout.new_empty(net.num_shares, net.num_params)


def _backward_weights(
    x0: Tensor, x1: Tensor | None, h1: Tensor, h2: Tensor, dout: Tensor, dz1: Tensor, dz2: Tensor,
    sizes: list[int],
) -> Tensor:  # fmt: skip
    """Gradients of all parameters for each share of the batch: [shares, parameters]."""
    net = Sizes(*sizes)
    shares = _empty_backward_weights(x0, x1, h1, h2, dout, dz1, dz2, sizes)
    second = x0 if x1 is None else x1
    across = net.hidden // net.tile
    inputs = 1 if net.size1 == 0 else 2
    jobs = across * (across + inputs + 3) + 1
    kernels.backward_weights[(jobs, net.nets, net.num_shares)](
        x0, second, h1, h2, dout, dz1, dz2, shares,
        net.num_rows, net.num_params, x0.stride(0), second.stride(0),
        **net.constants, PAD0=_pad(net.size0), PAD1=_pad(net.size1), TILE=net.tile,
        SHARE=triton.cdiv(net.num_rows, net.num_shares * STEP) * STEP, STEP=STEP,
        TYPE=TYPES[h1.dtype], num_warps=4, num_stages=3,
    )  # fmt: skip
    return shares


# Registered as operators, so that torch.compile calls them as they are. The `torch.library.custom_op`
# decorator would import the whole compiler, which takes seconds.
LIBRARY = torch.library.Library("spreeze", "DEF")  # type: ignore[no-untyped-call]
for schema, operator, fake in (
    (
        "mlp_forward(Tensor flat, Tensor rounded, Tensor x0, Tensor? x1, int[] sizes, bool save)"
        " -> (Tensor, Tensor, Tensor)",
        _forward,
        _empty_forward,
    ),
    (
        "mlp_backward_rows(Tensor flat, Tensor rounded, Tensor h1, Tensor h2, Tensor dout, "
        "int[] sizes, bool for_weights, bool for_x1) -> (Tensor, Tensor, Tensor)",
        _backward_rows,
        _empty_backward_rows,
    ),
    (
        "mlp_backward_weights(Tensor x0, Tensor? x1, Tensor h1, Tensor h2, Tensor dout, Tensor dz1, "
        "Tensor dz2, int[] sizes) -> Tensor",
        _backward_weights,
        _empty_backward_weights,
    ),
):
    name = LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, operator, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"spreeze::{name}", fake, lib=LIBRARY)
OPS = torch.ops.spreeze


class FusedMLP(torch.autograd.Function):
    """The three kernels as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, rounded: Tensor, x0: Tensor, x1: Tensor | None, sizes: Sizes
    ) -> Tensor:
        """Outputs [nets, rows, out]."""
        save = any(ctx.needs_input_grad)
        ctx.size_list = list(astuple(sizes))
        out, h1, h2 = OPS.mlp_forward(flat, rounded, x0, x1, ctx.size_list, save)
        if save:
            ctx.save_for_backward(flat, rounded, x0, x1, h1, h2)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters and of the second input."""
        flat, rounded, x0, x1, h1, h2 = ctx.saved_tensors
        for_weights, _, for_x0, for_x1, _ = ctx.needs_input_grad
        assert not for_x0, "the first input has no gradient"
        dout = dout.contiguous()
        dz1, dz2, dx1 = OPS.mlp_backward_rows(
            flat, rounded, h1, h2, dout, ctx.size_list, for_weights, for_x1
        )
        grad = None
        if for_weights:
            shares = OPS.mlp_backward_weights(x0, x1, h1, h2, dout, dz1, dz2, ctx.size_list)
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
    """Networks with two ReLU layers of `hidden` units on the concatenation of x0 and x1: [nets, rows, out].

    Only x1 and the parameters get gradients.
    """
    num_rows, size0 = x0.shape
    size1 = 0 if x1 is None else x1.shape[1]
    one = Sizes(size0, size1, hidden, out, 1, num_rows)
    sizes = replace(one, nets=flat.numel() // one.num_params)
    rounded = flat.detach().to(dtype)
    result: Tensor = FusedMLP.apply(flat, rounded, x0, x1, sizes)  # type: ignore[no-untyped-call]
    return result
