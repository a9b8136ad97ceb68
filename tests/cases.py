"""Every registered algorithm with each action space that it takes, as a small network on random rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from spreeze.algos import ALGORITHMS
from spreeze.algos.base import Algorithm
from spreeze.learning.minibatch import draw, gather
from spreeze.learning.replay import Replay
from spreeze.rows import Batch, Layout, Rows, as_matrix, row_layout
from spreeze.spec import EnvSpec

BOX = EnvSpec(
    id="x", obs_shape=(4,), action_shape=(2,), action_low=(-1.0, -1.0), action_high=(1.0, 1.0)
)
DISCRETE = EnvSpec(
    id="y", obs_shape=(4,), action_shape=(), action_low=(), action_high=(), num_actions=3
)
SPECS = {"Box": BOX, "Discrete": DISCRETE}
CASES = [(name, kind) for name, entry in ALGORITHMS.items() for kind in entry.actions]
CPU = torch.device("cpu")


def built(name: str, kind: str, **knobs: Any) -> Algorithm:
    """The algorithm with one small hidden layer per network."""
    config = ALGORITHMS[name].config(**{"hidden": (16,), "lr": 1e-3, **knobs})
    if hasattr(config, "tau"):
        config = dataclasses.replace(config, tau=0.01)
    return ALGORITHMS[name].build(config, SPECS[kind])


def layout_of(algorithm: Algorithm) -> Layout:
    return row_layout(algorithm.spec, algorithm.config.row_format())


def random_rows(algorithm: Algorithm, num: int, seed: int = 0) -> Rows:
    """Random rows that a sampler could have written."""
    rng, layout = np.random.default_rng(seed), layout_of(algorithm)
    rows = np.zeros(num, layout.dtype)
    as_matrix(rows)[:] = rng.normal(size=(num, layout.width))
    shape = rows["reward"].shape
    rows["discount"] = 0.99 * (rng.random(shape) > 0.1)
    if "ended" in layout.columns():
        rows["ended"] = rng.random(shape) < 0.2
        rows["log_prob"] = -1 + 0.1 * rng.normal(size=shape)
    if algorithm.spec.num_actions is None:
        rows["action"] = np.tanh(rows["action"])
    else:
        rows["action"] = rng.integers(algorithm.spec.num_actions, size=rows["action"].shape)
    rows["version"] = 1
    return rows


def filled_replay(algorithm: Algorithm, num: int, device: torch.device = CPU) -> Replay:
    replay = Replay(layout_of(algorithm), num, device)
    replay.insert(random_rows(algorithm, num))
    return replay


def random_batch(algorithm: Algorithm, num: int, seed: int = 0) -> Batch:
    """A random batch, as an update receives it."""
    data = torch.from_numpy(as_matrix(random_rows(algorithm, num, seed)).copy())
    uniform = (torch.arange(num) + 0.5) / num
    steps = algorithm.config.row_format().segment
    return gather(data, draw(data, torch.tensor([0, num]), uniform), layout_of(algorithm), steps)
