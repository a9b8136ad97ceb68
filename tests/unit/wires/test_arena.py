"""The arena: shared memory that is laid out, sealed, and freed in the end."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spreeze.wires.arena import CACHE_LINE, SEALS, Arena, Block, arena_bytes

BLOCKS = [
    Block("bytes", (3,), np.uint8),
    Block("number", (), np.int64),
    Block("matrix", (5, 7), np.float32),
]


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(BLOCKS)
    yield arena
    arena.close()


def num_fds() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def num_mappings() -> int:
    """Arenas that this process maps."""
    return Path("/proc/self/maps").read_text().count("memfd:spreeze")


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 9), max_size=3).map(tuple),
            st.sampled_from(["u1", "<f4", "<i8", "<i8,<f4"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_blocks_do_not_overlap(shapes: list[tuple[tuple[int, ...], str]]) -> None:
    """Each block keeps its content when all others are written, and starts on a cache line."""
    blocks = [Block(str(i), shape, dtype) for i, (shape, dtype) in enumerate(shapes)]
    arena = Arena.create(blocks)
    try:
        for i, block in enumerate(blocks):
            arena[block.name].reshape(-1).view(np.uint8)[:] = i + 1
        for i, block in enumerate(blocks):
            array = arena[block.name]
            assert (array.shape, array.dtype) == (block.shape, np.dtype(block.dtype))
            assert (array.reshape(-1).view(np.uint8) == i + 1).all()
            assert array.ctypes.data % CACHE_LINE == 0
    finally:
        arena.close()


@pytest.mark.fault("F22")
def test_memory_is_zero_and_fully_allocated(arena: Arena) -> None:
    """All pages exist, so there is no SIGBUS later."""
    assert not any(arena[block.name].any() for block in BLOCKS)
    status = os.fstat(arena.fd)
    assert status.st_size == arena_bytes(BLOCKS) == 64 + 64 + 192
    assert 512 * status.st_blocks >= status.st_size


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.fault("S17")
def test_sealed_against_resizing(arena: Arena, change: int) -> None:
    """No process can shrink or grow the memory, or change the seals."""
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, arena_bytes(BLOCKS) + change)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) == SEALS
    assert os.fstat(arena.fd).st_size == arena_bytes(BLOCKS)


def test_an_attached_arena_sees_the_same_memory(arena: Arena) -> None:
    other = Arena(os.dup(arena.fd), BLOCKS)
    arena["matrix"][2, 3] = 1.5
    other["number"][()] = 7
    assert other["matrix"][2, 3] == 1.5
    assert arena["number"] == 7
    other.close()
    assert arena["number"] == 7


@pytest.mark.fault("F25")
def test_a_different_layout_is_refused(arena: Arena) -> None:
    """Programs of different versions do not read each other's memory; the descriptor stays open."""
    before = num_fds()
    with pytest.raises(ValueError, match="shared memory holds 320 bytes, the layout needs 128"):
        Arena(arena.fd, BLOCKS[:2])
    assert num_fds() == before
    assert os.fstat(arena.fd)


@pytest.mark.fault("S17")
def test_nothing_is_left_after_close() -> None:
    """No descriptor and no mapping remain, and there never was a name in /dev/shm."""
    names, files, mappings = os.listdir("/dev/shm"), num_fds(), num_mappings()
    arena = Arena.create(BLOCKS)
    assert os.listdir("/dev/shm") == names
    assert num_fds() > files
    assert num_mappings() == mappings + 1
    arena.close()
    assert (os.listdir("/dev/shm"), num_fds(), num_mappings()) == (names, files, mappings)


def test_an_array_in_use_outlives_close() -> None:
    """A role may read its words until it ends: the mapping lasts as long as the last array."""
    mappings = num_mappings()
    arena = Arena.create(BLOCKS)
    number = arena["number"]
    arena.close()
    number[()] = 5
    assert number == 5
    del number
    assert num_mappings() == mappings


def test_the_descriptor_is_not_inheritable(arena: Arena) -> None:
    assert not os.get_inheritable(arena.fd)


@pytest.mark.fault("F23")
@pytest.mark.fault("F21")
def test_running_out_of_memory_raises_and_leaves_no_descriptor() -> None:
    """A limit on file sizes stands in for a full machine: the kernel refuses at the same point."""
    files = num_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            Arena.create([Block("large", (1 << 21,), np.uint8)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert num_fds() == files
