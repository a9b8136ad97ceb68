"""Moves new rows from the lanes into the replay."""

from __future__ import annotations

import numpy as np

from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.rows import Rows, as_matrix
from spreeze.wires.experience import LaneReader

LAG_SMOOTHING = 0.05


class Intake:
    """The reading ends of all lanes."""

    def __init__(self, lanes: list[LaneReader]) -> None:
        """Read these lanes, which return rows as 32-bit words."""
        self._lanes, self._in_order = lanes, list(lanes)
        self.lag = 0.0
        """How many policy versions old the newest actions are, smoothed."""

    @property
    def num_lost(self) -> int:
        """Rows that were overwritten before they were read."""
        return sum(lane.num_lost for lane in self._lanes)

    @property
    def positions(self) -> list[int]:
        """The number of the next row to take from each lane."""
        return [lane.position for lane in self._in_order]

    def move_to(self, replay: AnyReplay, version: int) -> None:
        """Move new rows to the replay; beside running updates no more than its slack."""
        # Only the rows that wait now, not those written meanwhile: updates must go on.
        waiting = sum(min(lane.num_waiting, lane.capacity) for lane in self._lanes)
        while waiting > 0:
            rows = replay.insert_from(self._drain)
            if len(rows):
                # Rows have 32 bits for the version: the difference is right across their overflow.
                behind = (np.uint32(version % 2**32) - rows["version"]).view(np.int32).mean()
                self.lag += LAG_SMOOTHING * (float(behind) - self.lag)
            waiting = 0 if replay.slack else waiting - replay.buffer_rows

    def _drain(self, buffer: Rows) -> Rows:
        """Fill the front of the buffer from all lanes."""
        words, end = as_matrix(buffer), 0
        for lane in self._lanes:
            if lane.num_waiting == 0:
                continue
            room = words[end:]
            if len(room) == 0:
                break
            lost = lane.num_lost
            rows = lane.drain(room)
            if lane.num_lost > lost:
                room[: len(rows)] = rows  # the first rows were overwritten: close the gap
            end += len(rows)
        # If the buffer was too small for all lanes, another one comes first next time.
        self._lanes.append(self._lanes.pop(0))
        return buffer[:end]
