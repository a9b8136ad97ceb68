"""The arena: one block of anonymous shared memory that holds every wire of a run.

It is a memfd. It has no name, so nothing can be left in /dev/shm, no other user can open it, and Docker's
small /dev/shm does not limit it. The kernel frees it when the last process that maps it ends, however
that process ends. All pages are allocated at creation (`posix_fallocate`): a sparse block would end in
SIGBUS later. It is sealed against resizing, so no process can cut the memory under another.

The protocols of the wires rely on stores becoming visible in program order. x86-64 guarantees that,
ARM64 does not, and `machine.facts.shared_memory_problem` refuses to run there.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LINE = 64
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Block:
    """A named array in the arena."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def num_bytes(self) -> int:
        """Its size, rounded up so that two blocks never share a cache line."""
        size = math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)
        return -(-size // CACHE_LINE) * CACHE_LINE


def arena_bytes(blocks: list[Block]) -> int:
    """Size of an arena with these blocks."""
    return sum(block.num_bytes for block in blocks)


class Arena:
    """Named arrays in shared memory. The creator passes `fd` and `blocks` to the processes that attach."""

    def __init__(self, fd: int, blocks: list[Block]) -> None:
        """Map the memory behind `fd`, which must have been created with the same blocks."""
        self.fd = fd
        self.blocks = blocks
        expected = arena_bytes(blocks)
        if (found := os.fstat(fd).st_size) != expected:
            raise ValueError(f"shared memory holds {found} bytes, the layout needs {expected}")
        memory = mmap.mmap(fd, expected)
        self._arrays: dict[str, NDArray[Any]] = {}
        offset = 0
        for block in blocks:
            array: NDArray[Any] = np.ndarray(block.shape, block.dtype, buffer=memory, offset=offset)
            self._arrays[block.name] = array
            offset += block.num_bytes

    @staticmethod
    def create(blocks: list[Block]) -> Arena:
        """Allocate and seal the memory; OSError if the machine does not have it."""
        fd = os.memfd_create("spreeze", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, arena_bytes(blocks))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            return Arena(fd, blocks)
        except BaseException:
            os.close(fd)
            raise

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def close(self) -> None:
        """Close the descriptor. The mapping lasts as long as any array still points into it."""
        self._arrays.clear()
        os.close(self.fd)
