"""Blocks of rows between machines: nothing that is not as agreed reaches a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spreeze.rows import Field, Layout, Rows
from spreeze.wires.arena import Arena
from spreeze.wires.blocks import (
    MOST_BYTES,
    Columns,
    arrivals_blocks,
    find_problem,
    open_arrivals,
    pack,
    rows_per_block,
    unpack,
)

LAYOUT = Layout((Field("obs", 3), Field("reward", 1), Field("version", 1, "<u4")))


def some_rows(num: int = 5) -> Rows:
    rows = np.zeros(num, LAYOUT.dtype)
    rows["obs"] = np.arange(3 * num).reshape(num, 3)
    rows["reward"], rows["version"] = -np.arange(num), np.arange(num)
    return rows


def test_rows_are_the_same_after_the_journey() -> None:
    rows, lane = some_rows(), np.zeros(8, LAYOUT.dtype)
    block = pack(rows)
    assert find_problem(block, LAYOUT) is None
    assert unpack(block, lane) == 5
    assert (lane[:5] == rows).all()
    assert not lane[5:]["obs"].any()
    rows["reward"] = 9
    assert block[1][1] == -1, "a block has its own memory: lanes are overwritten"


def changed(at: int, column: Any) -> Columns:
    columns = list(pack(some_rows()))
    columns[at] = column
    return tuple(columns)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (None, "3 columns"),
        ([*pack(some_rows())], "3 columns"),
        (pack(some_rows())[:2], "3 columns"),
        (changed(0, np.zeros((5, 4), np.float32)), "obs has shape"),
        (changed(0, np.zeros((5, 3))), "obs should hold <f4"),
        (changed(0, [[0.0] * 3] * 5), "obs should hold <f4"),
        (changed(0, np.zeros((5, 3), object)), "obs should hold <f4"),
        (changed(1, np.zeros(4, np.float32)), "reward has shape"),
        (changed(1, np.float32(0)), "reward should hold"),
        (changed(1, np.zeros((), np.float32)), "reward has shape"),
        (changed(0, np.full((5, 3), np.nan, np.float32)), "obs holds NaN"),
        (pack(some_rows(0)), "it has 0 rows"),
        (pack(some_rows(MOST_BYTES // 20 + 1)), "rows; 1 to"),
    ],
)
def test_what_is_not_as_agreed_is_refused(block: Any, problem: str) -> None:
    assert problem in str(find_problem(block, LAYOUT))


def test_the_lane_of_arrivals_takes_the_largest_block() -> None:
    arena = Arena.create(arrivals_blocks(LAYOUT))
    try:
        arrivals = open_arrivals(arena)
        writer, (reader,) = arrivals.writer(0), arrivals.readers()
        largest = some_rows(rows_per_block(LAYOUT.row_bytes))
        writer.commit(unpack(pack(largest), writer.reserve()))
        taken = reader.drain(np.zeros(len(largest), LAYOUT.dtype))
        assert (taken == largest).all()
        assert reader.num_lost == 0
    finally:
        arena.close()
