"""Replay: a ring of transitions. Updates read a window of it while new rows are written beside it.

It is one matrix of 32-bit words with a line per transition, so a batch is one gather. It knows nothing of
episodes: `envs` has finished every transition before it arrives here.

Updates on a GPU are only enqueued and run while the next rows arrive. So the ring has `slack` rows more
than its capacity. Updates draw from the window [start, start + fill) only. New rows are written behind
its end, then the window moves on, in the order of the training stream:

    copy stream       wait for the last move; write at most `slack` rows behind the window
    training stream   updates; wait for the copy; move the window; updates; ...

The window left the overwritten rows at its last move or earlier, so every update that could read them was
enqueued before that move; and no update reads the new rows before the next move. On a CPU everything
happens in order, and there is no slack.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from spreeze.learning.replay_memory import CopyStream, allocate, allocate_shape_only
from spreeze.rows import Layout, Placement, Rows, as_matrix

BUFFER_ROWS, BUFFER_BYTES = 4096, 64 << 20
MIN_PRIORITY = 1e-6


class Replay:
    """A ring of the newest `capacity` transitions."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        device: torch.device,
        placement: Placement = "gpu",
        *,
        slack: int | None = None,
        prioritised: bool = False,
    ) -> None:
        """Allocate all memory now: a run that does not fit must fail at its start."""
        on_gpu = device.type == "cuda"
        self.layout, self.capacity = layout, capacity
        self.device, self.placement = device, placement
        self.sampled_on_host = on_gpu and placement == "host"
        """Whether the device cannot read the rows, so that the host samples batches for it."""
        overlapped = on_gpu and not self.sampled_on_host
        self.slack = slack if slack is not None else layout.slack_rows if overlapped else 0
        self._shape = (capacity + self.slack, layout.width)
        self.rows, self.data = self._allocate(placement)
        # A captured or compiled update reads it from the device. When empty, it shows one row of zeros.
        self.window = torch.tensor([0, 1], device=self.data.device)
        self.priorities: Tensor | None = None
        """The priority of each row, or of each transition in it, if they are drawn by priority; 0 outside the window."""
        if prioritised:
            self.priorities = torch.zeros(
                self._shape[0] * layout.drawn_steps, device=self.data.device
            )
            self.priorities[0] = 1
        self.start = self.num_rows = 0
        self.num_inserted = 0
        """Rows written since the start. Row number n is in slot n modulo the length of the ring."""
        self._copies = CopyStream(device) if overlapped else None
        most = max(1, min(BUFFER_ROWS, BUFFER_BYTES // layout.row_bytes))
        self.buffer_rows = min(self.slack or most, capacity)
        """Rows that one `insert_from` appends at most."""
        shape = (self.buffer_rows, layout.width)
        self._buffers = [
            torch.zeros(shape, pin_memory=overlapped).numpy().view(layout.dtype).reshape(-1)
            for _ in range(2)
        ]

    def insert_from(self, fill: Callable[[Rows], Rows]) -> Rows:
        """Append the rows that `fill` writes at the front of a free buffer and returns.

        Of two buffers one is filled while the other is still being copied. The rows that are returned
        stay valid until the next call.
        """
        if self._copies is not None:
            self._copies.wait_for_buffer()
        rows = fill(self._buffers[0])
        if len(rows):
            self.insert(rows)
            self._buffers.reverse()
            if self._copies is not None:
                self._copies.next_buffer()
        return rows

    def insert(self, rows: Rows) -> None:
        """Append rows from any memory, overwriting the oldest."""
        if len(rows) == 0:
            return
        fresh = torch.from_numpy(as_matrix(rows[-self.capacity :]))
        for piece in torch.split(fresh, self.slack or self.capacity):
            if self._copies is None:
                self._write(piece)
            elif self.placement == "pinned":
                self._copies.wait_for_readers()
                self._write(piece)
            else:
                with self._copies.beside_updates():
                    self._write(piece)
            self._move_window(len(piece))

    @property
    def num_drawable(self) -> int:
        """How many rows, or transitions in them, updates choose from."""
        return self.num_rows * self.layout.drawn_steps

    @property
    def oldest(self) -> int:
        """The number of the oldest row in the window."""
        return self.num_inserted - self.num_rows

    @property
    def written(self) -> Tensor:
        """Rows that have been written, on the device that learns, in no order."""
        return self.data[: min(self.num_inserted, len(self.data))]

    def start_reading(self, first: int, into: Tensor) -> None:
        """Start to copy rows of the window to the host, from number `first` on, beside updates.

        Rows that are written later do not disturb the copy: on a GPU both are in the copy stream.
        """
        slot = first % len(self.rows)
        head = min(len(into), len(self.rows) - slot)
        with self._copies.reading() if self._copies is not None else nullcontext():
            into[:head].copy_(self.rows[slot : slot + head], non_blocking=True)
            into[head:].copy_(self.rows[: len(into) - head], non_blocking=True)

    @property
    def has_read(self) -> bool:
        """Whether what `start_reading` copies has arrived."""
        return self._copies is None or self._copies.has_read

    def newest(self, num: int) -> Tensor:
        """Up to `num` of the newest rows, on the host. This waits for the device."""
        num = min(num, self.num_rows)
        rows = torch.empty(num, self.layout.width)
        self.start_reading(self.num_inserted - num, rows)
        if self._copies is not None:
            self._copies.wait_until_read()
        return rows

    def mend_priorities(self) -> None:
        """Give rows whose priority is not finite the largest finite one."""
        if self.priorities is not None:
            finite = self.priorities.isfinite()
            largest = self.priorities.where(finite, 0).amax().clamp(min=MIN_PRIORITY)
            self.priorities.copy_(self.priorities.where(finite, largest))

    def move_to_host(self) -> None:
        """Move the rows to page-locked host memory. Captured updates are invalid afterwards."""
        rows, data = self._allocate("pinned")
        rows.copy_(self.data)
        self.rows, self.data, self.placement = rows, data, "pinned"

    def _allocate(self, placement: Placement) -> tuple[Tensor, Tensor]:
        return allocate(self._shape, self.device, placement)

    def _write(self, fresh: Tensor) -> None:
        """Write behind the window, and on at the front of the ring."""
        slot = self.num_inserted % len(self.rows)
        head = min(len(fresh), len(self.rows) - slot)
        self.rows[slot : slot + head].copy_(fresh[:head], non_blocking=True)
        if head < len(fresh):
            self.rows[: len(fresh) - head].copy_(fresh[head:], non_blocking=True)

    def _move_window(self, num_rows: int) -> None:
        """Let the window end with the rows just written."""
        if self.priorities is not None:
            self._prioritise(num_rows)
        self.num_inserted += num_rows
        self.num_rows = min(self.num_rows + num_rows, self.capacity)
        self.start = self.oldest % len(self.rows)
        self.window[0].fill_(self.start)
        self.window[1].fill_(self.num_rows)
        if self._copies is not None:
            self._copies.window_moved()

    def _prioritise(self, num_rows: int) -> None:
        """New rows get the highest priority there is; rows that leave the window are not drawn again."""
        assert self.priorities is not None
        device, size = self.priorities.device, len(self.rows)
        priorities = self.priorities.view(size, -1)
        new = (self.num_inserted + torch.arange(num_rows, device=device)) % size
        largest = self.priorities.amax().clamp(min=MIN_PRIORITY)
        left = max(0, self.num_rows + num_rows - self.capacity)
        old = (self.start + torch.arange(left, device=device)) % size
        priorities[old] = 0
        priorities[new] = largest


class ReplayShape(Replay):
    """The shape of a replay without its memory: enough to trace an update."""

    def insert(self, rows: Rows) -> None:
        """It holds no rows."""
        raise ValueError("a replay without memory holds no rows")

    def _allocate(self, placement: Placement) -> tuple[Tensor, Tensor]:
        return allocate_shape_only(self._shape, self.device, placement)
