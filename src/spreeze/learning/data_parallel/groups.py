"""The process groups of torch.distributed through which ranks exchange numbers.

The ranks are threads of the learner. So a rank that fails ends the whole learner, which is started again
like any process, and nothing is left behind when it is killed. Every rank has its own process group.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

c10d: Any = distributed
"""Torch's type stubs do not know all of it."""
LIMIT = timedelta(minutes=10)
"""How long a rank waits for the others. A learner that hangs is ended much sooner."""
LOOPBACK = "127.0.0.1"


class Groups:
    """The process groups of all ranks; each rank calls `join` in its thread."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        """One rank for each of these devices."""
        self._num_ranks = len(devices)
        self.capturable = all(device.type == "cuda" for device in devices) and _distinct(devices)
        """Whether the GPUs exchange numbers themselves, so that a CUDA graph may hold the exchange."""
        self._store = c10d.HashStore()
        self._groups: dict[int, Any] = {}

    def join(self, rank: int) -> Any:
        """The group of a rank. The first call of each waits for the others."""
        if rank not in self._groups:
            place = (self._store, rank, self._num_ranks)
            self._groups[rank] = _nccl(*place) if self.capturable else _gloo(*place)
        return self._groups[rank]

    def abort(self, rank: int) -> None:
        """This rank has failed: let the others fail, which would wait for it."""
        if not self.capturable:
            self._groups.pop(rank, None)  # nobody else has it, so its connections close
            return
        for group in list(self._groups.values()):
            group.abort()


def _gloo(*place: Any) -> Any:
    gloo = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = LIMIT
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    return gloo(*place, options)


def _nccl(*place: Any) -> Any:
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # the ranks are on one machine
    # Graphs are captured one after another: a capture must not wait for another rank's.
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = LIMIT
    return c10d.ProcessGroupNCCL(*place, options)


def _distinct(devices: Sequence[torch.device]) -> bool:
    return len({device.index or 0 for device in devices}) == len(devices)
