"""Encoders of images as pure functions of the first part of a network's flat vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from spreeze.images import (
    NORM_EPS,
    POWER_STEPS,
    Conv,
    Encoder,
    FrameLayout,
    Image,
    MaxPool,
    Relu,
    Residual,
    Step,
    encoder_parameters,
)
from spreeze.networks.layers import (
    Arithmetic,
    Network,
    Shapes,
)
from spreeze.spec import EnvSpec


def image_network(
    spec: EnvSpec, encoder: Encoder, dense: Network, arithmetic: Arithmetic
) -> Network:
    """A network (flat, obs, *others): `dense` behind an encoder of the images, which all members of an ensemble share.

    `dense` takes the features of the images and the other numbers of the observations.
    """
    convolutions = Shapes(tuple(encoder_parameters(encoder, spec.images, spec.stack).items()))
    encode = partial(_encode, spec, encoder, convolutions, arithmetic)

    def forward(flat: Tensor, obs: Tensor, *others: Tensor) -> Tensor:
        first, rest = torch.split(flat, [convolutions.size, dense.shapes.size])
        return dense(rest, encode(first, obs), *others)

    def initial(generator: torch.Generator) -> Tensor:
        return torch.cat([_init(convolutions, generator), dense.init(generator)])

    return Network(Shapes((*convolutions.items, *dense.shapes.items)), forward, initial)


def _init(shapes: Shapes, generator: torch.Generator) -> Tensor:
    """Kernels and biases uniform in +-1/sqrt(fan in), the default of `torch.nn.Conv2d`."""
    parts, bound = [], 1.0
    for _, shape in shapes.items:
        if len(shape) > 1:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        parts.append((torch.rand(math.prod(shape), generator=generator) * 2 - 1) * bound)
    return torch.cat(parts)


def _encode(
    spec: EnvSpec,
    encoder: Encoder,
    shapes: Shapes,
    arithmetic: Arithmetic,
    flat: Tensor,
    obs: Tensor,
) -> Tensor:
    """The features of all images, then the other numbers of the observations [B, obs]."""
    frames, named = spec.frames, shapes.split(flat)
    pixels, numbers = obs.tensor_split([frames.stack * frames.image_bytes], -1)
    stacks, end, features = pixels.view(len(obs), frames.stack, -1), 0, []
    for i, image in enumerate(frames.images):
        x = as_channels(stacks[..., end : end + image.size], image)
        end += image.size
        parameters = [value for name, value in named.items() if name.startswith(f"image{i}.")]
        if arithmetic != "float32":
            x, parameters = x.bfloat16(), [value.bfloat16() for value in parameters]
        x = x.contiguous(memory_format=torch.channels_last)
        features.append(_run(encoder, encoder.steps(), iter(parameters), x).flatten(1).float())
    return torch.cat([*features, numbers], -1)


def read_stacks(stacks: Tensor, frames: FrameLayout) -> Tensor:
    """What networks read of stacks of frames [B, bytes]: the pixels from 0 to 1, then the other numbers."""
    size = 4 * frames.image_words
    images, numbers = stacks.tensor_split([frames.stack * size], 1)
    pixels = images.view(len(stacks), frames.stack, size)[:, :, : frames.image_bytes]
    seen = pixels.flatten(1).float() / 255
    if not frames.numbers:
        return seen
    return torch.cat([seen, numbers.contiguous().view(torch.float32)], 1)


def as_channels(pixels: Tensor, image: Image) -> Tensor:
    """The pixels [B, stack, size] of a stack of images as [B, channels, height, width]."""
    if image.channels_first or len(image.shape) == 2:
        return pixels.reshape(len(pixels), -1, *image.sides)
    x = pixels.reshape(*pixels.shape[:2], *image.shape)  # [B, stack, height, width, channels]
    return x.permute(0, 1, 4, 2, 3).flatten(1, 2)


def _run(
    encoder: Encoder, steps: Sequence[Step], parameters: Iterator[Tensor], x: Tensor
) -> Tensor:
    for step in steps:
        if isinstance(step, Conv):
            kernel, bias = next(parameters), next(parameters)
            if encoder.norm == "spectral":
                kernel = kernel / largest_singular_value(kernel.flatten(1)).to(kernel.dtype)
            x = _convolve(x, kernel, step) + bias[:, None, None]
            if encoder.norm == "layer":
                x = F.layer_norm(x, x.shape[1:], eps=NORM_EPS)
        elif isinstance(step, Relu):
            x = torch.relu(x)
        elif isinstance(step, MaxPool):
            x = F.max_pool2d(x, 3, 2, 1)
        elif isinstance(step, Residual):
            x = x + _run(encoder, step.steps, parameters, x)
    return x


def _convolve(x: Tensor, kernel: Tensor, conv: Conv) -> Tensor:
    """A convolution. Blocks of as many pixels as its stride become channels: devices multiply many channels faster."""
    stride, size = conv.stride, conv.kernel
    if stride == 1 or size % stride or conv.padding:
        return F.conv2d(x, kernel, None, stride, conv.padding)
    height, width = ((side - size) // stride * stride + size for side in x.shape[2:])
    return F.conv2d(_blocks(x[:, :, :height, :width], stride), _blocks(kernel, stride))


def _blocks(x: Tensor, side: int) -> Tensor:
    """Squares of `side` pixels as one pixel with all their channels, which are last in memory."""
    num, channels, height, width = x.shape
    parts = x.reshape(num, channels, height // side, side, width // side, side)
    parts = parts.permute(0, 2, 4, 3, 5, 1)
    return parts.reshape(num, height // side, width // side, -1).permute(0, 3, 1, 2)


def largest_singular_value(matrix: Tensor) -> Tensor:
    """Of a matrix, nearly: power iteration from the same start each time, so that it needs no state."""
    with torch.no_grad():
        rows = matrix.float()
        left = torch.ones(len(rows), device=matrix.device)
        for _ in range(POWER_STEPS):
            right = F.normalize(rows.T @ left, dim=0)
            left = F.normalize(rows @ right, dim=0)
    return left @ (matrix.float() @ right)
