"""Copies between two devices that learn side by side, on separate streams.

A `Channel` goes one way and has a few slots. A slot belongs either to the sender or to the receiver, and
changes hands under a lock. The work that a GPU still has to do on it is ordered by events:

    sender's stream     copy into the slot's staging memory
    copy stream         wait for that, and until the receiver has read the slot; copy it over
    receiver's stream   wait for the copy; read; record that it has read

So neither side's stream waits for a copy that it does not need, and the host threads wait only for each
other. Between GPUs that cannot access each other's memory, CUDA itself goes through the host.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class ChannelClosed(Exception):
    """The other side has ended."""


class Slot:
    """Memory for one set of tensors on the receiver's device."""

    def __init__(self, route: _Route) -> None:
        """Memory is allocated when the first tensors are sent, because they say how much."""
        self.version = -1
        self.tensors: list[Tensor] = []
        self._route = route
        self._staging: list[Tensor] = []
        self._staged, self._arrived, self._read = (route.event() for _ in range(3))

    @property
    def arrived(self) -> bool:
        """Whether the tensors have arrived; between CPUs always."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def fill(self, tensors: Sequence[Tensor], version: int) -> None:
        """Start to copy these; called by the sender, in its stream."""
        self.version = version
        if not self.tensors:
            self._allocate(tensors)
        route = self._route
        if route.stream is None:
            _copy(self.tensors, tensors)
            return
        assert self._staged is not None
        assert self._arrived is not None
        assert self._read is not None
        if route.source.type == "cuda":
            torch.cuda.current_stream(route.source).wait_event(self._arrived)
        else:
            self._arrived.synchronize()  # the last copy reads the staging memory until then
        _copy(self._staging, tensors)
        if route.source.type == "cuda":
            self._staged.record(torch.cuda.current_stream(route.source))
            route.stream.wait_event(self._staged)
        route.stream.wait_event(self._read)
        with route.beside_updates():
            _copy(self.tensors, self._staging)
            self._arrived.record(route.stream)

    def read(self, into: Sequence[Tensor]) -> None:
        """Copy what has arrived; called by the receiver, in its stream, which waits for the arrival."""
        target = self._route.target
        if self._arrived is not None:
            if target.type == "cuda":
                torch.cuda.current_stream(target).wait_event(self._arrived)
            else:
                self._arrived.synchronize()
        _copy(into, self.tensors)
        if self._read is not None and target.type == "cuda":
            self._read.record(torch.cuda.current_stream(target))

    def _allocate(self, like: Sequence[Tensor]) -> None:
        route = self._route
        self.tensors = [route.allocate(x, route.target) for x in like]
        if route.stream is not None:
            self._staging = [route.allocate(x, route.source) for x in like]


class _Route:
    """The streams for copies from one device to another; between CPUs there are none."""

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self.source, self.target = source, target
        gpus = [device for device in (source, target) if device.type == "cuda"]
        self.stream = torch.cuda.Stream(gpus[0]) if gpus else None  # type: ignore[no-untyped-call]
        # torch makes a copy between GPUs wait for the current streams of both: so both are private.
        self._streams = [self.stream, *(torch.cuda.Stream(gpu) for gpu in gpus[1:])]  # type: ignore[no-untyped-call]

    def event(self) -> torch.cuda.Event | None:
        """An event whose waiters sleep."""
        return torch.cuda.Event(blocking=True) if self.stream else None  # type: ignore[no-untyped-call]

    @contextmanager
    def beside_updates(self) -> Iterator[None]:
        """Enqueue on the private streams, beside the work of both devices."""
        with contextlib.ExitStack() as stack:
            for stream in reversed(self._streams):
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def allocate(self, like: Tensor, device: torch.device) -> Tensor:
        """Memory for a tensor on one of the two devices; page-locked on the host if the other is a GPU."""
        locked = self.stream is not None and device.type == "cpu"
        return torch.empty(like.shape, dtype=like.dtype, device=device, pin_memory=locked)


def _copy(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for place, tensor in zip(into, tensors, strict=True):
        place.copy_(tensor, non_blocking=True)


class Channel:
    """One way from device to device, with at most `num_slots` copies under way."""

    def __init__(self, source: torch.device, target: torch.device, num_slots: int) -> None:
        """Nothing has been sent yet."""
        self.version = 0
        """The version of the copy that was taken last."""
        route = _Route(source, target)
        self._free = [Slot(route) for _ in range(num_slots)]
        self._filled: list[Slot] = []
        self._changed = threading.Condition()
        self._closed = False

    def send(self, tensors: Sequence[Tensor], version: int) -> None:
        """Copy these. Waits while no slot is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._free)
            if self._closed:
                raise ChannelClosed
            slot = self._free.pop()
        slot.fill(tensors, version)
        with self._changed:
            self._filled.append(slot)
            self._changed.notify_all()

    def take_next(self, into: Sequence[Tensor]) -> None:
        """Take the oldest copy, in the order they were sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._filled)
            if not self._filled:
                raise ChannelClosed
            slot = self._filled.pop(0)
        self._take(slot, into)

    def take_newest(self, into: Sequence[Tensor], min_version: int) -> None:
        """Take the newest copy that has arrived, unless it was taken before.

        If the copy taken before is older than `min_version`, wait for one that is not. If that one is
        already under way, only the device waits.
        """
        with self._changed:
            if self.version < min_version:
                self._changed.wait_for(
                    lambda: (
                        self._closed or any(slot.version >= min_version for slot in self._filled)
                    )
                )
            new_enough = [slot for slot in self._filled if slot.version >= min_version]
            arrived = [slot for slot in new_enough if slot.arrived]
            if not arrived and self.version >= min_version:
                return
            if not new_enough:
                raise ChannelClosed
            slot = arrived[-1] if arrived else new_enough[0]
            place = self._filled.index(slot)
            self._free += self._filled[:place]
            del self._filled[: place + 1]
        self._take(slot, into)

    def close(self) -> None:
        """Wake everyone who waits. What has been sent can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, slot: Slot, into: Sequence[Tensor]) -> None:
        slot.read(into)
        self.version = slot.version
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()
