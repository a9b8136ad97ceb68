"""Records a compiled update as a list of launches, in the compiler's process; see `launches.py`.

One update is captured as a CUDA graph, and the launches are read from the graph. The machine code of
Triton's kernels was recorded when they were loaded. The kernels of the library's matrix products cannot
be recorded: their calls are stored instead, in place of the kernels that they launched.
"""

from __future__ import annotations

import ctypes
import json
import zipfile
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spreeze.learning.compiled.launches import ARENA, LISTING, Place, driver, library

Binaries = dict[int, tuple[str, bytes]]
"""Name and machine code of a kernel, by the driver's handle."""

ALIGNMENT = 512
ADDRESSES = range(1 << 33, 1 << 56)
"""Values that are device addresses: counts are smaller, doubles are larger."""
KERNEL_NODE = 0
PRODUCTS = {"mm": "mm", "bmm": "bmm", "addmm": "addmm", "baddbmm": "baddbmm", "bias_addmm": "addmm"}
"""Matrix products: the compiler's name and torch's."""


class _KernelNode(Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("arguments", POINTER(c_void_p)),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


@contextmanager
def watch_kernels() -> Iterator[Binaries]:
    """Record the kernels that Triton loads inside this context."""
    from triton.runtime import driver

    tools, binaries = driver.active.utils, Binaries()
    load_binary = tools.load_binary

    def load_and_note(name: str, binary: bytes, *rest: Any) -> Any:
        loaded = load_binary(name, binary, *rest)
        binaries[loaded[1]] = (name, bytes(binary))
        return loaded

    tools.load_binary = load_and_note
    try:
        yield binaries
    finally:
        tools.load_binary = load_binary


@dataclass(frozen=True)
class _Strided:
    """Address and layout of a tensor. Not the tensor itself: that would keep its memory from being reused."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


def _strided(tensor: Tensor) -> _Strided:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _Strided(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype)


@dataclass(frozen=True)
class _ProductCall:
    """A matrix product in a capture, and the nodes of the graph that it became."""

    product: str
    tensors: list[_Strided]
    out: _Strided
    factors: dict[str, float]
    nodes: range


@contextmanager
def _watch_products() -> Iterator[list[_ProductCall]]:
    """Record the matrix products that a compiled function calls inside this context, in a capture."""
    from torch._inductor.select_algorithm import extern_kernels

    calls: list[_ProductCall] = []
    originals = {name: getattr(extern_kernels, name) for name in PRODUCTS}

    def noting(name: str) -> Callable[..., Any]:
        def call(*tensors: Tensor, out: Tensor, **factors: float) -> Any:
            first = _num_captured()
            result = originals[name](*tensors, out=out, **factors)
            nodes = range(first, _num_captured())
            places = [_strided(tensor) for tensor in tensors]
            calls.append(_ProductCall(PRODUCTS[name], places, _strided(out), factors, nodes))
            return result

        return call

    for name in PRODUCTS:
        setattr(extern_kernels, name, noting(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(extern_kernels, name, original)


def save(step: Callable[..., Any], inputs: Sequence[Tensor], binaries: Binaries, to: Path) -> None:
    """Capture one call of `step` and write its launches to a file; `binaries` has its kernels."""
    for _ in range(2):  # warm up
        step(*inputs)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph), _watch_products() as products:
        outputs = step(*inputs)
    memory = _CaptureMemory(inputs, graph.pool())
    kernels: dict[int, str] = {}

    def of_kernel(node: int) -> dict[str, Any]:
        launch = _launch(node)
        if launch.function not in binaries:
            raise RuntimeError("a kernel that Triton did not compile")
        return {
            "kernel": kernels.setdefault(launch.function, f"{len(kernels)}.cubin"),
            "name": binaries[launch.function][0],
            "grid": list(launch.grid),
            "block": list(launch.block),
            "shared": launch.shared,
            "arguments": [memory.relocatable(raw) for raw in _arguments(launch)],
        }

    def of_product(call: _ProductCall) -> dict[str, Any]:
        return {
            "product": call.product,
            "tensors": [memory.tensor(tensor) for tensor in call.tensors],
            "out": memory.tensor(call.out),
            "factors": call.factors,
        }

    nodes = _nodes(c_void_p(graph.raw_cuda_graph()))
    calls = {call.nodes.start: of_product(call) for call in products}
    in_products = {i for call in products for i in call.nodes}
    calls |= {i: of_kernel(node) for i, node in enumerate(nodes) if i not in in_products}
    listing = {
        "arena_bytes": memory.arena_bytes,
        "calls": [calls[i] for i in sorted(calls)],
        "outputs": [memory.tensor(_strided(output)) for output in outputs],
    }
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(LISTING, json.dumps(listing))
        for function, file in kernels.items():
            archive.writestr(file, binaries[function][1])


class _CaptureMemory:
    """Tells which input an address of a capture belongs to, or where in the arena it is."""

    def __init__(self, inputs: Sequence[Tensor], pool: Any) -> None:
        self._ranges: list[tuple[int, int, int, int]] = []  # begin, end, memory, bytes into it
        self.arena_bytes = 0
        ends: list[int] = []
        for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
            begin, size = segment["address"], segment["total_size"]
            ends += accumulate((block["size"] for block in segment["blocks"]), initial=begin)
            if tuple(segment["segment_pool_id"]) == tuple(pool):
                self._ranges.append((begin, begin + size, ARENA, self.arena_bytes))
                self.arena_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        ends.sort()
        for i, tensor in enumerate(inputs):
            begin = tensor.data_ptr()
            # A `ReplayShape` has less memory than its shape says: it ends with its block of memory.
            end = min(begin + tensor.nbytes, ends[bisect(ends, begin)])
            self._ranges.append((begin, end, i, 0))

    def place(self, address: int) -> Place:
        """The place of an address."""
        for begin, end, memory, start in self._ranges:
            if begin <= address < end:
                return memory, start + address - begin
        raise RuntimeError("an address that is neither in an input nor allocated by the update")

    def tensor(self, tensor: _Strided) -> dict[str, Any]:
        """A tensor, with its place instead of its address."""
        return {
            "place": self.place(tensor.address),
            "shape": tensor.shape,
            "stride": tensor.stride,
            "dtype": tensor.dtype,
        }

    def relocatable(self, raw: bytes) -> Place | str:
        """An argument: a place if it is a pointer, otherwise its bytes in hexadecimal."""
        number = int.from_bytes(raw, "little")
        is_pointer = len(raw) == 8 and number in ADDRESSES
        return self.place(number) if is_pointer else raw.hex()


def _nodes(graph: c_void_p) -> list[int]:
    """The nodes of a graph in the order of their capture. Each must wait for the one before."""
    count = c_size_t()
    driver("cuGraphGetNodes", graph, None, byref(count))
    nodes = (c_void_p * count.value)()
    driver("cuGraphGetNodes", graph, nodes, byref(count))
    waits: dict[int, list[int]] = {int(node or 0): [] for node in nodes}
    driver("cuGraphGetEdges_v2", graph, None, None, None, byref(count))
    ahead, behind = (c_void_p * count.value)(), (c_void_p * count.value)()
    kinds = (c_uint64 * count.value)()
    driver("cuGraphGetEdges_v2", graph, ahead, behind, kinds, byref(count))
    if count.value != len(nodes) - 1:
        raise RuntimeError("kernels that run in parallel")
    for first, second in zip(ahead, behind, strict=True):
        waits[second].append(first)
    return list(TopologicalSorter(waits).static_order())


def _num_captured() -> int:
    """How many nodes the capture on the current stream has so far."""
    status, identity, graph, count = c_int(), c_uint64(), c_void_p(), c_size_t()
    stream = c_void_p(torch.cuda.current_stream().cuda_stream)
    outs = (byref(status), byref(identity), byref(graph), None, None)
    driver("cuStreamGetCaptureInfo_v2", stream, *outs)
    driver("cuGraphGetNodes", graph, None, byref(count))
    return count.value


def _launch(node: int) -> _KernelNode:
    """What a node launches."""
    kind, launch = c_int(), _KernelNode()
    driver("cuGraphNodeGetType", c_void_p(node), byref(kind))
    if kind.value != KERNEL_NODE:
        raise RuntimeError(f"a graph node of kind {kind.value}")
    driver("cuGraphKernelNodeGetParams_v2", c_void_p(node), byref(launch))
    return launch


def _arguments(node: _KernelNode) -> list[bytes]:
    """The bytes of each argument of a launch."""
    arguments: list[bytes] = []
    offset, size = c_size_t(), c_size_t()
    function = c_void_p(node.function)
    info = library().cuFuncGetParamInfo  # fails after the last one
    while info(function, c_size_t(len(arguments)), byref(offset), byref(size)) == 0:
        arguments.append(ctypes.string_at(node.arguments[len(arguments)], size.value))
    return arguments
