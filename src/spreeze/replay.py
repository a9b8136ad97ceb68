"""Replay: transitions on the training device; only new rows are ever copied there.

One matrix of 32-bit words, a line per transition, so that a batch is one gather. Knows nothing of
episodes: `envs` has finished every transition before it comes here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spreeze.spec import Batch, Layout, Rows, as_matrix


class Replay:
    """A ring of the newest `capacity` transitions."""

    def __init__(self, layout: Layout, capacity: int, device: torch.device) -> None:
        """Take the memory at once: running out of it must happen before the run, not in it."""
        self.layout = layout
        self.capacity = capacity
        self.data = torch.zeros(capacity, layout.width, device=device)
        # The fill, as a tensor too: a captured or compiled update reads it from the device.
        self.fill = torch.zeros((), device=device)
        self.num_rows = 0
        self._next = 0

    def insert(self, rows: Rows) -> None:
        """Append rows, overwriting the oldest."""
        fresh = torch.from_numpy(as_matrix(rows[-self.capacity :]))
        head = min(len(fresh), self.capacity - self._next)
        self.data[self._next : self._next + head].copy_(fresh[:head])
        self.data[: len(fresh) - head].copy_(fresh[head:])
        self._next = (self._next + len(fresh)) % self.capacity
        self.num_rows = min(self.num_rows + len(fresh), self.capacity)
        self.fill.fill_(self.num_rows)


def gather(data: Tensor, fill: Tensor, uniform: Tensor, columns: dict[str, slice]) -> Batch:
    """The batch at uniform numbers in [0, 1): shapes never depend on how full the replay is."""
    # Rounding can turn 0.99999997 * fill into fill itself.
    index = torch.minimum((uniform * fill).long(), (fill - 1).long())
    rows = data[index]
    part = {name: rows[:, place] for name, place in columns.items()}
    return Batch(
        obs=part["obs"],
        action=part["action"],
        reward=part["reward"].squeeze(1),
        discount=part["discount"].squeeze(1),
        next_obs=part["next_obs"],
    )
