"""What goes in and out of the learner: new rows from the lanes, policies to the weights wire."""

from __future__ import annotations

from spreeze.learning.replay import Replay
from spreeze.rows import Rows, as_matrix
from spreeze.wires.experience import LaneReader

LAG_SMOOTHING = 0.05


class Intake:
    """The reading ends of all lanes."""

    def __init__(self, lanes: list[LaneReader]) -> None:
        """Read these lanes, which give rows as words."""
        self._lanes = lanes
        self.lag = 0.0
        """How many versions old the newest actions are, smoothed."""

    @property
    def num_lost(self) -> int:
        """Rows that were overwritten before they could be read."""
        return sum(lane.num_lost for lane in self._lanes)

    def into(self, replay: Replay, version: int) -> None:
        """Move what is new to the replay; beside running updates no more than its slack."""
        # What was there when we came, and not what is written meanwhile: updates must go on.
        waiting = sum(lane.num_waiting for lane in self._lanes)
        while waiting > 0:
            buffer = replay.buffer()
            rows = self._drain(buffer)
            if len(rows):
                replay.insert(rows)
                behind = version - float(rows["version"].mean())
                self.lag += LAG_SMOOTHING * (behind - self.lag)
            waiting = 0 if replay.slack else waiting - len(buffer)

    def _drain(self, buffer: Rows) -> Rows:
        """Fill the buffer from all lanes."""
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
                room[: len(rows)] = rows  # the first ones may have been spoilt: leave no gap
            end += len(rows)
        # If not all had a turn, others come first the next time.
        self._lanes.append(self._lanes.pop(0))
        return buffer[:end]
