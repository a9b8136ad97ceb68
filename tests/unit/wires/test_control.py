"""The control wire: where the words lie, and what is read from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from spreeze.wires.arena import CACHE_LINE, Arena
from spreeze.wires.control import Control, control_blocks

NUM_SAMPLERS = 3


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(control_blocks(NUM_SAMPLERS))
    yield arena
    arena.close()


@pytest.fixture
def control(arena: Arena) -> Control:
    return Control(arena)


def test_no_two_writers_share_a_cache_line(control: Control) -> None:
    """Each role's record begins and ends at a line's border and lies in nobody else's."""
    records = [
        control.supervisor[None],
        control.learner[None],
        *(control.samplers[i : i + 1] for i in range(NUM_SAMPLERS)),
        control.evaluator[None],
    ]
    places = sorted((record.ctypes.data, record.nbytes) for record in records)
    assert all(start % CACHE_LINE == 0 and size % CACHE_LINE == 0 for start, size in places)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(places))


def test_every_word_is_eight_aligned_bytes() -> None:
    """So that none is ever read half-written."""
    for block in control_blocks(NUM_SAMPLERS):
        for name, (dtype, offset) in block.dtype.fields.items():
            assert offset % 8 == 0
            assert name == "spare" or dtype.itemsize == 8


def test_all_words_start_at_zero(control: Control) -> None:
    for table in (control.supervisor, control.learner, control.samplers, control.evaluator):
        assert not np.any(table.view(np.uint8) if table.ndim else table[None].view(np.uint8))


def test_the_stop_flag_reaches_who_attached(arena: Arena, control: Control) -> None:
    theirs = Arena(os.dup(arena.fd), arena.blocks)
    other = Control(theirs)
    assert not other.stopping
    control.supervisor["stop"] = 1
    assert other.stopping is True
    theirs.close()


def test_env_steps_is_the_sum_over_samplers(control: Control) -> None:
    """Each sampler writes its own word only; the sum may be larger than 32 bits."""
    assert control.env_steps == 0
    for i in range(NUM_SAMPLERS):
        words = control.samplers[i]
        words["env_steps"] += 2**40 + i
    assert control.env_steps == 3 * 2**40 + 3
