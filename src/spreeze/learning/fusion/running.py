"""Runs a fused update from its listing: kernels, and calls of the library between them.

In a listing a pointer is a place: an offset into an input, or into the arena, the memory for everything
that the update computes. Two arenas take turns, because the outputs of one call are the inputs of the next:
copying them would cost a tenth of an update.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint, c_void_p
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spreeze.learning.compiled.launches import driver, tensor_in
from spreeze.learning.fusion.program import ARENA, Listing

Memories = Sequence[Tensor]
"""Inputs, then constants, and the arena as the last."""
Start = Callable[[Listing, Memories], Callable[[Memories], None]]
"""Gets a kernel of a listing ready; what it returns starts it with these inputs."""
NUM_STREAMS = 6
"""On an H200 FastSAC at batch 2,048 makes 4,450 updates/s on one stream, 5,590 on four, 5,700 on eight."""
OUT: dict[str, Callable[..., Any]] = {
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    "aten.baddbmm.default": torch.baddbmm,
}
"""Operations that can write their result to a given place."""


CONVOLUTION = "aten.convolution.default"


class FusedUpdate:
    """A fused update, ready to be called. Its outputs stay valid until the call after the next."""

    def __init__(
        self, listing: Listing, constants: Sequence[Tensor], device: torch.device, start: Start
    ) -> None:
        """Allocate the memory and get all steps ready."""
        self._constants = constants
        self._sides = [_Side(listing, device, start) for _ in range(2)]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """One round of updates; on a GPU it is enqueued on the current stream."""
        self._sides.reverse()
        with torch.no_grad():
            return self._sides[0].run((*inputs, *self._constants))


class _Side:
    """One of the two arenas."""

    def __init__(self, listing: Listing, device: torch.device, start: Start) -> None:
        self._arena = torch.zeros(listing["arena_bytes"], dtype=torch.uint8, device=device)
        only = (self._arena,)
        self._calls = [
            start(call, only) if "kernel" in call else _Operation(call, self._arena)
            for call in listing["calls"]
        ]
        self._outputs = [tensor_in(only, output) for output in listing["outputs"]]
        self._streams = Streams(listing["waits"], device) if device.type == "cuda" else None

    def run(self, inputs: Memories) -> list[Tensor]:
        memories = (*inputs, self._arena)
        if self._streams is not None:
            self._streams.run([partial(call, memories) for call in self._calls])
        else:
            for call in self._calls:
                call(memories)
        return self._outputs


class Streams:
    """Runs steps on several streams of a GPU: most are too small to keep it busy alone."""

    def __init__(self, waits: Sequence[Sequence[int]], device: torch.device) -> None:
        """`waits` has the earlier steps that each step must wait for."""
        self._device = device
        self._of: list[int] = []
        """The stream of each step."""
        newest = [-1] * NUM_STREAMS
        for number, needed in enumerate(waits):
            after = [i for i, step in enumerate(newest) if step in needed]
            idle = min(range(NUM_STREAMS), key=lambda i: newest[i])
            stream = max(after, key=lambda i: newest[i]) if after else idle
            newest[stream] = number
            self._of.append(stream)
        self._waits = [
            [step for step in needed if self._of[step] != self._of[number]]
            for number, needed in enumerate(waits)
        ]
        self._awaited = {step for needed in self._waits for step in needed}
        self._others = [torch.cuda.Stream(device) for _ in range(NUM_STREAMS - 1)]  # type: ignore[no-untyped-call]

    def run(self, steps: Sequence[Callable[[], None]]) -> None:
        """Enqueue all steps; the current stream continues when they are done."""
        main = torch.cuda.current_stream(self._device)
        streams = [main, *self._others]
        for other in self._others:
            other.wait_stream(main)
        done: dict[int, Any] = {}
        for number, step in enumerate(steps):
            stream = streams[self._of[number]]
            for needed in self._waits[number]:
                stream.wait_event(done[needed])
            with torch.cuda.stream(stream):
                step()
            if number in self._awaited:
                done[number] = stream.record_event()
        for other in self._others:
            main.wait_stream(other)


class _Operation:
    """A call of the library."""

    def __init__(self, call: Listing, arena: Tensor) -> None:
        self._function: Any = attrgetter(call["operator"])(torch.ops)
        self._call, self._device = call, arena.device
        self._results = [x and tensor_in((arena,), x) for x in call["results"]]
        self._direct = OUT.get(call["operator"])
        if call["operator"] == CONVOLUTION and arena.is_cuda and call["arguments"][2] is None:
            self._direct = _convolve
        self._ready = None if _reads_inputs(call) else self._given((arena,))

    def _given(self, memories: Memories) -> tuple[list[Any], dict[str, Any]]:
        options = {
            k: self._device if k == "device" else _argument(v, memories)
            for k, v in self._call["options"].items()
        }
        return [_argument(x, memories) for x in self._call["arguments"]], options

    def __call__(self, memories: Memories) -> None:
        args, options = self._ready or self._given(memories)
        if self._direct is not None:
            self._direct(*args, **options, out=self._results[0])
            return
        made = self._function(*args, **options)
        made = made if isinstance(made, tuple | list) else [made]
        for tensor, result in zip(made, self._results, strict=True):
            if result is not None:
                result.copy_(tensor)


def _convolve(x: Tensor, kernel: Tensor, _bias: None, *rest: Any, out: Tensor) -> None:
    """A convolution without bias on a GPU."""
    stride, padding, dilation, _transposed, _output_padding, groups = rest
    write: Any = torch.ops.aten.cudnn_convolution.out
    tf32 = torch.backends.cudnn.allow_tf32
    write(x, kernel, padding, stride, dilation, groups, False, False, tf32, out=out)


def _reads_inputs(value: Any) -> bool:
    """Whether a tensor in the arguments of a call is not in the arena."""
    if isinstance(value, dict):
        if "tensor" in value:
            return bool(value["tensor"]["place"][0] != ARENA)
        return any(_reads_inputs(x) for key, x in value.items() if key != "results")
    return isinstance(value, list | tuple) and any(map(_reads_inputs, value))


def _argument(value: Any, memories: Memories) -> Any:
    if isinstance(value, list):
        return [_argument(x, memories) for x in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensor_in(memories, value["tensor"])
        return getattr(torch, value["torch"])
    return value


class CpuKernels:
    """Starts the kernels of a shared library."""

    def __init__(self, library: Path) -> None:
        """Load the library; its file is not needed afterwards."""
        self._library = ctypes.CDLL(str(library))

    def __call__(self, call: Listing, memories: Memories) -> Callable[[Memories], None]:
        """Get one kernel ready."""
        function = getattr(self._library, call["kernel"])
        function.restype = None
        pointers = (c_void_p * len(call["arguments"]))()
        given = _pointers(call, memories, pointers)

        def run(memories: Memories) -> None:
            for i, number, offset in given:
                pointers[i] = memories[number].data_ptr() + offset
            function(pointers)

        return run


def _pointers(call: Listing, memories: Memories, pointers: Any) -> list[tuple[int, int, int]]:
    """Fill in the pointers into the arena; returns those that depend on the inputs."""
    given = []
    for i, (number, offset) in enumerate(call["arguments"]):
        if number == ARENA:
            pointers[i] = memories[ARENA].data_ptr() + offset
        else:
            given.append((i, number, offset))
    return given


class GpuKernels:
    """Starts the kernels of some pieces of machine code."""

    def __init__(
        self, binaries: Sequence[tuple[Sequence[str], bytes]], device: torch.device
    ) -> None:
        """Load kernels: their names, and the machine code that has them."""
        self._device = device
        self._functions: dict[str, c_void_p] = {}
        torch.zeros(1, device=device)  # creates the context that the driver's calls need
        with torch.cuda.device(device):
            for names, binary in binaries:
                module = c_void_p()
                driver("cuModuleLoadData", byref(module), binary)
                for name in names:
                    function = self._functions[name] = c_void_p()
                    driver("cuModuleGetFunction", byref(function), module, name.encode())

    def __call__(self, call: Listing, memories: Memories) -> Callable[[Memories], None]:
        """Get one kernel ready."""
        function, device = self._functions[call["kernel"]], self._device
        shape = [c_uint(n) for n in (*call["grid"], *call["block"], call["shared"])]
        pointers = (c_void_p * len(call["arguments"]))()
        given = _pointers(call, memories, pointers)
        size = ctypes.sizeof(c_void_p)
        places = (c_void_p * len(pointers))(
            *(ctypes.addressof(pointers) + i * size for i in range(len(pointers)))
        )

        def run(memories: Memories) -> None:
            for i, number, offset in given:
                pointers[i] = memories[number].data_ptr() + offset
            stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
            driver("cuLaunchKernel", function, *shape, stream, places, None)

        return run
