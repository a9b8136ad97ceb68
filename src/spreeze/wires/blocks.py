"""Blocks: rows on their way between machines, one array per field.

A block is what one message carries. It is checked against the layout before a number of it reaches a lane:
whoever sent it may run another version, or be broken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.rows import Layout, Rows
from spreeze.wires.arena import Arena, Block
from spreeze.wires.experience import Experience, experience_blocks

ARRIVALS = "arrivals"
"""The wire with the rows from other machines: one lane."""
USUAL_BYTES, MOST_BYTES = 1 << 20, 4 << 20
"""A block is sent when it has this size, and is never larger than the second."""
BLOCKS_IN_LANE = 8

Columns = tuple[NDArray[Any], ...]
"""The fields of a layout, in its order."""


def rows_per_block(row_bytes: int) -> int:
    """The most rows of a block."""
    return max(MOST_BYTES // row_bytes, 1)


def arrivals_blocks(layout: Layout) -> list[Block]:
    """Memory for the lane of rows from other machines."""
    most = rows_per_block(layout.row_bytes)
    return experience_blocks(layout, 1, BLOCKS_IN_LANE * most, most, ARRIVALS)


def open_arrivals(arena: Arena) -> Experience:
    """The wire in an arena that has `arrivals_blocks`."""
    row_bytes = arena[f"{ARRIVALS}.rows"].dtype.itemsize
    return Experience(arena, rows_per_block(row_bytes), ARRIVALS)


def pack(rows: Rows) -> Columns:
    """A copy of the rows as a block."""
    names = rows.dtype.names or ()
    return tuple(np.ascontiguousarray(rows[name]) for name in names)


def find_problem(block: Any, layout: Layout) -> str | None:
    """Why this is no block of rows with this layout; None if it is one."""
    if not isinstance(block, tuple) or len(block) != len(layout.fields):
        return f"it should have {len(layout.fields)} columns"
    most, num_rows = rows_per_block(layout.row_bytes), None
    for field, column in zip(layout.fields, block, strict=True):
        if not isinstance(column, np.ndarray) or column.dtype != np.dtype(field.dtype):
            return f"{field.name} should hold {field.dtype}"
        num_rows = len(column) if num_rows is None and column.ndim else num_rows
        if column.shape != ((num_rows, field.size) if field.size > 1 else (num_rows,)):
            return f"{field.name} has shape {column.shape}"
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            return f"{field.name} holds NaN or infinity"
    if not num_rows or num_rows > most:
        return f"it has {num_rows} rows; 1 to {most} are allowed"
    return None


def unpack(block: Columns, into: Rows) -> int:
    """Write a block that has no problem to the front of `into`; returns its number of rows."""
    num_rows = len(block[0])
    for name, column in zip(into.dtype.names or (), block, strict=True):
        into[name][:num_rows] = column
    return num_rows
