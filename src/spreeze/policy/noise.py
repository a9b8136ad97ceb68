"""Exploration noise that lasts: it pushes in one direction for many steps."""

from __future__ import annotations

from typing import Literal

import numpy as np

from spreeze.spec import Floats

LastingNoise = Literal["flat", "always", "never"]
"""When exploration noise lasts: while returns are flat, always or never."""
NOISE_BLOCK, COLOUR_BLOCK = 64, 1024
"""Steps of white and of coloured noise drawn at once: one draw per step would cost more than the numbers
in it, and coloured noise changes no slower than its block."""


def coloured_noise(shape: tuple[int, ...], colour: float, rng: np.random.Generator) -> Floats:
    """Normal noise [step, ...] of variance 1 whose power falls with frequency to the power of `colour`.

    0 is white: fresh in every step. 1 is pink: it also pushes in one direction for a while, on all time
    scales up to the number of steps. Eberhard et al. 2023, "Pink Noise Is All You Need".
    """
    steps, series = shape[0], int(np.prod(shape[1:]))
    frequency = np.maximum(np.fft.rfftfreq(steps), 1 / steps)
    amplitude = frequency ** (-colour / 2)
    # Steps are even, so the first and the last frequency are real; the others count twice.
    power = 2 * np.square(amplitude).sum() - amplitude[0] ** 2 - amplitude[-1] ** 2
    amplitude *= steps / np.sqrt(power)
    real, imaginary = rng.standard_normal((2, series, len(amplitude)), np.float32)
    waves = (real + 1j * imaginary) * (amplitude * np.sqrt(0.5)).astype(np.float32)
    waves[:, [0, -1]] = real[:, [0, -1]] * amplitude[[0, -1]]
    noise = np.fft.irfft(waves, steps, axis=1)
    return np.ascontiguousarray(noise.T.reshape(shape), np.float32)
