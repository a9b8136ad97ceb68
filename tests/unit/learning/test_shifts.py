"""Images that are shifted at random in updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import cases
from fused import DEVICES, compare_with_plain
from image_cases import spec_with, trained, updater_of
from spreeze.learning.minibatch import shift_images
from spreeze.learning.state import named
from spreeze.learning.updater import Updater
from spreeze.machine.facts import compiler
from spreeze.spec import EnvSpec

MOST = 4


def cropped(spec: EnvSpec, obs: NDArray[Any], down: int, right: int) -> NDArray[Any]:
    """One observation: its images are padded by their edges, and cropped at a place that is not the middle."""
    parts, end = [], 0
    for _ in range(spec.stack):
        for image in spec.images:
            picture = obs[end : end + image.size].reshape(image.shape)
            end += image.size
            rows, columns = (1, 2) if image.channels_first else (0, 1)
            margins = [
                (MOST, MOST) if i in (rows, columns) else (0, 0) for i in range(picture.ndim)
            ]
            padded = np.pad(picture, margins, mode="edge")
            for axis, shift in ((rows, down), (columns, right)):
                start = MOST + shift
                padded = padded.take(range(start, start + picture.shape[axis]), axis)
            parts.append(padded.ravel())
    return np.concatenate([*parts, obs[end:]])


@pytest.mark.parametrize(
    "shapes", [[(9, 7)], [(9, 7, 3)], [(3, 9, 7)], [(1, 9, 7), (6, 8, 2)], [(3, 4)]]
)
@pytest.mark.parametrize("numbers", [0, 5])
def test_a_shifted_image_is_a_crop_of_one_with_repeated_edges(
    shapes: list[tuple[int, ...]], numbers: int
) -> None:
    spec = spec_with(*shapes, numbers=numbers, stack=3)
    batch = cases.random_batch(cases.built("sac", "Box"), 81)
    obs, next_obs = torch.randn(2, 81, spec.obs_size)
    batch = batch._replace(obs=obs, next_obs=next_obs)
    # Every shift, and another one for the next observation.
    shifts = np.stack(np.meshgrid(*[np.arange(-MOST, MOST + 1)] * 2), -1).reshape(81, 2)
    places = np.concatenate([shifts, shifts[::-1]], 1)
    uniform = (torch.from_numpy(places.T).float() + MOST + 0.5) / (2 * MOST + 1)
    found = shift_images(batch, spec.frames, MOST, list(uniform))
    for i in range(81):
        expected = cropped(spec, obs[i].numpy(), *shifts[i])
        np.testing.assert_array_equal(found.obs[i], expected)
        expected = cropped(spec, next_obs[i].numpy(), *shifts[80 - i])
        np.testing.assert_array_equal(found.next_obs[i], expected)


def test_every_shift_is_as_likely_and_none_is_larger() -> None:
    spec = spec_with((1, 11), stack=1)
    batch = cases.random_batch(cases.built("sac", "Box"), 900)
    positions = torch.arange(11.0).expand(900, 11)
    batch = batch._replace(obs=positions, next_obs=positions)
    uniform = (torch.arange(900) + 0.5) / 900
    found = shift_images(batch, spec.frames, 2, [uniform] * 4).obs[:, 5]
    assert torch.bincount(found.long()).tolist() == [0, 0, 0, 180, 180, 180, 180, 180]
    last = torch.full((900,), 1 - 2.0**-24)
    assert shift_images(batch, spec.frames, 2, [last] * 4).obs[0, 5] == 7


def updater(shift: int, algo: str = "sac", device: str = "cpu") -> Updater:
    torch.manual_seed(0)
    algorithm, state, _ = trained(spec_with((8, 8, 3), numbers=2), algo, shift=shift)
    moved = {name: vector.to(device) for name, vector in named(state).items()}
    return updater_of(algorithm, moved, 16)  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_updates_shift_images_and_repeat_bit_for_bit(algo: str) -> None:
    states = []
    for shift in (2, 2, 0):
        made = updater(shift, algo)
        for _ in range(3):
            made.run()
        states.append(named(made.state))
    first, again, still = states
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["critic"], still["critic"])
    assert not torch.equal(first["actor"], still["actor"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_our_compiler_takes_updates_with_shifts(device: str, tmp_path: Path) -> None:
    compare_with_plain(updater(2, device=device), 16, tmp_path)
