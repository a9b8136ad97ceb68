"""Exports a policy as one ONNX graph, from raw observations to the environment's actions.

The graph is built from the numpy policy and compared with it before the file is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from spreeze.policy.activations import GELU_CUBE, GELU_SCALE, LAYER_NORM_EPS
from spreeze.policy.onnx_images import describe_images, image_inputs, inputs_of
from spreeze.policy.policy import Policy
from spreeze.spec import OBS_CLIP, Activation

OPSET = 17
NUM_COMPARED, FEW_COMPARED = 256, 32
"""Random observations, and random images, on which the graph is compared with the policy."""
TOLERANCE = 1e-4
"""Largest allowed difference from the numpy policy, relative to the range of actions."""


SINGLE: dict[str, str] = {"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}
"""Activations that are one operation."""


class Graph:
    """Builds an ONNX graph as a chain: each operation takes the result of the one before."""

    def __init__(self, result: str) -> None:
        """Start from the graph's input."""
        self.result = result
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def then(self, operation: str, *constants: NDArray[Any], **attributes: Any) -> None:
        """Append an operation on the result so far, with constants as its other inputs."""
        names = [f"c{len(self.constants) + i}" for i in range(len(constants))]
        pairs = zip(constants, names, strict=True)
        self.constants += [numpy_helper.from_array(np.array(value), name) for value, name in pairs]
        out = f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, [self.result, *names], [out], **attributes))
        self.result = out

    def with_earlier(self, operation: str, earlier: str) -> None:
        """Append an operation on the result so far and an earlier one."""
        out = f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, [self.result, earlier], [out]))
        self.result = out

    def join(self, results: Sequence[str]) -> None:
        """Append the concatenation of these results."""
        out = f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node("Concat", list(results), [out], axis=1))
        self.result = out

    def activate(self, activation: Activation) -> None:
        """Append an activation. Neither silu nor gelu is an operation of this opset: both are x times a sigmoid."""
        if activation in SINGLE:
            self.then(SINGLE[activation])
            return
        x = self.result
        if activation == "gelu":
            self.with_earlier("Mul", x)
            self.then("Mul", np.array(GELU_CUBE))
            self.then("Add", np.array(1, np.float32))
            self.with_earlier("Mul", x)
            self.then("Mul", np.array(2 * GELU_SCALE, np.float32))
        self.then("Sigmoid")
        self.with_earlier("Mul", x)

    def clip(self, low: float, high: float) -> None:
        """Append a clip to [low, high]."""
        self.then("Clip", np.float32(low), np.float32(high))  # type: ignore[arg-type]


def onnx_model(policy: Policy) -> Any:
    """The graph from float32 observations [N, *obs_shape], flattened if they have parts, to actions [N, *action_shape].

    With images its inputs are those of `image_inputs`.
    """
    spec, form, parts = policy.spec, policy.form, policy.named()
    graph = Graph("obs")

    def normalise(graph: Graph) -> None:
        if form.normalised:
            graph.then("Sub", parts["obs_mean"])
            graph.then("Mul", parts["obs_scale"])
            graph.clip(-OBS_CLIP, OBS_CLIP)

    if spec.images:
        given = image_inputs(graph, policy, normalise)
    else:
        given = [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["N", *spec.obs_shape])]
        graph.then("Reshape", np.array([-1, spec.obs_size]))
        normalise(graph)
    for i, (weight, bias) in enumerate(policy.layers):
        before = graph.result
        graph.then("Gemm", weight, bias)
        if i < len(policy.layers) - 1:
            if form.layer_norm:
                graph.then("LayerNormalization", np.ones_like(bias), epsilon=LAYER_NORM_EPS)
            graph.activate(form.activation)
            if form.residual and i > 0 and weight.shape[0] == weight.shape[1]:
                graph.with_earlier("Add", before)
    if spec.discrete:
        if form.head == "values":
            graph.then("Slice", np.array([1]), np.array([2**31]), np.array([1]))
        graph.then("ArgMax", axis=1, keepdims=0)
        graph.then("Add", np.array(spec.first_action))
        output = helper.make_tensor_value_info("action", TensorProto.INT64, ["N"])
    else:
        if form.head == "tanh_gaussian":
            graph.then("Slice", np.array([0]), np.array([spec.action_size]), np.array([1]))
        if form.head == "gaussian":
            graph.clip(-1, 1)
        else:
            graph.then("Tanh")
        graph.then("Mul", policy.half_range)
        graph.then("Add", policy.middle)
        graph.then("Max", policy.low)  # rounding may exceed the bounds
        graph.then("Min", policy.high)
        graph.then("Reshape", np.array([-1, *spec.action_shape]))
        output = helper.make_tensor_value_info(
            "action", TensorProto.FLOAT, ["N", *spec.action_shape]
        )
    graph.then("Identity")
    graph.nodes[-1].output[0] = "action"
    whole = helper.make_graph(graph.nodes, f"{spec.id} policy", given, [output], graph.constants)
    model = helper.make_model(
        whole, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="spreeze", ir_version=8
    )
    onnx.checker.check_model(model)
    return model


def describe_inputs(policy: Policy) -> str:
    """The inputs of the graph, for people."""
    spec = policy.spec
    if spec.images:
        return describe_images(policy)
    flat = ", flattened as by gymnasium.spaces.flatten" if spec.obs_parts else ""
    return f"obs [{', '.join(map(str, ('N', *spec.obs_shape)))}] in float32{flat}"


def export_onnx(policy: Policy, file: Path) -> float:
    """Write the graph to `file` and return its largest difference from the numpy policy.

    Raises RuntimeError and writes nothing if the difference is too large.
    """
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_bytes(onnx_model(policy).SerializeToString())
        distance = compare(policy, draft)
        if not distance <= TOLERANCE:  # true for NaN as well
            raise RuntimeError(
                f"the ONNX graph differs from the policy by {distance:.2g} of the action range; "
                f"up to {TOLERANCE:g} is rounding"
            )
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return distance


def compare(policy: Policy, file: Path) -> float:
    """Largest difference of the file's actions from the policy's, relative to the action range.

    For discrete actions: the share of observations on which they choose differently.
    """
    spec = policy.spec
    rng = np.random.default_rng(0)
    if spec.images:
        frames = spec.frames
        stacks = rng.integers(0, 256, (FEW_COMPARED, 4 * frames.stack_words)).astype(np.uint8)
        frames.split_stack(stacks)[1][:] = rng.normal(0, 3, (FEW_COMPARED, spec.vector_size))
        given, obs = inputs_of(policy, stacks), stacks
    else:
        obs = rng.normal(0, 3, (NUM_COMPARED, *spec.obs_shape)).astype(np.float32)
        obs[0] = 0
        given = {"obs": obs}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, given)
    expected = policy.greedy_action(obs.reshape(len(obs), -1))
    if spec.discrete:
        return float(np.mean(found != expected))
    scale = np.subtract(spec.action_high, spec.action_low).reshape(spec.action_shape)
    return float(np.max(np.abs(found - expected) / scale))
