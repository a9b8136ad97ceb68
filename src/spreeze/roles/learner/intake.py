"""Moves new rows from the lanes into the replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.wires.experience import LaneReader, Lanes

LAG_SMOOTHING = 0.05


class Intake:
    """The reading ends of all lanes."""

    def __init__(self, lanes: Sequence[LaneReader]) -> None:
        """Read these lanes, which return rows as 32-bit words."""
        self._lanes = Lanes(lanes)
        self.lag = 0.0
        """How many policy versions old the newest actions are, smoothed."""

    @property
    def num_lost(self) -> int:
        """Rows that were overwritten before they were read."""
        return self._lanes.num_lost

    @property
    def positions(self) -> list[int]:
        """The number of the next row to take from each lane."""
        return self._lanes.positions

    def move_to(self, replay: AnyReplay, version: int) -> None:
        """Move new rows to the replay; beside running updates no more than its slack."""
        # Only the rows that wait now, not those written meanwhile: updates must go on.
        waiting = self._lanes.num_waiting
        while waiting > 0:
            rows = replay.insert_from(self._lanes.drain)
            if len(rows):
                # Rows have 32 bits for the version: the difference is right across their overflow.
                behind = (np.uint32(version % 2**32) - rows["version"]).view(np.int32).mean()
                self.lag += LAG_SMOOTHING * (float(behind) - self.lag)
            waiting = 0 if replay.slack else waiting - replay.buffer_rows
