"""What goes in and out of the learner: new rows from the lanes, policies to the weights wire."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spreeze.policy import Policy
from spreeze.replay import Replay, sleeping_event
from spreeze.roles.base import Context
from spreeze.spec import Floats, Rows, as_matrix
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


class Outbox:
    """Publishes policies; on a GPU each one while the updates after it run already."""

    def __init__(self, ctx: Context, policy: Policy, device: torch.device) -> None:
        """Publish to the weights wire of `ctx`."""
        self._ctx = ctx
        self._slots = [_Slot(policy.vector.size) for _ in range(2)] if device.type == "cuda" else []
        self._pending: _Slot | None = None

    def send(self, policy: Tensor, updates: int) -> None:
        """Take the policy after so many updates. On a GPU: the one before is published now.

        This waits for the updates of the one before, so that never more than two chunks are enqueued.
        """
        if not self._slots:
            self._publish(policy.numpy(), updates)
            return
        slot = self._slots[0]
        self._slots.reverse()
        slot.take(policy, updates)
        self.flush()
        self._pending = slot

    def flush(self) -> None:
        """Publish what was taken and is not out yet."""
        if self._pending is not None:
            slot, self._pending = self._pending, None
            self._publish(slot.wait(), slot.updates)

    def _publish(self, vector: Floats, updates: int) -> None:
        # Samplers stay on the last good policy if the newest one is broken.
        if np.isfinite(vector.sum()):
            self._ctx.weights.publish(vector, updates, self._ctx.control.env_steps)
        else:
            self._ctx.words["diverged"] = 1


class _Slot:
    """A policy on its way from the GPU."""

    def __init__(self, size: int) -> None:
        self._vector = torch.zeros(size, pin_memory=True)
        self._arrived = sleeping_event()
        self.updates = 0

    def take(self, policy: Tensor, updates: int) -> None:
        self._vector.copy_(policy, non_blocking=True)
        self._arrived.record()
        self.updates = updates

    def wait(self) -> Floats:
        self._arrived.synchronize()
        return self._vector.numpy()
