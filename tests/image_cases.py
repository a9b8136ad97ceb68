"""Algorithms and policies that see random images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spreeze.algos import build_algorithm
from spreeze.algos.base import Algorithm
from spreeze.images import image_of
from spreeze.learning.replay import Replay
from spreeze.learning.state import TrainingState, init_state, policy_vector
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.policy import Policy, make_policy
from spreeze.rows import row_layout
from spreeze.spec import EnvSpec, ObsPart, pack_frame

CPU = torch.device("cpu")


def spec_with(*shapes: tuple[int, ...], numbers: int = 0, stack: int = 3) -> EnvSpec:
    images = tuple(image_of((f"eye{i}",), shape) for i, shape in enumerate(shapes))
    parts = (ObsPart(path=("arm",), shape=(numbers,)),) if numbers else ()
    size = sum(int(np.prod(shape)) for shape in shapes) + numbers
    return EnvSpec(
        id="Seen-v0",
        obs_shape=(size,),
        action_shape=(2,),
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        images=images,  # type: ignore[arg-type]
        obs_parts=parts,
        stack=stack,
    )


def random_obs(spec: EnvSpec, rng: np.random.Generator, num: int) -> dict[str, Any]:
    obs = {
        str(image.path[0]): rng.integers(0, 256, (num, *image.shape)).astype(np.uint8)
        for image in spec.images
    }
    return obs | {
        str(part.path[0]): rng.normal(size=(num, *part.shape)).astype(np.float32)
        for part in spec.obs_parts
    }


def trained(spec: EnvSpec, algo: str = "sac", **knobs: Any) -> tuple[Any, Any, Policy]:
    """An algorithm with fresh networks, and its policy in numpy."""
    known = {"hidden": (32,), "lr": 1e-3, "encoder": "small"}
    if algo != "ppo":
        known |= {"tau": 0.01, "n_step": 1, "shift": 2}
    algorithm = build_algorithm(algo, known | knobs, spec, "float32")
    state = init_state(algorithm, 0, CPU)
    policy = make_policy(spec, algorithm.config.policy_form(spec))
    policy.vector[:] = policy_vector(algorithm, state).numpy()
    return algorithm, state, policy


def updater_of(algorithm: Algorithm, state: TrainingState, batch_size: int = 4) -> Updater:
    """It updates `state` from four films of random pictures."""
    spec, config = algorithm.spec, algorithm.config
    layout, device = row_layout(spec, config.row_format()), state["critic"].device
    rows = np.zeros(4, layout.dtype)
    rng = np.random.default_rng(0)
    assert layout.film is not None
    num = 4 * layout.film.capacity
    frames = pack_frame(spec.images, spec.obs_parts, random_obs(spec, rng, num), num)
    rows["frames"].view(np.uint8)[:] = frames.reshape(4, -1)
    rows["reward"] = rng.normal(size=rows["reward"].shape)
    rows["next_obs"] = 1
    replay = Replay(layout, 4, device)
    replay.insert(rows)
    chunk = config.critic_updates()
    return Updater(UpdateSetup(algorithm, replay, state, batch_size, (1e-3, 0.01), chunk))
