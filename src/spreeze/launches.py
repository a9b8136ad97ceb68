"""A compiled update as the list of kernels that it launches.

The compiler's own files can only be loaded by the compiler: seconds of imports, and a multiple of
that beside busy samplers, in which the learner crawls. What comes out in the end are some thirty
kernels, launched with the same arguments each time. So the process that compiles captures one update
as a CUDA graph, reads the launches out of it and stores them beside the kernels themselves. A learner
loads that within milliseconds, with nothing but the GPU's driver.

In the list a pointer is a place: so many bytes into an input, or into the arena, the memory for
whatever the update computes. Results are copied out of the arena, for what one call gives is what the
next one takes.
"""

from __future__ import annotations

import ctypes
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Binaries = dict[int, tuple[str, bytes]]
"""By the driver's handle: name and machine code of a kernel."""
Place = tuple[int, int]
"""Which memory, counted through the inputs, and how many bytes into it."""

ARENA = -1
ALIGNMENT = 512
ADDRESSES = range(1 << 33, 1 << 56)
"""No count in an argument is as large, no address of a device is smaller, and doubles lie above."""
KERNEL_NODE = 0
STATIC_SHARED_SIZE, MAX_DYNAMIC_SHARED_SIZE, PREFER_SHARED, MOST_SHARED_OF_A_BLOCK = 1, 8, 2, 97
"""Names of the driver for what it is asked and told."""
SHARED_WITHOUT_ASKING = 48 << 10


