"""The fused kernels compute what plain PyTorch computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from interpreted import distances, gradients
from spreeze.networks.layers import FUSED_WIDTHS

NAMES = ("rows", "size0", "size1", "hidden", "out", "nets", "weights")
FORMS = [
    dict(zip(NAMES, numbers, strict=True))
    for numbers in (
        (40, 17, 6, 64, 1, 2, 1),  # twin critics
        (40, 17, 0, 64, 12, 1, 1),  # an actor
        (100, 17, 6, 128, 1, 2, 1),  # the last block of rows is not full
        (70, 105, 40, 64, 3, 3, 1),  # many inputs
        (33, 5, 6, 64, 1, 2, 0),  # only the gradient of the action
        (16, 4, 2, 256, 4, 1, 1),
    )
]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_every_width_of_the_kernels_is_compared() -> None:
    assert {form["hidden"] for form in FORMS} == set(FUSED_WIDTHS)


@needs_triton
def test_in_float32_the_kernels_compute_the_plain_network_and_a_plain_update() -> None:
    program = Path(__file__).parents[2] / "interpreted.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", program, json.dumps(FORMS)],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for form, far in zip(FORMS, found["networks"], strict=True):
        assert max(far) < 1e-6, form
    assert found["sac"] < 1e-4


@needs_gpu
@pytest.mark.parametrize("rows", [64, 1000, 8192])
@pytest.mark.parametrize("size0", [17, 105])
@pytest.mark.parametrize(("size1", "out", "nets"), [(6, 1, 2), (0, 12, 1)])
def test_on_a_gpu_the_kernels_are_as_close_to_float32_as_the_plain_bfloat16_network(
    rows: int, size0: int, size1: int, out: int, nets: int
) -> None:
    torch.set_float32_matmul_precision("highest")
    numbers = (rows, size0, size1, 256, out, nets, 1)
    form = dict(zip(NAMES, numbers, strict=True))
    exact = gradients(form, "float32", "cuda", torch.float32)
    plain = distances(gradients(form, "bf16", "cuda", torch.float32), exact)
    fused = distances(gradients(form, None, "cuda", torch.bfloat16), exact)
    assert all(ours <= 1.5 * theirs + 1e-3 for ours, theirs in zip(fused, plain, strict=True))
    assert fused[0] < 0.01  # values: the last layer is not rounded
