"""A compiled update as a list of launches: kernels of its own, and matrix products of the library.

The compiler's own files can only be loaded by the compiler: seconds of imports, and a multiple of
that beside busy samplers, in which the learner crawls. What comes out in the end are some thirty
kernels, launched with the same arguments each time. `recording.py` wrote them down; this loads them
within milliseconds, with nothing but torch and the GPU's driver.

In the list a pointer is a place: so many bytes into an input, or into the arena, the memory for
whatever the update computes. There are two arenas, which take turns, for what one call gives is what
the next one takes: copying it out would cost a tenth of an update.
"""

from __future__ import annotations

import ctypes
import json
import zipfile
from collections.abc import Sequence
from ctypes import byref, c_int, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Place = tuple[int, int]
"""Which memory, counted through the inputs, and how many bytes into it."""

ARENA = -1
LISTING = "launches.json"
STATIC_SHARED_SIZE, MAX_DYNAMIC_SHARED_SIZE, PREFER_SHARED, MOST_SHARED_OF_A_BLOCK = 1, 8, 1, 97
"""Names of the driver for what it is asked and told."""
SHARED_WITHOUT_ASKING = 48 << 10


@cache
def library() -> ctypes.CDLL:
    """The GPU's driver."""
    return ctypes.CDLL("libcuda.so.1")


def driver(name: str, *arguments: Any) -> None:
    """Call the driver; raises if it fails."""
    if status := getattr(library(), name)(*arguments):
        raise RuntimeError(f"{name} failed with CUDA error {status}")


class Launches:
    """A stored update, ready to be called: (*inputs) -> outputs, which live until the next but one."""

    def __init__(self, file: Path, device: torch.device) -> None:
        """Load the kernels and take the memory."""
        torch.zeros(1, device=device)  # the driver's calls need a device in use
        with zipfile.ZipFile(file) as archive, torch.cuda.device(device):
            listing = json.loads(archive.read(LISTING))
            self._calls: list[_Launch | _Product] = []
            functions: dict[str, c_void_p] = {}
            for call in listing["calls"]:
                if "product" in call:
                    self._calls.append(_Product(call))
                    continue
                if (kernel := call["kernel"]) not in functions:
                    functions[kernel] = _function(archive.read(kernel), call["name"])
                if call["shared"] > SHARED_WITHOUT_ASKING:
                    _allow_shared(functions[kernel])
                self._calls.append(_Launch(functions[kernel], call))
        self._arenas = [
            torch.empty(listing["arena_bytes"], dtype=torch.uint8, device=device) for _ in range(2)
        ]
        if any(output["place"][0] != ARENA for output in listing["outputs"]):
            raise RuntimeError("an output that is an input")
        self._outputs = [[_view([arena], x) for x in listing["outputs"]] for arena in self._arenas]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Enqueue everything on the current stream."""
        self._arenas.reverse()
        self._outputs.reverse()
        arena, device = self._arenas[0], self._arenas[0].device
        # Kernels read whole lines, so they were made for addresses that are multiples of 16.
        aligned = [x if x.data_ptr() % 16 == 0 else x.clone() for x in inputs]
        memories = (*aligned, arena)  # the arena is the last: -1
        stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
        with torch.cuda.device(device), torch.no_grad():
            for call in self._calls:
                call(memories, stream)
        return self._outputs[0]


def _function(binary: bytes, name: str) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    driver("cuModuleLoadData", byref(module), binary)
    driver("cuModuleGetFunction", byref(function), module, name.encode())
    return function


def _allow_shared(function: c_void_p) -> None:
    """Let a kernel have more shared memory, as Triton does it: all that a block may have.

    With just what it needs, fewer blocks get room on a multiprocessor.
    """
    device, most, static = c_int(), c_int(), c_int()
    driver("cuCtxGetDevice", byref(device))
    driver("cuDeviceGetAttribute", byref(most), c_int(MOST_SHARED_OF_A_BLOCK), device)
    driver("cuFuncGetAttribute", byref(static), c_int(STATIC_SHARED_SIZE), function)
    driver("cuFuncSetCacheConfig", function, c_int(PREFER_SHARED))
    allowed = c_int(most.value - static.value)
    driver("cuFuncSetAttribute", function, c_int(MAX_DYNAMIC_SHARED_SIZE), allowed)


def _view(memories: Sequence[Tensor], tensor: dict[str, Any]) -> Tensor:
    """A tensor of the list, in the memory at hand."""
    memory, offset = tensor["place"]
    base, dtype = memories[memory], getattr(torch, tensor["dtype"])
    storage = base.untyped_storage()
    first = (base.data_ptr() - storage.data_ptr() + offset) // dtype.itemsize
    empty = torch.empty(0, dtype=dtype, device=base.device)
    return empty.set_(storage, first, tensor["shape"], tensor["stride"])


class _Product:
    """A matrix product by the library."""

    def __init__(self, call: dict[str, Any]) -> None:
        self._function = getattr(torch, call["product"])
        self._tensors, self._out, self._factors = call["tensors"], call["out"], call["factors"]

    def __call__(self, memories: Sequence[Tensor], stream: c_void_p) -> None:
        tensors = [_view(memories, tensor) for tensor in self._tensors]
        self._function(*tensors, out=_view(memories, self._out), **self._factors)


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

    def __call__(self, memories: Sequence[Tensor], stream: c_void_p) -> None:
        for value, (memory, offset) in self._pointers:
            value.value = memories[memory].data_ptr() + offset
        driver("cuLaunchKernel", self._function, *self._shape, stream, self._arguments, None)
