"""Copies between two devices that learn side by side: on streams of their own, never torn.

A `Channel` goes one way and has a few slots. A slot belongs to the sender or to the receiver, never to
both; it changes hands under a lock. What a GPU still has to do with it then is ordered by events:

    sender's stream     copy into the slot's stage
    copy stream         wait for that, and until the receiver has read the slot; stage -> slot
    receiver's stream   wait for the copy; read; say so

so neither side's stream waits for a copy that it does not need, and the hosts wait for nothing but
each other. Between GPUs without access to each other's memory CUDA itself goes through the host's.
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
    """Room for one set of tensors on the receiver's device."""

    def __init__(self, route: _Route) -> None:
        """Empty; memory is taken when the first tensors come, which say how much."""
        self.version = -1
        self.tensors: list[Tensor] = []
        self._route = route
        self._stage: list[Tensor] = []
        self._staged, self._arrived, self._read = (route.event() for _ in range(3))

    @property
    def arrived(self) -> bool:
        """Whether the tensors are there; on CPUs they always are."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def fill(self, tensors: Sequence[Tensor], version: int) -> None:
        """Send copies of these on their way; called by the sender, in its own stream."""
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
            self._arrived.synchronize()  # the stage is read until then
        _copy(self._stage, tensors)
        if route.source.type == "cuda":
            self._staged.record(torch.cuda.current_stream(route.source))
            route.stream.wait_event(self._staged)
        route.stream.wait_event(self._read)
        with route.beside():
            _copy(self.tensors, self._stage)
            self._arrived.record(route.stream)

    def read(self, into: Sequence[Tensor]) -> None:
        """Copy what has come; called by the receiver, in its own stream, which waits for the arrival."""
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
        self.tensors = [route.room(x, route.target) for x in like]
        if route.stream is not None:
            self._stage = [route.room(x, route.source) for x in like]


class _Route:
    """From one device to another: the streams that copies go on, none between CPUs."""

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self.source, self.target = source, target
        gpus = [device for device in (source, target) if device.type == "cuda"]
        self.stream = torch.cuda.Stream(gpus[0]) if gpus else None  # type: ignore[no-untyped-call]
        # torch lets a copy between GPUs wait for the current streams of both: so both are private.
        self._streams = [self.stream, *(torch.cuda.Stream(gpu) for gpu in gpus[1:])]  # type: ignore[no-untyped-call]

    def event(self) -> torch.cuda.Event | None:
        """One whose wait is asleep."""
        return torch.cuda.Event(blocking=True) if self.stream else None  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Enqueue beside whatever the two devices are doing."""
        with contextlib.ExitStack() as stack:
            for stream in reversed(self._streams):
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def room(self, like: Tensor, device: torch.device) -> Tensor:
        """Memory for a tensor on one of the two; on the host page-locked if a GPU is the other."""
        locked = self.stream is not None and device.type == "cpu"
        return torch.empty(like.shape, dtype=like.dtype, device=device, pin_memory=locked)


def _copy(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for place, tensor in zip(into, tensors, strict=True):
        place.copy_(tensor, non_blocking=True)


def way_between(first: torch.device, second: torch.device) -> tuple[str, bool]:
    """How copies go between two devices, in words, and whether that is a detour."""
    if "cpu" in (first.type, second.type):
        same = first.type == second.type
        return f"{first}, {second}: {'in host memory' if same else 'over the bus'}", False
    if (first.index or 0) == (second.index or 0):
        return f"{first} named twice: two streams on one GPU", False
    if torch.cuda.can_device_access_peer(first, second):
        return f"{first}, {second}: from device to device", False
    return f"{first}, {second}: through host memory, they cannot reach each other's", True


class Channel:
    """One way from device to device, with `num_slots` copies on it at most."""

    def __init__(self, source: torch.device, target: torch.device, num_slots: int) -> None:
        """Nothing is on its way yet."""
        self.version = 0
        """Of the copy that was taken last."""
        route = _Route(source, target)
        self._free = [Slot(route) for _ in range(num_slots)]
        self._filled: list[Slot] = []
        self._changed = threading.Condition()
        self._closed = False

    def send(self, tensors: Sequence[Tensor], version: int) -> None:
        """Copy these; waits while all slots are taken."""
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

    def take_newest(self, into: Sequence[Tensor], least: int) -> None:
        """Take the newest copy that has arrived, if there is one that was not taken before.

        If what was taken before is older than `least`, one that is not is waited for; by the
        device alone, if it is on its way already.
        """
        with self._changed:
            if self.version < least:
                self._changed.wait_for(
                    lambda: self._closed or any(slot.version >= least for slot in self._filled)
                )
            good = [slot for slot in self._filled if slot.version >= least]
            arrived = [slot for slot in good if slot.arrived]
            if not arrived and self.version >= least:
                return
            if not good:
                raise ChannelClosed
            slot = arrived[-1] if arrived else good[0]
            place = self._filled.index(slot)
            self._free += self._filled[:place]
            del self._filled[: place + 1]
        self._take(slot, into)

    def close(self) -> None:
        """Whoever waits is woken; what has been sent can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, slot: Slot, into: Sequence[Tensor]) -> None:
        slot.read(into)
        self.version = slot.version
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()