class _KernelNode(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of the driver."""

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


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _driver(name: str, *arguments: Any) -> None:
    if status := getattr(_library(), name)(*arguments):
        raise RuntimeError(f"{name} failed with CUDA error {status}")


@contextmanager
def watch_kernels() -> Iterator[Binaries]:
    """The kernels that Triton loads in the meantime."""
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


def save(step: Callable[..., Any], inputs: Sequence[Tensor], binaries: Binaries, to: Path) -> None:
    """Run `step` once and keep its launches in a file; its kernels must be among `binaries`."""
    for _ in range(2):  # whatever it does just once
        step(*inputs)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        outputs = step(*inputs)
    memory = _Memory(inputs, graph.pool())
    kernels: dict[int, str] = {}
    launches = []
    for node in _nodes(graph.raw_cuda_graph()):
        if node.function not in binaries:
            raise RuntimeError("a kernel that Triton did not make")
        launch = {
            "kernel": kernels.setdefault(node.function, f"{len(kernels)}.cubin"),
            "name": binaries[node.function][0],
            "grid": list(node.grid),
            "block": list(node.block),
            "shared": node.shared,
            "arguments": [memory.relocatable(raw) for raw in _arguments(node)],
        }
        launches.append(launch)
    listing = {
        "arena_bytes": memory.arena_bytes,
        "launches": launches,
        "outputs": [
            {
                "place": memory.place(tensor.data_ptr()),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "dtype": str(tensor.dtype).removeprefix("torch."),
            }
            for tensor in outputs
        ],
    }
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("launches.json", json.dumps(listing))
        for function, file in kernels.items():
            archive.writestr(file, binaries[function][1])


class _Memory:
    """Tells addresses of a capture apart: which input, or where in the arena."""

    def __init__(self, inputs: Sequence[Tensor], pool: Any) -> None:
        self._ranges: list[tuple[int, int, int, int]] = []  # begin, end, memory, bytes into it
        for i, tensor in enumerate(inputs):
            self._ranges.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, i, 0))
        self.arena_bytes = 0
        for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
            if tuple(segment["segment_pool_id"]) == tuple(pool):
                begin, size = segment["address"], segment["total_size"]
                self._ranges.append((begin, begin + size, ARENA, self.arena_bytes))
                self.arena_bytes += -(-size // ALIGNMENT) * ALIGNMENT

    def place(self, address: int) -> Place:
        """Where an address lies."""
        # A hollow replay has less memory than its shape says, so that other ranges begin in its own.
        around = [place for place in self._ranges if place[0] <= address < place[1]]
        if not around:
            raise RuntimeError("an address that is neither an input nor made by the update")
        begin, _, memory, start = max(around)
        return memory, start + address - begin

    def relocatable(self, raw: bytes) -> Place | str:
        """An argument: a place if it is a pointer, else its bytes in hexadecimal."""
        number = int.from_bytes(raw, "little")
        is_pointer = len(raw) == 8 and number in ADDRESSES
        return self.place(number) if is_pointer else raw.hex()


def _nodes(graph: int) -> Iterator[_KernelNode]:
    """The launches of a graph, each after those that it waits for."""
    for handle in TopologicalSorter(_waits(c_void_p(graph))).static_order():
        kind, node = c_int(), _KernelNode()
        _driver("cuGraphNodeGetType", c_void_p(handle), byref(kind))
        if kind.value != KERNEL_NODE:
            raise RuntimeError(f"a graph node of kind {kind.value}")
        _driver("cuGraphKernelNodeGetParams_v2", c_void_p(handle), byref(node))
        yield node


def _waits(graph: c_void_p) -> dict[int, list[int]]:
    """By node of a graph: the nodes that it waits for."""
    count = c_size_t()
    _driver("cuGraphGetNodes", graph, None, byref(count))
    nodes = (c_void_p * count.value)()
    _driver("cuGraphGetNodes", graph, nodes, byref(count))
    waits: dict[int, list[int]] = {int(node or 0): [] for node in nodes}
    _driver("cuGraphGetEdges", graph, None, None, byref(count))
    ahead, behind = (c_void_p * count.value)(), (c_void_p * count.value)()
    _driver("cuGraphGetEdges", graph, ahead, behind, byref(count))
    for first, second in zip(ahead, behind, strict=True):
        waits[second].append(first)
    return waits


def _arguments(node: _KernelNode) -> list[bytes]:
    """The bytes of each argument of a launch."""
    arguments: list[bytes] = []
    offset, size = c_size_t(), c_size_t()
    function = c_void_p(node.function)
    info = _library().cuFuncGetParamInfo  # fails behind the last one
    while info(function, c_size_t(len(arguments)), byref(offset), byref(size)) == 0:
        arguments.append(ctypes.string_at(node.arguments[len(arguments)], size.value))
    return arguments


class Launches:
    """A stored update, ready to be called: (*inputs) -> outputs, which live until the next but one."""

    def __init__(self, file: Path, device: torch.device) -> None:
        """Load the kernels and take the memory."""
        self._arena = torch.zeros(1, device=device)  # the driver's calls need a device in use
        with zipfile.ZipFile(file) as archive, torch.cuda.device(device):
            listing = json.loads(archive.read("launches.json"))
            names = {launch["kernel"]: launch["name"] for launch in listing["launches"]}
            functions = {file: _function(archive.read(file), names[file]) for file in names}
            for launch in listing["launches"]:
                if launch["shared"] > SHARED_WITHOUT_ASKING:
                    _allow_shared(functions[launch["kernel"]])
            self._launches = [_Launch(functions[x["kernel"]], x) for x in listing["launches"]]
        self._arena = torch.empty(listing["arena_bytes"], dtype=torch.uint8, device=device)
        self._computed = [_view(self._arena, output) for output in listing["outputs"]]
        self._outputs = [[torch.empty_like(x) for x in self._computed] for _ in range(2)]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Enqueue all kernels on the current stream."""
        # Kernels read whole lines, so they were made for addresses that are multiples of 16.
        aligned = [x if x.data_ptr() % 16 == 0 else x.clone() for x in inputs]
        bases = [x.data_ptr() for x in (*aligned, self._arena)]  # the arena is the last: -1
        stream = c_void_p(torch.cuda.current_stream(self._arena.device).cuda_stream)
        with torch.cuda.device(self._arena.device):
            for launch in self._launches:
                launch(bases, stream)
        self._outputs.reverse()
        torch._foreach_copy_(self._outputs[0], self._computed)  # all in one kernel
        return self._outputs[0]


def _function(binary: bytes, name: str) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    _driver("cuModuleLoadData", byref(module), binary)
    _driver("cuModuleGetFunction", byref(function), module, name.encode())
    return function


def _allow_shared(function: c_void_p) -> None:
    """Let a kernel have more shared memory, as Triton does it: all that a block may have.

    With just what it needs, fewer blocks get room on a multiprocessor.
    """
    device, most, static = c_int(), c_int(), c_int()
    _driver("cuCtxGetDevice", byref(device))
    _driver("cuDeviceGetAttribute", byref(most), c_int(MOST_SHARED_OF_A_BLOCK), device)
    _driver("cuFuncGetAttribute", byref(static), c_int(STATIC_SHARED_SIZE), function)
    _driver("cuFuncSetCacheConfig", function, c_int(PREFER_SHARED))
    allowed = c_int(most.value - static.value)
    _driver("cuFuncSetAttribute", function, c_int(MAX_DYNAMIC_SHARED_SIZE), allowed)


def _view(arena: Tensor, output: dict[str, Any]) -> Tensor:
    memory, offset = output["place"]
    if memory != ARENA:
        raise RuntimeError("an output that is an input")
    dtype: torch.dtype = getattr(torch, output["dtype"])
    where = offset // dtype.itemsize
    return arena.view(dtype).as_strided(output["shape"], output["stride"], where)


class _Launch:
    """One kernel with its arguments."""

    def __init__(self, function: c_void_p, launch: dict[str, Any]) -> None:
        self._function = function
        self._shape = [c_uint(n) for n in (*launch["grid"], *launch["block"], launch["shared"])]
        self._pointers: list[tuple[Any, Place]] = []
        values: list[Any] = []
        for argument in launch["arguments"]:
            if isinstance(argument, str):
                values.append(ctypes.create_string_buffer(bytes.fromhex(argument)))
            else:
                values.append(ctypes.c_uint64())
                self._pointers.append((values[-1], tuple(argument)))
        self._values = values  # the addresses below are theirs
        self._arguments = (c_void_p * len(values))(*map(ctypes.addressof, values))

    def __call__(self, bases: list[int], stream: c_void_p) -> None:
        for value, (memory, offset) in self._pointers:
            value.value = bases[memory] + offset
        _driver("cuLaunchKernel", self._function, *self._shape, stream, self._arguments, None)
