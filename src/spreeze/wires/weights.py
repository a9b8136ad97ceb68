"""The weights wire: the learner publishes the policy, all other roles fetch the newest one.

Published vectors rotate through three slots, each with its own version and checksum:

    Writer:  seal[slot] = 0; write data, counters and checksum; seal[slot] = version; newest = version
    Reader:  version = newest; copy slot version % 3; accept only if seal[slot] is still `version`
             after the copy and the checksum of the copy is right, else keep the old weights.

Readers never block the writer. A reader finds its slot overwritten only if two more versions are
published during one copy; then it keeps its old weights and tries again later. A learner that is killed
while it writes leaves the last version readable, because it never touches that slot. Version 0 means
that nothing is published yet.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from spreeze.faults import fault_point
from spreeze.spec import Floats
from spreeze.wires.arena import Arena, Block

SLOTS = 3
ASKED = "asked"
"""The wire with the policy that another machine is asked to evaluate; `updates` is the seed of its episodes."""
SEAL, CHECKSUM, UPDATES, ENV_STEPS = range(4)


@dataclass(frozen=True)
class Stamp:
    """Which weights these are: their version, and the counters at the time of publication."""

    version: int = 0
    updates: int = 0
    env_steps: int = 0


def weights_blocks(size: int, name: str = "weights") -> list[Block]:
    """Memory for vectors of `size` numbers; `name` tells several such wires apart."""
    return [
        Block(f"{name}.newest", (1,), np.int64),
        Block(f"{name}.slots", (SLOTS, 8), np.int64),
        Block(f"{name}.data", (SLOTS, size), np.float32),
    ]


class Weights:
    """Both ends of the wire. One process publishes, any number fetch."""

    def __init__(self, arena: Arena, name: str = "weights") -> None:
        """Open the wire of this name in an arena that was created with `weights_blocks`."""
        self._newest = arena[f"{name}.newest"]
        self._slots = arena[f"{name}.slots"]
        self._data = arena[f"{name}.data"]
        self.size: int = self._data.shape[1]

    @property
    def version(self) -> int:
        """The newest published version; 0 before the first."""
        return int(self._newest[0])

    def publish(self, vector: Floats, updates: int, env_steps: int) -> int:
        """Make `vector` the newest policy; returns its version."""
        if vector.shape != (self.size,) or vector.dtype != np.float32:
            raise ValueError(f"{vector.dtype}{vector.shape} is not a policy of {self.size} float32")
        version = self.version + 1
        slot = self._slots[version % SLOTS]
        slot[SEAL] = 0
        self._data[version % SLOTS] = vector
        fault_point("weights.mid_publish")
        slot[CHECKSUM] = zlib.crc32(np.ascontiguousarray(vector).data)
        slot[UPDATES], slot[ENV_STEPS] = updates, env_steps
        slot[SEAL] = version
        self._newest[0] = version
        return version

    def clear(self) -> None:
        """Start again with nothing published. No reader may be open."""
        self._newest[:] = 0
        self._slots[:] = 0

    def fetch(self, into: Floats, have: int) -> Stamp | None:
        """Copy the newest policy if it is not version `have`; None means keep what you have.

        If it returns None although there is a new version, `into` may hold torn data. Fetch into a spare
        vector, never into the one in use; `WeightsReader` does so.
        """
        version = self.version
        if version == have:
            return None
        slot = self._slots[version % SLOTS]
        into[:] = self._data[version % SLOTS]
        stamp = Stamp(version, int(slot[UPDATES]), int(slot[ENV_STEPS]))
        checksum = int(slot[CHECKSUM])
        if int(slot[SEAL]) != version or zlib.crc32(into.data) != checksum:
            return None
        return stamp


class WeightsReader:
    """Keeps a vector at the newest published weights; torn data never reaches it."""

    def __init__(self, weights: Weights, vector: Floats) -> None:
        """Follow `weights` with `vector`, which is changed in place."""
        self._weights, self._vector = weights, vector
        self._spare = vector.copy()
        self.stamp = Stamp()
        """Which weights the vector holds; version 0 before the first."""

    def refresh(self) -> bool:
        """Fetch the newest weights; returns whether the vector changed."""
        stamp = self._weights.fetch(self._spare, self.stamp.version)
        if stamp is None:
            return False
        self._vector[:] = self._spare
        self.stamp = stamp
        return True
