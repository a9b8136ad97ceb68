"""Compares the fused form of an update with the plain one."""

from __future__ import annotations

from pathlib import Path

import torch

from spreeze.learning.fusion.fuse import fuse, load_fused
from spreeze.learning.updater import Updater

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ROUNDING = {"cpu": 2e-3, "cuda": 2e-2}
"""How far the change that a round makes to a vector may be off, as a fraction of its norm. Adam's first steps
are the sign of the gradient, so rounding decides about entries whose gradient is close to zero."""


def compare_with_plain(made: Updater, batch_size: int, tmp_path: Path) -> None:
    """The fused form of an update changes every vector as the plain one does, and can be run."""
    device = made.device.type
    fuse(made.plain, made.inputs(batch_size), made.device, tmp_path / "update")
    step = load_fused(tmp_path / "update", made.device)
    for _ in range(4):  # other rows, noise and networks than those of the recording
        made.run()
        inputs = made.inputs(batch_size)
        with torch.no_grad():
            right, ours = made.plain(*inputs), step(*inputs)
        before = dict(zip(made.plain.output_names, inputs[-len(made.plain.names) :], strict=False))
        for place, vector in enumerate(made.plain.output_names):
            change = right[place].float() - before.get(vector, torch.zeros(())).float()
            off = float((ours[place].float() - right[place].float()).norm())
            assert off <= ROUNDING[device] * float(change.norm()) + 1e-6, vector
    made.install_compiled(batch_size, step)
    before = made.state["critic"].clone()
    made.run()  # on a GPU as a CUDA graph
    assert not torch.equal(made.state["critic"], before)
