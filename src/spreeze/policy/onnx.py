"""A policy as an ONNX graph: normalisation, network and the environment's own actions, all inside.

Written from the numpy policy and checked against it; training code has no part in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from spreeze.policy import LAYER_NORM_EPS, Policy
from spreeze.spec import CLIP

OPSET = 17
CHECKED = 256
CLOSE = 1e-4
"""How far an action may be from the numpy policy's, relative to the range of actions."""


class Graph:
    """An ONNX graph on its way: operations one after the other, each on the result of the last."""

    def __init__(self, result: str) -> None:
        """Begin with an input."""
        self.result = result
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def then(self, operation: str, *constants: NDArray[Any], **attributes: Any) -> None:
        """Apply an operation to the result so far, with constants as its other inputs."""
        names = [f"c{len(self.constants) + i}" for i in range(len(constants))]
        pairs = zip(constants, names, strict=True)
        self.constants += [numpy_helper.from_array(np.array(value), name) for value, name in pairs]
        out = f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, [self.result, *names], [out], **attributes))
        self.result = out

    def clip(self, low: float, high: float) -> None:
        """Cut to bounds."""
        self.then("Clip", np.float32(low), np.float32(high))  # type: ignore[arg-type]


def onnx_model(policy: Policy) -> Any:
    """Observations [N, *shape] in float32, flat if they have parts -> actions [N, *shape] as the environment takes them."""
    spec, form, parts = policy.spec, policy.form, policy.named()
    graph = Graph("obs")
    graph.then("Reshape", np.array([-1, spec.obs_size]))
    if form.normalised:
        graph.then("Sub", parts["obs_mean"])
        graph.then("Mul", parts["obs_scale"])
        graph.clip(-CLIP, CLIP)
    for i, (weight, bias) in enumerate(policy.layers):
        graph.then("Gemm", weight, bias)
        if i < len(policy.layers) - 1:
            if form.layer_norm:
                graph.then("LayerNormalization", np.ones_like(bias), epsilon=LAYER_NORM_EPS)
            graph.then("Relu")
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
        graph.then("Max", policy.low)  # rounding may lead out of the bounds
        graph.then("Min", policy.high)
        graph.then("Reshape", np.array([-1, *spec.action_shape]))
        output = helper.make_tensor_value_info(
            "action", TensorProto.FLOAT, ["N", *spec.action_shape]
        )
    graph.then("Identity")
    graph.nodes[-1].output[0] = "action"
    given = helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["N", *spec.obs_shape])
    whole = helper.make_graph(graph.nodes, f"{spec.id} policy", [given], [output], graph.constants)
    model = helper.make_model(
        whole, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="spreeze", ir_version=8
    )
    onnx.checker.check_model(model)
    return model


def export_onnx(policy: Policy, file: Path) -> float:
    """Write the graph, then run it beside the numpy policy; returns how far apart they were at most.

    RuntimeError, and no file, if that is too far.
    """
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_bytes(onnx_model(policy).SerializeToString())
        distance = compare(policy, draft)
        if not distance <= CLOSE:  # NaN is not close, either
            raise RuntimeError(f"the ONNX graph is {distance:.2g} away from the policy")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return distance


def compare(policy: Policy, file: Path) -> float:
    """Largest distance of the file's actions from the policy's, relative to the range of actions."""
    spec = policy.spec
    rng = np.random.default_rng(0)
    obs = rng.normal(0, 3, (CHECKED, *spec.obs_shape)).astype(np.float32)
    obs[0] = 0
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"obs": obs})
    expected, _ = policy.predict(obs, deterministic=True)
    if spec.discrete:
        return float(np.mean(found != expected))
    scale = np.subtract(spec.action_high, spec.action_low).reshape(spec.action_shape)
    return float(np.max(np.abs(found - expected) / scale))
