"""Encoders of images in numpy: convolutions as products of matrices, with the channels last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from spreeze.images import (
    NORM_EPS,
    POWER_STEPS,
    Bytes,
    Conv,
    Encoder,
    Image,
    MaxPool,
    Relu,
    Residual,
    Step,
)
from spreeze.spec import Floats

AT_ONCE = 8
"""Observations whose convolutions are computed together: more do not fit in a core's cache."""


def encode(encoder: Encoder, image: Image, parameters: Sequence[Floats], pixels: Bytes) -> Floats:
    """The features [B, size] of the pixels [B, stack, size] of an image."""
    x, steps = _channels_last(pixels, image), encoder.steps()
    parts = [
        _run(encoder, steps, iter(parameters), x[i : i + AT_ONCE])
        for i in range(0, len(x), AT_ONCE)
    ]
    # In the order of torch: channels first.
    return np.concatenate([part.transpose(0, 3, 1, 2).reshape(len(part), -1) for part in parts])


def _channels_last(pixels: Bytes, image: Image) -> Bytes:
    """The pixels of a stack as [B, height, width, channels]: all those of the oldest frame first."""
    height, width = image.sides
    if image.channels_first or len(image.shape) == 2:
        return pixels.reshape(len(pixels), -1, height, width).transpose(0, 2, 3, 1)
    x = pixels.reshape(*pixels.shape[:2], *image.shape).transpose(0, 2, 3, 1, 4)
    return x.reshape(len(pixels), height, width, -1)


def _run(
    encoder: Encoder, steps: Sequence[Step], parameters: Iterator[Floats], x: NDArray[Any]
) -> Floats:
    for step in steps:
        if isinstance(step, Conv):
            kernel, bias = next(parameters), next(parameters)
            if encoder.norm == "spectral":
                kernel = kernel / largest_singular_value(kernel.reshape(len(kernel), -1))
            x = _convolve(x, kernel, bias, step)
            if encoder.norm == "layer":
                x -= x.mean((1, 2, 3), keepdims=True)
                x /= np.sqrt(np.square(x).mean((1, 2, 3), keepdims=True) + np.float32(NORM_EPS))
        elif isinstance(step, Relu):
            x = np.maximum(x, np.float32(0))
        elif isinstance(step, MaxPool):
            x = _pool(x)
        elif isinstance(step, Residual):
            x = x + _run(encoder, step.steps, parameters, x)
    return x


def _convolve(x: NDArray[Any], kernel: Floats, bias: Floats, conv: Conv) -> Floats:
    scale = np.float32(1)
    if x.dtype == np.uint8:  # pixels: bytes are copied faster, and scaled with the kernel
        scale = np.float32(1 / 255)
    if conv.padding:
        sides = (conv.padding, conv.padding)
        x = np.pad(x, ((0, 0), sides, sides, (0, 0)))
    windows = sliding_window_view(x, (conv.kernel, conv.kernel), axis=(1, 2))
    windows = windows[:, :: conv.stride, :: conv.stride]  # [B, height, width, channels, k, k]
    shape = windows.shape[:3]
    # In the order in which they lie in memory, so that each copy is of many bytes.
    columns = windows.transpose(0, 1, 2, 4, 5, 3).reshape(np.prod(shape), -1).astype(np.float32)
    weight = kernel.transpose(2, 3, 1, 0).reshape(-1, conv.channels) * scale
    out: Floats = columns @ weight
    out += bias
    return out.reshape(*shape, conv.channels)


def _pool(x: NDArray[Any]) -> Floats:
    """The largest of 3 x 3 neighbours, at every second place; nothing is larger outside."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = sliding_window_view(padded, (3, 3), axis=(1, 2))
    largest: Floats = windows[:, ::2, ::2].max((4, 5))
    return largest


def largest_singular_value(matrix: Floats) -> np.float32:
    """Of a matrix, nearly: the same power iteration as in training."""
    left: Floats = np.ones(len(matrix), np.float32)
    right = left
    for _ in range(POWER_STEPS):
        right = _unit(matrix.T @ left)
        left = _unit(matrix @ right)
    return np.float32(left @ (matrix @ right))


def _unit(vector: Floats) -> Floats:
    unit: Floats = vector / max(np.linalg.norm(vector), np.float32(1e-12))
    return unit
