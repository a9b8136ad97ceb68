"""Fused updates of networks that read images give the numbers of the plain ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fused import DEVICES, compare_with_plain
from image_cases import spec_with, trained, updater_of
from spreeze.learning.state import named
from spreeze.machine.facts import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
DISCRETE = {"num_actions": 3, "action_shape": (), "action_low": (), "action_high": ()}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of a GPU are rounded to fewer digits otherwise, not always in the same way."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def compare(spec: Any, algo: str, device: str, tmp_path: Path, **knobs: Any) -> None:
    algorithm, state, _ = trained(spec, algo, **knobs)
    moved: Any = {name: vector.to(device) for name, vector in named(state).items()}
    compare_with_plain(updater_of(algorithm, moved, 16), 16, tmp_path)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norm", ["none", "layer", "spectral"])
@pytest.mark.parametrize(("kind", "shape"), [("impala", (20, 18, 3)), ("nature", (2, 40, 40))])
def test_every_encoder_is_fused(
    kind: Any, shape: Any, norm: Any, device: str, tmp_path: Path
) -> None:
    spec = replace(spec_with(shape, stack=2), **DISCRETE)
    compare(spec, "dqn", device, tmp_path, encoder=kind, encoder_norm=norm)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_several_images_beside_numbers_are_fused(algo: str, device: str, tmp_path: Path) -> None:
    compare(spec_with((9, 8), (3, 10, 8), numbers=5), algo, device, tmp_path)
