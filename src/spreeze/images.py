"""Images in observations: how a frame lies in memory, and the encoders that read it.

A frame is what an environment returns in one step, as bytes: its images, padded to whole words of four bytes, then
its other numbers as float32. Imports no torch, so that every package can import it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

EncoderKind = Literal["nature", "impala", "small"]
"""nature: the three convolutions of DQN (Mnih et al. 2015). impala: residual blocks (Espeholt et al. 2018).
small: two convolutions with small kernels, for images that the others would shrink to nothing."""
EncoderNorm = Literal["none", "layer", "spectral"]
"""layer: each convolution's output is normalised. spectral: each convolution's weights, by their largest singular
value."""
NATURE_SIDE = 36
"""The shortest side that the kernels of `nature` need."""
LARGE_SIDE = 128
"""Sides from here on cost far more than they usually bring."""
NORM_EPS = 1e-5
"""Added to the variance of a layer norm."""
POWER_STEPS = 8
"""Steps of the power iteration that finds the largest singular value of a kernel."""
MOST_CHANNELS = 32
"""An axis with more numbers than this is no axis of channels."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image of an observation."""

    path: tuple[str | int, ...]
    """Keys and positions that lead to it; empty if the observation is the image."""
    shape: tuple[int, ...]
    """As the environment returns it: (height, width), (height, width, channels) or (channels, height, width)."""
    channels_first: bool = False

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape)

    @property
    def channels(self) -> int:
        """1 for a grey image."""
        return 1 if len(self.shape) == 2 else self.shape[0 if self.channels_first else 2]

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        first = len(self.shape) == 3 and self.channels_first
        height, width = self.shape[1:] if first else self.shape[:2]
        return height, width

    @property
    def name(self) -> str:
        """For messages."""
        return f"observation {'.'.join(map(str, self.path))!r}" if self.path else "the observation"

    def __str__(self) -> str:
        height, width = self.sides
        kind = {1: "grey", 3: "colour"}.get(self.channels, f"{self.channels} channels")
        return f"{height} x {width}, {kind}"

    def makes_sense(self) -> bool:
        """Whether a stored description can be true."""
        path = isinstance(self.path, tuple) and len(self.path) <= 32
        path = path and all(type(key) is int or isinstance(key, str) for key in self.path)
        shape = isinstance(self.shape, tuple) and len(self.shape) in (2, 3)
        shape = shape and all(type(x) is int and 0 < x <= 1 << 16 for x in self.shape)
        return path and shape and self.size <= 1 << 28 and isinstance(self.channels_first, bool)


def image_of(path: tuple[str | int, ...], shape: tuple[int, ...]) -> Image | None:
    """The image of this shape: the shorter outer axis has the channels. None if there is no such axis."""
    if len(shape) == 2:
        return Image(path=path, shape=shape)
    if len(shape) != 3 or min(shape[0], shape[2]) > MOST_CHANNELS:
        return None
    return Image(path=path, shape=shape, channels_first=shape[0] < shape[2])


