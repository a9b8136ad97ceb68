"""The replay of several ranks: each has a shard of it on its own device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spreeze.learning.replay import Replay
from spreeze.rows import Placement, Rows, as_matrix
from spreeze.spec import Floats

POLL_S = 0.0005


class ShardedReplay:
    """The newest rows, dealt out to the replays of all ranks in turn; used like a `Replay`.

    Of R ranks, rank n % R has row n, as its row n // R. So a row's number says where it is, and a
    checkpoint does not depend on the number of ranks.
    """

    def __init__(self, shards: Sequence[Replay]) -> None:
        """Deal rows out to these replays, which are empty and of one size."""
        self.shards = shards
        self.layout, self.device = shards[0].layout, shards[0].device
        self.capacity = sum(shard.capacity for shard in shards)
        self.slack = sum(shard.slack for shard in shards)
        self.buffer_rows = sum(shard.buffer_rows for shard in shards)
        """Rows that one `insert_from` appends at most."""
        self._buffer = np.zeros(self.buffer_rows, self.layout.dtype)
        self.num_inserted = 0
        """Rows written since the start."""
        self._arriving: list[tuple[Tensor, Tensor]] = []
        """What is being read: where rows of a shard belong, and where they arrive."""

    @property
    def placement(self) -> Placement:
        """Where the rows are; on the GPU if those of any rank are."""
        found = [shard.placement for shard in self.shards]
        return "gpu" if "gpu" in found else found[0]

    @property
    def num_rows(self) -> int:
        """Rows in the window."""
        return sum(shard.num_rows for shard in self.shards)

    @property
    def num_drawable(self) -> int:
        """How many rows, or transitions in them, updates choose from."""
        return sum(shard.num_drawable for shard in self.shards)

    @property
    def oldest(self) -> int:
        """The number of the oldest row in the window."""
        return self.num_inserted - self.num_rows

    @property
    def written(self) -> Tensor:
        """Rows that have been written, on the first device: those of the first rank."""
        return self.shards[0].written

    def insert_from(self, fill: Callable[[Rows], Rows]) -> Rows:
        """Append the rows that `fill` writes at the front of a buffer and returns, until the next call."""
        rows = fill(self._buffer)
        self.insert(rows)
        return rows

    def insert(self, rows: Rows) -> None:
        """Append rows from any memory, overwriting the oldest."""
        if len(rows) == 0:
            return
        words, ranks = as_matrix(rows[-self.capacity :]), len(self.shards)
        for i, shard in enumerate(self.shards):
            mine = words[(i - self.num_inserted) % ranks :: ranks]
            for first in range(0, len(mine), shard.buffer_rows):
                shard.insert_from(partial(_copy, mine[first : first + shard.buffer_rows]))
        self.num_inserted += len(words)

    def start_reading(self, first: int, into: Tensor) -> None:
        """Start to copy rows of the window to the host, from number `first` on, beside updates."""
        ranks, on_gpu = len(self.shards), self.device.type == "cuda"
        for i, shard in enumerate(self.shards):
            skipped = (i - first) % ranks
            place = into[skipped::ranks]
            arrived = torch.empty(place.shape, pin_memory=on_gpu)
            shard.start_reading((first + skipped) // ranks, arrived)
            self._arriving.append((place, arrived))

    @property
    def has_read(self) -> bool:
        """Whether what `start_reading` copies has arrived."""
        if not all(shard.has_read for shard in self.shards):
            return False
        for place, arrived in self._arriving:
            place.copy_(arrived)
        self._arriving = []
        return True

    def newest(self, num: int) -> Tensor:
        """Up to `num` of the newest rows, on the host. This waits for the devices."""
        num = min(num, self.num_rows)
        rows = torch.empty(num, self.layout.width)
        self.start_reading(self.num_inserted - num, rows)
        while not self.has_read:
            time.sleep(POLL_S)
        return rows

    def mend_priorities(self) -> None:
        """Give rows whose priority is not finite the largest finite one of their rank."""
        for shard in self.shards:
            shard.mend_priorities()

    def move_to_host(self) -> None:
        """Move the rows to page-locked host memory. Captured updates are invalid afterwards."""
        for shard in self.shards:
            if shard.placement == "gpu":
                shard.move_to_host()


def _copy(words: Floats, buffer: Rows) -> Rows:
    """Copy rows to the front of a buffer."""
    as_matrix(buffer)[: len(words)] = words
    return buffer[: len(words)]


AnyReplay = Replay | ShardedReplay
"""Of one device, or of several ranks."""
