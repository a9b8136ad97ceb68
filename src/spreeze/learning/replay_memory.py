"""The memory of the replay: where its rows are, and how copies into it are ordered with updates."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor

from spreeze.rows import Placement

PORTABLE_AND_MAPPED = 3  # flags of cudaHostRegister


def blocking_event() -> torch.cuda.Event:
    """A CUDA event whose waiters sleep instead of spinning on a core."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


class CopyStream:
    """Orders copies of new rows with the updates that read the replay, by CUDA streams and events."""

    def __init__(self, device: torch.device) -> None:
        """No copy is under way."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._moved = blocking_event()
        self._copied = [blocking_event() for _ in range(2)]
        self._read = blocking_event()
        self.window_moved()

    def wait_for_buffer(self) -> None:
        """Wait until the last copy out of the next buffer is done."""
        self._copied[0].synchronize()

    def wait_for_readers(self) -> None:
        """Wait until no update reads the rows that the window has left."""
        self._moved.synchronize()

    def window_moved(self) -> None:
        """Updates that are enqueued from now on read the window as it is now."""
        self._moved.record(torch.cuda.current_stream(self._device))

    @contextmanager
    def beside_updates(self) -> Iterator[None]:
        """Copy while updates run; updates that are enqueued later wait for the copy."""
        self._stream.wait_event(self._moved)
        with torch.cuda.stream(self._stream):
            yield
            self._copied[0].record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._copied[0])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read rows while updates run; rows that are written later wait."""
        with torch.cuda.stream(self._stream):
            yield
            self._read.record(self._stream)

    @property
    def has_read(self) -> bool:
        """Whether the last reading is done."""
        return bool(self._read.query())  # type: ignore[no-untyped-call]

    def wait_until_read(self) -> None:
        """Wait for the last reading."""
        self._read.synchronize()

    def next_buffer(self) -> None:
        """The next copy comes out of the other buffer."""
        self._copied.reverse()


class _ReplayMemory:
    """An address and a shape, for `torch.as_tensor`. The tensor keeps this object, and so the owner."""

    def __init__(self, owner: Tensor, shape: tuple[int, int]) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (owner.data_ptr(), False),
            "version": 3,
        }


def allocate(
    shape: tuple[int, int], device: torch.device, placement: Placement
) -> tuple[Tensor, Tensor]:
    """The rows as the host writes them, and as updates read them."""
    if device.type == "cuda" and placement == "gpu":
        rows = torch.zeros(shape, device=device)
        return rows, rows
    # The system gives numpy's zeros when they are touched; torch writes its own, half a second for each gigabyte.
    rows = torch.from_numpy(np.zeros(shape, np.float32))
    if device.type == "cpu":
        return rows, rows
    return rows, _map_to_device(rows, device) if placement == "pinned" else rows


def allocate_shape_only(
    shape: tuple[int, int], device: torch.device, placement: Placement
) -> tuple[Tensor, Tensor]:
    """A tensor of that shape with memory for its first row only, filled with random numbers."""
    if device.type == "cpu" or placement == "host":
        return allocate(shape, device, placement)
    rows = torch.as_tensor(
        _ReplayMemory(torch.randn(1, shape[1], device=device), shape), device=device
    )
    return rows, rows


def _map_to_device(rows: Tensor, device: torch.device) -> Tensor:
    """Host memory as a tensor of the device, which reads it over the bus."""
    # Locked in place: torch rounds its own page-locked memory up to powers of two.
    cuda, address = torch.cuda.cudart(), rows.data_ptr()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = int(cuda.cudaHostRegister(address, rows.nbytes, PORTABLE_AND_MAPPED))
    if code != 0:
        with suppress(RuntimeError):
            torch.zeros(1, device=device)  # clears the error that CUDA keeps for the next call
        raise torch.OutOfMemoryError(
            f"{rows.nbytes / 2**30:.1f} GiB of host memory could not be page-locked (CUDA error {code})"
        )
    memory = _ReplayMemory(rows, (rows.shape[0], rows.shape[1]))
    weakref.finalize(memory, cuda.cudaHostUnregister, address).atexit = False
    data = torch.as_tensor(memory, device=device)
    if data.data_ptr() != address:
        raise RuntimeError("this system cannot read host memory from the GPU by its own address")
    return data
