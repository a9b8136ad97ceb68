"""The wires under fire: real processes that are killed at random, and every row is verified.

All content is made of its number and of the life that wrote it, a writer from its start to its
death; so a mix of two rows, of two versions or of two lives does not go unseen.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import pytest

from spreeze.backends.forkserver import die_with_parent
from spreeze.spec import EnvSpec, Floats, Rows, transition_layout
from spreeze.wires.arena import Arena, Block
from spreeze.wires.experience import COMMITTED, Experience, LaneReader, experience_blocks
from spreeze.wires.weights import Weights, weights_blocks

# The children only touch numpy arrays and leave by os._exit: threads of ours do not matter.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NUM_LIVES = 40
LONGEST_LIFE_S = 0.15
LAYOUT = transition_layout(
    EnvSpec(id="", obs_shape=(50,), action_shape=(4,), action_low=(-1,) * 4, action_high=(1,) * 4)
)
CAPACITY, BLOCK = 64, 8
NUM_WEIGHTS = 65_536  # 256 KiB
ACCEPTED, REFUSED, TORN = range(3)


class Children:
    """Forked processes, all of which are dead and reaped in the end."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def start(self, function: Callable[..., None], *arguments: Any) -> int:
        """Call a function in a child; its exit code is 0 if that returns."""
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            _be_child(parent, function, arguments)
        self.pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End a child that must still be running."""
        os.kill(pid, signal.SIGKILL)
        assert self.reap(pid) == -signal.SIGKILL, "the child had ended by itself"

    def reap(self, pid: int) -> int:
        """Wait for the end of a child; returns its exit code."""
        _, status = os.waitpid(pid, 0)
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(status)


def _be_child(parent: int, function: Callable[..., None], arguments: Any) -> NoReturn:
    try:
        die_with_parent(parent)
        function(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    for pid in list(children.pids):
        os.kill(pid, signal.SIGKILL)
        children.reap(pid)


@contextmanager
def arena_of(*blocks: Block) -> Iterator[Arena]:
    arena = Arena.create(list(blocks))
    try:
        yield arena
    finally:
        arena.close()


# --- experience


def fill(rows: Rows, numbers: Any, lives: Any) -> None:
    """Write the rows with these numbers, as these lives write them."""
    mark = np.asarray(numbers)[:, None] * 31 % 65_521 + np.asarray(lives)[:, None] * 100_000
    rows["obs"] = mark + np.arange(50)
    rows["action"] = np.asarray(lives)[:, None]
    rows["reward"] = mark[:, 0] + 0.5
    rows["discount"] = -mark[:, 0]
    rows["next_obs"] = mark - np.arange(50)
    rows["version"] = np.asarray(numbers) % 2**32


def num_wrong(rows: Rows, first: int) -> int:
    """How many of these rows are not what some life wrote as number `first` and following."""
    expected = rows.copy()
    with np.errstate(invalid="ignore"):
        fill(expected, first + np.arange(len(rows)), rows["action"][:, 0].astype(np.int64))
    return sum(got != wanted for got, wanted in zip(rows.tolist(), expected.tolist(), strict=True))


def write_for_ever(arena: Arena, life: int) -> None:
    """A sampler: commits blocks, often cut short; makes a mess of its slots before it fills them."""
    writer = Experience(arena, BLOCK).writer(0)
    number = int(arena["experience.words"][0, COMMITTED])
    sizes = random.Random(life).choices(range(1, BLOCK + 1), k=997)
    while True:
        for size in sizes:
            slots = writer.reserve()
            slots.view(np.uint8)[:] = 0xFF
            fill(slots[:size], np.arange(number, number + size), np.full(size, life))
            writer.commit(size)
            number += size
