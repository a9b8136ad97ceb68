"""A compiled update as a list of launches: its kernels, and matrix products of the library.

Loading the compiler's own files means importing the compiler. That takes seconds, several times as long
beside busy samplers, and slows the learner down meanwhile. But an update is just some thirty kernels,
launched with the same arguments each time. `recording.py` records them; this module loads them within
milliseconds, with nothing but torch and the GPU's driver.

In the list a pointer is a place: an offset into an input, or into the arena, the memory for everything
that the update computes. Two arenas take turns, because the outputs of one call are the inputs of the
next: copying them would cost a tenth of an update.
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
"""The index of the input, or ARENA, and the offset in bytes."""

ARENA = -1
LISTING = "launches.json"
STATIC_SHARED_SIZE, MAX_DYNAMIC_SHARED_SIZE, PREFER_SHARED, MOST_SHARED_OF_A_BLOCK = 1, 8, 1, 97
"""Numbers of the driver's attributes and settings."""
DEFAULT_MAX_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may use without asking for more."""


@cache
def library() -> ctypes.CDLL:
    """The GPU's driver."""
    return ctypes.CDLL("libcuda.so.1")


def driver(name: str, *arguments: Any) -> None:
    """Call a function of the driver; raises if it fails."""
    if status := getattr(library(), name)(*arguments):
        raise RuntimeError(f"{name} failed with CUDA error {status}")


class Launches:
    """A stored update, ready to be called. Its outputs stay valid until the call after the next."""

    def __init__(self, file: Path, device: torch.device) -> None:
        """Load the kernels and allocate the memory."""
        torch.zeros(1, device=device)  # creates the context that the driver's calls need
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
                if call["shared"] > DEFAULT_MAX_SHARED:
                    _allow_shared(functions[kernel])
                self._calls.append(_Launch(functions[kernel], call))
        self._arenas = [
            torch.empty(listing["arena_bytes"], dtype=torch.uint8, device=device) for _ in range(2)
        ]
        if any(output["place"][0] != ARENA for output in listing["outputs"]):
            raise RuntimeError("an output that is an input")
        self._outputs = [
            [tensor_in([arena], x) for x in listing["outputs"]] for arena in self._arenas
        ]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Enqueue everything on the current stream."""
        self._arenas.reverse()
        self._outputs.reverse()
        arena, device = self._arenas[0], self._arenas[0].device
        # Kernels use wide loads: they were compiled for addresses that are multiples of 16.
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
    """Allow a kernel as much shared memory as a block may have, as Triton does.

    With only what it needs, fewer blocks fit on a multiprocessor.
    """
    device, most, static = c_int(), c_int(), c_int()
    driver("cuCtxGetDevice", byref(device))
    driver("cuDeviceGetAttribute", byref(most), c_int(MOST_SHARED_OF_A_BLOCK), device)
    driver("cuFuncGetAttribute", byref(static), c_int(STATIC_SHARED_SIZE), function)
    driver("cuFuncSetCacheConfig", function, c_int(PREFER_SHARED))
    allowed = c_int(most.value - static.value)
    driver("cuFuncSetAttribute", function, c_int(MAX_DYNAMIC_SHARED_SIZE), allowed)


def tensor_in(memories: Sequence[Tensor], tensor: dict[str, Any]) -> Tensor:
    """A tensor of a list, as a view into one of the memories; the last of them is the arena."""
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
        tensors = [tensor_in(memories, tensor) for tensor in self._tensors]
        self._function(*tensors, out=tensor_in(memories, self._out), **self._factors)


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
        self._values = values  # kept alive: the addresses below point into them
        self._arguments = (c_void_p * len(values))(*map(ctypes.addressof, values))

    def __call__(self, memories: Sequence[Tensor], stream: c_void_p) -> None:
        for value, (memory, offset) in self._pointers:
            value.value = memories[memory].data_ptr() + offset
        driver("cuLaunchKernel", self._function, *self._shape, stream, self._arguments, None)
