"""Policies from the learner to the weights wire."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spreeze.learning.replay import sleeping_event
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.spec import Floats


class PolicyPublisher:
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
            self._ctx.counters["diverged"] = 1


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
