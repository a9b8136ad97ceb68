"""The arena: one block of anonymous shared memory that holds every wire of a run.

A memfd has no name, so nothing can be left in /dev/shm, no other user can open it, and Docker's
small /dev/shm does not limit it; it goes when the last process that maps it goes, however it dies.
Its pages are taken at creation (`posix_fallocate`): a sparse block ends in SIGBUS later. Sealed
against resizing, so that no process can cut the memory under another.

The protocols of the wires rely on stores becoming visible in program order, which x86-64 gives
and ARM64 does not; `placement.supports_wires` refuses there.
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
    """One named array in the arena."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def num_bytes(self) -> int:
        """Its size, rounded up so that two blocks never share a cache line."""
        size = math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)
        return -(-size // CACHE_LINE) * CACHE_LINE


def arena_bytes(blocks: list[Block]) -> int:
    """Bytes that an arena of these blocks takes."""
    return sum(block.num_bytes for block in blocks)


class Arena:
    """Named arrays in shared memory; the creator hands `fd` and `blocks` to those who attach."""

    def __init__(self, fd: int, blocks: list[Block]) -> None:
        """Map the memory behind `fd`; it must have been made for the same blocks."""
        self.fd = fd
        self.blocks = blocks
        expected = arena_bytes(blocks)
        if (found := os.fstat(fd).st_size) != expected:
            raise ValueError(f"shared memory holds {found} bytes, the layout asks for {expected}")
        memory = mmap.mmap(fd, expected)
        self._arrays: dict[str, NDArray[Any]] = {}
        offset = 0
        for block in blocks:
            array: NDArray[Any] = np.ndarray(block.shape, block.dtype, buffer=memory, offset=offset)
            self._arrays[block.name] = array
            offset += block.num_bytes

    @staticmethod
    def create(blocks: list[Block]) -> Arena:
        """Take and seal the memory; OSError if the machine has not got it."""
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
        """Give back the descriptor; the mapping goes with the last array that looks into it."""
        self._arrays.clear()
        os.close(self.fd)
