"""The first part of an exported graph if observations have images: the encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from spreeze.images import NORM_EPS, Bytes, Conv, Encoder, Image, MaxPool, Relu, Residual, Step
from spreeze.policy.encoding import largest_singular_value

if TYPE_CHECKING:
    from spreeze.policy.onnx import Graph
    from spreeze.policy.policy import Policy

NUMBERS = "numbers"
"""The input for what is no image."""


def image_inputs(graph: Graph, policy: Policy, normalise: Callable[[Graph], None]) -> list[Any]:
    """Append the encoders to the graph; returns the descriptions of its inputs.

    Each image has an input [N, stack, *shape] of bytes, oldest frame first, and the other numbers of the newest frame
    have one.
    """
    spec, form, parts = policy.spec, policy.form, policy.named()
    assert form.encoder is not None
    features, given = [], []
    for i, image in enumerate(spec.images):
        graph.result = input_name(image)
        shape: list[Any] = ["N", spec.stack, *image.shape]
        given.append(helper.make_tensor_value_info(graph.result, TensorProto.UINT8, shape))
        graph.then("Cast", to=TensorProto.FLOAT)
        graph.then("Mul", np.float32(1 / 255))  # type: ignore[arg-type]
        _to_channels(graph, image, spec.stack)
        kernels = [value for name, value in parts.items() if name.startswith(f"image{i}.")]
        _append(graph, form.encoder, form.encoder.steps(), iter(kernels), image)
        graph.then("Flatten")
        features.append(graph.result)
    if spec.vector_size:
        graph.result = NUMBERS
        shape = ["N", spec.vector_size]
        given.append(helper.make_tensor_value_info(NUMBERS, TensorProto.FLOAT, shape))
        normalise(graph)
        features.append(graph.result)
    graph.join(features)
    return given


def input_name(image: Image) -> str:
    """The name of an image's input: the keys that lead to it, or `obs`."""
    return ".".join(map(str, image.path)) or "obs"


def describe_images(policy: Policy) -> str:
    """The inputs of the graph, for people."""
    spec = policy.spec
    shapes = [
        f"{input_name(image)} [{', '.join(map(str, ('N', spec.stack, *image.shape)))}] in uint8"
        for image in spec.images
    ]
    if spec.vector_size:
        shapes.append(f"{NUMBERS} [N, {spec.vector_size}] in float32")
    return ", ".join(shapes)


def inputs_of(policy: Policy, stacks: Bytes) -> dict[str, NDArray[Any]]:
    """The inputs of the graph for stacks of frames, as policies act on them."""
    spec, end = policy.spec, 0
    pixels, numbers = spec.frames.split_stack(stacks)
    given: dict[str, NDArray[Any]] = {}
    for image in spec.images:
        these = pixels[:, :, end : end + image.size]
        given[input_name(image)] = these.reshape(len(stacks), spec.stack, *image.shape)
        end += image.size
    return given | ({NUMBERS: np.ascontiguousarray(numbers)} if spec.vector_size else {})


def _to_channels(graph: Graph, image: Image, stack: int) -> None:
    """From [N, stack, *shape] to [N, channels, height, width]."""
    if len(image.shape) == 3 and not image.channels_first:
        graph.then("Transpose", perm=[0, 1, 4, 2, 3])
    graph.then("Reshape", np.array([-1, stack * image.channels, *image.sides]))


def _append(
    graph: Graph, encoder: Encoder, steps: Sequence[Step], kernels: Iterator[Any], image: Image
) -> None:
    for step in steps:
        if isinstance(step, Conv):
            kernel, bias = next(kernels), next(kernels)
            if encoder.norm == "spectral":
                kernel = kernel / largest_singular_value(kernel.reshape(len(kernel), -1))
            graph.then("Conv", kernel, bias, strides=[step.stride] * 2, pads=[step.padding] * 4)
            if encoder.norm == "layer":
                _normalise_layer(graph)
        elif isinstance(step, Relu):
            graph.then("Relu")
        elif isinstance(step, MaxPool):
            graph.then("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        elif isinstance(step, Residual):
            before = graph.result
            _append(graph, encoder, step.steps, kernels, image)
            graph.with_earlier("Add", before)


def _normalise_layer(graph: Graph) -> None:
    """Mean 0 and variance 1 over channels and places, whose number the operation for layers would have to know."""
    before = graph.result
    graph.then("ReduceMean", axes=[1, 2, 3])
    mean = graph.result
    graph.result = before
    graph.with_earlier("Sub", mean)
    centred = graph.result
    graph.with_earlier("Mul", centred)
    graph.then("ReduceMean", axes=[1, 2, 3])
    graph.then("Add", np.float32(NORM_EPS))  # type: ignore[arg-type]
    graph.then("Sqrt")
    spread, graph.result = graph.result, centred
    graph.with_earlier("Div", spread)
