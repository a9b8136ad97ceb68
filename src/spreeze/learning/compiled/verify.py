"""Whether a compiled update computes what the plain one does."""

from __future__ import annotations

import torch
from torch import Tensor

from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.update import StepFunction, UpdateStep
from spreeze.learning.updater import Updater

CLOSE, ROUGH = 1e-2, 3.0
"""How far a compiled update may be from the exact one: this share of each vector's length, and this
multiple of the plain one's own distance from it, as both may compute in bfloat16."""

GROSS = 0.5
"""The share where the one row of a hollow replay is the whole batch: there errors do not average out."""


def find_mismatch(
    key: CompileKey, updater: Updater, step: StepFunction, close: float = CLOSE
) -> str | None:
    """What is wrong with one update by `step`, compared with the plain one and an exact one."""
    inputs = updater.inputs(updater.batch_size)
    exact = UpdateStep(key.algorithm("float32"), updater.layout, updater.part)
    with torch.no_grad():
        results = zip(exact(*inputs), updater.plain(*inputs), step(*inputs), strict=True)
        names = (*updater.plain.names, "metrics", *updater.plain.extras)
        for name, (right, plain, ours) in zip(names, results, strict=True):
            off, usual = _distance(ours, right), _distance(plain, right)
            length = float(right.float().norm())
            if not off <= close * length + ROUGH * usual + 1e-6:
                return f"{name} of length {length:.3g} is off by {off:.3g}, plain by {usual:.3g}"
    return None


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).float().norm())
