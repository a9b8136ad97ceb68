"""Compares the GPU kernels with the plain network; on a CPU, Triton's interpreter runs them.

Run as a program: the interpreter must be asked for before the kernels are imported.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from spreeze.networks import Arithmetic, Shapes, init_uniform, mlp, mlp_shapes


def gradients(
    form: dict[str, int], arithmetic: Arithmetic | None, device: str, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Outputs and gradients of one network on random rows; the fused kernels if there is no arithmetic."""
    from spreeze.networks.fused import fused_mlp

    rows, size0, size1, hidden, out = (form[k] for k in ("rows", "size0", "size1", "hidden", "out"))
    generator = torch.Generator().manual_seed(0)
    shapes = mlp_shapes([size0 + size1, hidden, hidden, out], ensemble=form["nets"])
    flat = init_uniform(shapes, generator).to(device)
    # As in a replay: observations are columns of a wider record.
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
    """Relative distance of each tensor from what is expected."""
    pairs = zip(found, expected, strict=True)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def fused_sac_update() -> float:
    """How far one SAC update with the fused kernels is from the plain one, in the worst vector."""
    from spreeze.algos.sac import SACConfig, build
    from spreeze.bench import HALF_CHEETAH
    from spreeze.learning.update import init_state, update
    from spreeze.networks import fused, layers
    from spreeze.rows import Batch

    original: Any = fused.fused_mlp

    def exact(shapes: Shapes, flat: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        out = original(flat, 64, shapes.items[-2][1][-1], *inputs, dtype=torch.float32)
        return out if len(shapes.items[0][1]) == 3 else out.squeeze(0)

    layers._fused = exact  # type: ignore[assignment]
    draw = torch.randn(48, 17 + 6 + 1 + 1 + 17, generator=torch.Generator().manual_seed(1))
    none = draw[:, :0]
    parts = (draw[:, :17], draw[:, 17:23].tanh(), draw[:, 23], draw[:, 24].abs(), draw[:, 25:])
    batch = Batch(*parts, none, none, none, torch.ones(48))
    noise = torch.randn(2, 48, 6)
    states = []
    for arithmetic in ("fused", "float32"):
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