@dataclass(frozen=True)
class FrameLayout:
    """Where the parts of a frame are, and of a stack of frames as policies see it.

    A stack has the images of several frames, oldest first, then the other numbers of the newest.
    """

    images: tuple[Image, ...]
    numbers: int
    """Numbers beside the images."""
    stack: int = 1
    """Frames in a stack."""

    @property
    def image_bytes(self) -> int:
        """Bytes of all images of a frame."""
        return sum(image.size for image in self.images)

    @property
    def image_words(self) -> int:
        """The same in words of four bytes."""
        return -(-self.image_bytes // 4)

    @property
    def words(self) -> int:
        """Words of a frame."""
        return self.image_words + self.numbers

    @property
    def stack_words(self) -> int:
        """Words of a stack."""
        return self.stack * self.image_words + self.numbers

    @property
    def stack_numbers(self) -> int:
        """Numbers that a network reads: a pixel of each image of the stack, then the others."""
        return self.stack * self.image_bytes + self.numbers

    def split_frame(self, frames: Bytes) -> tuple[Bytes, NDArray[np.float32]]:
        """Views of the images and of the other numbers of frames [..., bytes]."""
        end = 4 * self.image_words
        return frames[..., : self.image_bytes], frames[..., end:].view(np.float32)

    def split_stack(self, stacks: Bytes) -> tuple[Bytes, NDArray[np.float32]]:
        """Views of the images [B, stack, bytes] and of the other numbers [B, numbers] of stacks [B, bytes]."""
        end = 4 * self.stack * self.image_words
        images = stacks[:, :end].reshape(len(stacks), self.stack, 4 * self.image_words)
        return images[:, :, : self.image_bytes], stacks[:, end:].view(np.float32)


class FrameStack:
    """The newest frames of several environments, as policies see them. A new episode starts with its first frame
    repeated."""

    def __init__(self, num_envs: int, layout: FrameLayout) -> None:
        """No frame yet."""
        self._layout = layout
        self.seen: Bytes = np.zeros((num_envs, 4 * layout.stack_words), np.uint8)
        """One line per environment; the next `push` overwrites it."""
        size = 4 * layout.image_words
        self._images = self.seen[:, : layout.stack * size].reshape(num_envs, layout.stack, size)
        self._numbers = self.seen[:, layout.stack * size :]

    def push(self, frames: Bytes, restarted: NDArray[np.bool_] | None = None) -> Bytes:
        """Add a frame [envs, bytes] of each; where an episode has just begun, forget the others. None: everywhere."""
        images, size = self._images, 4 * self._layout.image_words
        self._numbers[:] = frames[:, size:]
        if restarted is None:
            images[:] = frames[:, None, :size]
            return self.seen
        if self._layout.stack > 1:
            images[:, :-1] = images[:, 1:]
        images[:, -1] = frames[:, :size]
        for i in np.flatnonzero(restarted).tolist():
            images[i] = frames[i, :size]
        return self.seen


@dataclass(frozen=True)
class Conv:
    """A convolution; its parameters are the next two of the encoder."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True)
class Relu:
    """A rectified linear unit."""


@dataclass(frozen=True)
class MaxPool:
    """The largest of 3 x 3 neighbours, at every second place."""


@dataclass(frozen=True)
class Residual:
    """Its input is added to what these steps make of it."""

    steps: tuple[Conv | Relu, ...]


Step = Conv | Relu | MaxPool | Residual


@dataclass(frozen=True)
class Encoder:
    """What turns an image into features. numpy, torch and ONNX interpret its `steps`."""

    kind: EncoderKind
    width: int = 1
    """A factor on the number of channels."""
    norm: EncoderNorm = "none"

    def steps(self) -> tuple[Step, ...]:
        """The steps in order; a layer norm after each convolution is not among them."""
        w = self.width
        if self.kind == "nature":
            return (Conv(32 * w, 8, 4), Relu(), Conv(64 * w, 4, 2), Relu(), Conv(64 * w, 3), Relu())
        if self.kind == "small":
            return (Conv(16 * w, 3), Relu(), Conv(32 * w, 3), Relu())
        return (*(step for size in (16, 32, 32) for step in _block(size * w)), Relu())

    @property
    def pools(self) -> bool:
        """Whether it takes maxima over neighbouring pixels."""
        return any(isinstance(step, MaxPool) for step in self.steps())

    def shapes(self, image: Image, stack: int) -> list[tuple[int, ...]]:
        """The shapes of the parameters: of each convolution its kernels [out, in, k, k] and biases [out]."""
        shapes: list[tuple[int, ...]] = []
        channels = stack * image.channels
        for conv in convolutions(self.steps()):
            shapes += [(conv.channels, channels, conv.kernel, conv.kernel), (conv.channels,)]
            channels = conv.channels
        return shapes

    def output(self, image: Image) -> tuple[int, int, int]:
        """Channels, height and width of the features; sides below 1 if the image is too small."""
        height, width = image.sides
        channels = 0
        for step in self.steps():
            if isinstance(step, Conv):
                channels = step.channels
                height, width = (
                    (side + 2 * step.padding - step.kernel) // step.stride + 1
                    for side in (height, width)
                )
            elif isinstance(step, MaxPool):
                height, width = (height + 1) // 2, (width + 1) // 2
        return channels, height, width

    def makes_sense(self) -> bool:
        """Whether a stored description can be true."""
        known = self.kind in get_args(EncoderKind) and self.norm in get_args(EncoderNorm)
        return known and type(self.width) is int and 1 <= self.width <= 64


def _block(channels: int) -> tuple[Step, ...]:
    """A block of IMPALA."""
    conv = Conv(channels, 3, padding=1)
    residual = Residual((Relu(), conv, Relu(), conv))
    return (conv, MaxPool(), residual, residual)


def convolutions(steps: tuple[Step, ...]) -> Iterator[Conv]:
    """All convolutions, in the order of their parameters."""
    for step in steps:
        if isinstance(step, Residual):
            yield from convolutions(step.steps)
        elif isinstance(step, Conv):
            yield step


def encoder_parameters(
    encoder: Encoder, images: tuple[Image, ...], stack: int
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the encoders of all images, in order."""
    return {
        f"image{i}.{j}": shape
        for i, image in enumerate(images)
        for j, shape in enumerate(encoder.shapes(image, stack))
    }


def num_features(encoder: Encoder, images: tuple[Image, ...]) -> int:
    """Numbers that the encoders of all images give together."""
    return sum(math.prod(encoder.output(image)) for image in images)


def leaf(obs: Any, path: tuple[str | int, ...]) -> Any:
    """The member of an observation that a path leads to."""
    for key in path:
        obs = obs[key]
    return obs
