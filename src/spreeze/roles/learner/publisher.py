"""Publishes policies to the weights wire."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spreeze.faults import fault_point
from spreeze.learning.replay_memory import blocking_event
from spreeze.roles.context import Context
from spreeze.spec import Floats


class PolicyPublisher:
    """Publishes policies; on a GPU each one while the next updates already run."""

    def __init__(self, ctx: Context, size: int, device: torch.device) -> None:
        """Publish policies of `size` numbers to the weights wire of `ctx`."""
        self._ctx = ctx
        self._slots = [_Slot(size) for _ in range(2)] if device.type == "cuda" else []
        self._pending: _Slot | None = None

    def send(self, policy: Tensor, updates: int) -> bool:
        """Take the policy after `updates` updates. On a GPU, publish the one taken before.

        This waits for the updates of the one before, so at most two chunks are ever enqueued. False
        if the policy holds NaN or infinity: then it is not published, and samplers keep the last good one.
        """
        if not self._slots:
            return self._publish(policy.numpy(), updates)
        slot = self._slots[0]
        self._slots.reverse()
        slot.take(policy, updates)
        finite = self.flush()
        self._pending = slot
        return finite

    def flush(self) -> bool:
        """Publish the policy that was taken but is not published yet, if any. False if it is not finite."""
        if self._pending is None:
            return True
        slot, self._pending = self._pending, None
        return self._publish(slot.wait(), slot.updates)

    def drop(self) -> None:
        """Do not publish the policy that was taken."""
        self._pending = None

    def _publish(self, vector: Floats, updates: int) -> bool:
        if not np.isfinite(vector.sum()):
            return False
        self._ctx.weights.publish(vector, updates, self._ctx.control.env_steps)
        fault_point("learner.published")
        return True


class _Slot:
    """Page-locked memory for a policy that is copied from the GPU."""

    def __init__(self, size: int) -> None:
        self._vector = torch.zeros(size, pin_memory=True)
        self._arrived = blocking_event()
        self.updates = 0

    def take(self, policy: Tensor, updates: int) -> None:
        self._vector.copy_(policy, non_blocking=True)
        self._arrived.record()
        self.updates = updates

    def wait(self) -> Floats:
        self._arrived.synchronize()
        return self._vector.numpy()
