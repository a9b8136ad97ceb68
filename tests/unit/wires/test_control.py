"""The control wire: where its words are in memory, and what is read from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from spreeze.wires.arena import CACHE_LINE, Arena
from spreeze.wires.control import CompileState, Control, control_blocks

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
    """Each record starts and ends at a cache line's border, and none overlap."""
    records = [
        control.supervisor[None],
        control.learner[None],
        *(control.samplers[i : i + 1] for i in range(NUM_SAMPLERS)),
        control.evaluator[None],
        control.visualizer[None],
    ]
    places = sorted((record.ctypes.data, record.nbytes) for record in records)
    assert all(start % CACHE_LINE == 0 and size % CACHE_LINE == 0 for start, size in places)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(places))


def test_every_word_is_eight_aligned_bytes() -> None:
    """So that no reader sees half of one."""
    for block in control_blocks(NUM_SAMPLERS):
        for name, (dtype, offset) in block.dtype.fields.items():
            assert offset % 8 == 0
            assert name == "spare" or dtype.itemsize == 8


def test_all_words_start_at_zero(control: Control) -> None:
    for table in (control.supervisor, control.learner, control.samplers, control.evaluator):
        assert not np.any(table.view(np.uint8) if table.ndim else table[None].view(np.uint8))


def test_the_stop_flag_reaches_other_processes(arena: Arena, control: Control) -> None:
    theirs = Arena(os.dup(arena.fd), arena.blocks)
    other = Control(theirs)
    assert not other.stopping
    control.supervisor["stop"] = 1
    assert other.stopping is True
    theirs.close()


def test_env_steps_is_the_sum_over_samplers(control: Control) -> None:
    """Each sampler writes only its own word; the sum may exceed 32 bits."""
    assert control.env_steps == 0
    for i in range(NUM_SAMPLERS):
        words = control.samplers[i]
        words["env_steps"] += 2**40 + i
    assert control.env_steps == 3 * 2**40 + 3


def test_moments_are_none_until_they_come(control: Control) -> None:
    assert (control.first_update_s, control.target_time_s) == (None, None)
    control.learner["first_update_s"], control.evaluator["target_time_s"] = 1.5, 9.5
    assert (control.first_update_s, control.target_time_s) == (1.5, 9.5)


@pytest.mark.parametrize("state", CompileState)
def test_the_learner_says_which_form_of_the_update_runs(
    control: Control, state: CompileState
) -> None:
    control.learner["compiled"] = state
    assert control.compile_state is state
