"""Publishes policies to the weights wire."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spreeze.learning.replay_memory import blocking_event
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.spec import Floats


class PolicyPublisher:
    """Publishes policies; on a GPU each one while the next updates already run."""

    def __init__(self, ctx: Context, policy: Policy, device: torch.device) -> None:
        """Publish to the weights wire of `ctx`."""
        self._ctx = ctx
        self._slots = [_Slot(policy.vector.size) for _ in range(2)] if device.type == "cuda" else []
        self._pending: _Slot | None = None

    def send(self, policy: Tensor, updates: int) -> None:
        """Take the policy after `updates` updates. On a GPU, publish the one taken before.

        This waits for the updates of the one before, so at most two chunks are ever enqueued.
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
        """Publish the policy that was taken but is not published yet, if any."""
        if self._pending is not None:
            slot, self._pending = self._pending, None
            self._publish(slot.wait(), slot.updates)

    def _publish(self, vector: Floats, updates: int) -> None:
        # If the newest policy is broken, samplers keep the last good one.
        if np.isfinite(vector.sum()):
            self._ctx.weights.publish(vector, updates, self._ctx.control.env_steps)
        else:
            self._ctx.counters["diverged"] = 1


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
