"""The control wire: where its words are in memory, and what is read from them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spreeze
from spreeze.roles.context import Context
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


@pytest.mark.fault("F40")
@pytest.mark.parametrize("start", [2**32 - 100, 2**40, 2**61 - 100])
def test_env_steps_is_the_sum_over_samplers(control: Control, start: int) -> None:
    """Each sampler writes only its own word; the sum may exceed 32 bits."""
    assert control.env_steps == 0
    for i in range(NUM_SAMPLERS):
        words = control.samplers[i]
        words["env_steps"] += start + i
    assert control.env_steps == 3 * start + 3
    control.samplers["env_steps"] += 200
    assert control.env_steps == 3 * start + 603


WRITERS = {
    "supervisor": "run/",
    "learner": "roles/learner/",
    "samplers": "roles/sampler.py",
    "evaluator": "roles/evaluator/",
    "visualizer": "roles/visualizer.py",
}
BEFORE_THE_START = {("run/initial_values.py", "samplers")}
"""The supervisor sets the counts of a resumed run while no sampler exists."""


def stores(path: Path) -> Iterator[str]:
    """The tables of the control wire that a module stores to by name: `control.learner["updates"] = 1`."""
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in (part for each in targets if each for part in ast.walk(each)):
            named = isinstance(target, ast.Attribute) and target.attr in WRITERS
            if named and ast.unparse(target.value).endswith("control"):
                yield target.attr


@pytest.mark.fault("F41")
def test_every_table_has_one_writer() -> None:
    """Roles store through `Context.counters`, which is their own record; other stores are by name."""
    source = Path(spreeze.__file__).parent
    found = {
        (str(path.relative_to(source)), table)
        for path in source.rglob("*.py")
        if path.parent.name != "bench"  # a measurement without a supervisor or a learner
        for table in stores(path)
    }
    assert ("run/initial_values.py", "supervisor") in found, "stores are seen"
    strangers = {(file, table) for file, table in found if not file.startswith(WRITERS[table])}
    assert strangers <= BEFORE_THE_START


@pytest.mark.fault("F41")
@pytest.mark.parametrize("role", ["learner", "evaluator", "visualizer"])
def test_the_counters_of_a_role_are_its_own_record(arena: Arena, role: str) -> None:
    def counters(role: str, index: int = 0) -> Any:
        job = SimpleNamespace(role=role, index=index)
        return Context.counters.fget(SimpleNamespace(job=job, control=Control(arena)))  # type: ignore[attr-defined]

    for i in range(NUM_SAMPLERS):
        counters("sampler", i)["beats"] = i + 1
    counters(role)["beats"] = 9
    control = Control(arena)
    assert control.samplers["beats"].tolist() == [1, 2, 3]
    others = {"learner", "evaluator", "visualizer"} - {role}
    assert getattr(control, role)["beats"] == 9
    assert [int(getattr(control, other)["beats"]) for other in others] == [0, 0]


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
