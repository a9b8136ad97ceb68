"""Exploration noise that is held for several steps."""

from __future__ import annotations

import numpy as np

from spreeze.spec import Floats

NOISE_BLOCK = 64
"""Steps of noise drawn at once: one draw per step would cost more than the numbers in it."""


def hold_noise(noise: Floats, longest: int, rng: np.random.Generator) -> Floats:
    """Noise [step, env, ...] in which each env repeats some draws for k steps, with P(k) ~ 1 / k^2.

    Longer holds are cut to `longest`. Persistent noise explores farther than fresh noise in every step.
    """
    steps, num_envs = noise.shape[:2]
    ends = np.minimum(rng.zipf(2.0, (steps, num_envs)), longest).cumsum(0)
    draw, env = np.nonzero(ends < steps)
    source = np.zeros((steps, num_envs), np.int64)
    source[ends[draw, env], env] = ends[draw, env]
    np.maximum.accumulate(source, out=source)
    held: Floats = np.take_along_axis(noise, source[..., None], 0)
    return held
