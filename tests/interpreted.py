"""Compares the fused GPU kernels with plain PyTorch, on a CPU in Triton's interpreter.

Runs as a program, because TRITON_INTERPRET must be set before the kernels are imported.
"""

from __future__ import annotations

import functools
import json
import sys

import torch

from spreeze.networks import Arithmetic, init_uniform, mlp, mlp_shapes


def gradients(
    form: dict[str, int], arithmetic: Arithmetic | None, device: str, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Outputs and gradients of one network on random rows; `arithmetic` None means the fused kernels in `dtype`."""
    from spreeze.networks.fused import fused_mlp

    rows, size0, size1, hidden, out = (form[k] for k in ("rows", "size0", "size1", "hidden", "out"))
    generator = torch.Generator().manual_seed(0)
    shapes = mlp_shapes([size0 + size1, hidden, hidden, out], ensemble=form["nets"])
    flat = init_uniform(shapes, generator).to(device)
    # As in a replay, observations are columns of a wider matrix.
    x0 = torch.randn(rows, size0 + 5, generator=generator).to(device)[:, 2 : 2 + size0]
    x1 = torch.randn(rows, size1, generator=generator).to(device) if size1 else None
    dout = torch.randn(form["nets"], rows, out, generator=generator).to(device)
    leaves = [flat.requires_grad_(form["weights"] == 1)]
    if x1 is not None:
        leaves.append(x1.requires_grad_())
    if arithmetic is None:
        result = fused_mlp(flat, hidden, out, x0, x1, dtype)
    else:
        result = mlp(shapes, flat, arithmetic, *([x0] if x1 is None else [x0, x1]))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [result.detach(), *torch.autograd.grad(result, wanted, dout)]


def distances(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[float]:
    """Relative distance of each tensor from the expected one."""
    pairs = zip(found, expected, strict=True)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def fused_sac_update() -> float:
    """The relative distance of a SAC update with fused kernels from the plain one, of the worst state vector."""
    from spreeze.algos.sac import SACConfig, build
    from spreeze.bench import HALF_CHEETAH
    from spreeze.learning.state import init_state
    from spreeze.learning.update import update
    from spreeze.networks import fused
    from spreeze.rows import Batch

    # In float32, so that only the kernels differ, not the rounding.
    fused.fused_mlp = functools.partial(fused.fused_mlp, dtype=torch.float32)  # type: ignore[assignment]
    draw = torch.randn(48, 17 + 6 + 1 + 1 + 17, generator=torch.Generator().manual_seed(1))
    none = draw[:, :0]
    parts = (draw[:, :17], draw[:, 17:23].tanh(), draw[:, 23], draw[:, 24].abs(), draw[:, 25:])
    batch = Batch(*parts, none, none, none, torch.ones(48), torch.zeros(48))
    noise = torch.randn(2, 48, 6)
    states = []
    for arithmetic in ("fused_bf16", "float32"):
        algorithm = build(SACConfig(hidden=(64, 64)), HALF_CHEETAH, arithmetic)
        state = init_state(algorithm, 0, torch.device("cpu"))
        with torch.no_grad():
            state, _ = update(algorithm, state, batch, noise, torch.tensor(0.01), torch.tensor(0.1))
        states.append(state)
    ours, plain = states
    return max(distances(list(ours.values()), list(plain.values())))


if __name__ == "__main__":
    exact = [
        distances(
            gradients(form, None, "cpu", torch.float32),
            gradients(form, "float32", "cpu", torch.float32),
        )
        for form in json.loads(sys.argv[1])
    ]
    print(json.dumps({"networks": exact, "sac": fused_sac_update()}))
