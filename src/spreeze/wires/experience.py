"""The experience wire: one lane per sampler, from its environments to the learner's replay.

A lane is a ring of rows with a single writer, the sampler, and a single reader, the learner.
Neither waits for the other: a writer that is a whole ring ahead overwrites the oldest rows, and the
reader counts them as lost. Two words guarantee that every row the reader accepts is whole. Both count
rows since the start, and only the sampler writes them:

    reserved    rows below this number may be half-written       (stored before the slots change)
    committed   rows below this number are complete              (stored after the slots changed)

Writer:  reserved = max(reserved, committed + n); fill the slots; committed += k  (k <= n)
Reader:  end = committed; copy rows [start, end); then read reserved again: a copied row is good
         only if the writer has not begun to overwrite its slot, i.e. if  row + capacity >= reserved.

A writer that is killed between the two stores leaves rows that were never committed; its successor
writes them again. `reserved` never decreases: the dead writer may have overwritten the oldest rows in
the slots it had reserved, and this word is the only trace of that.

Blocks are always contiguous: the ring has `block` spare slots after its end, and `commit` copies
what was written there to the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.rows import Layout, Rows, as_matrix
from spreeze.wires.arena import Arena, Block

RESERVED, COMMITTED = 0, 1
MOST_LOST = 1 << 40
"""More rows lost in one go are no count but an overwritten word, and would overflow the run's counter."""


def experience_blocks(
    layout: Layout, num_lanes: int, capacity: int, block: int, name: str = "experience"
) -> list[Block]:
    """Memory for `num_lanes` lanes of `capacity` rows, written at most `block` rows at a time.

    `name` tells several such wires apart.
    """
    if block > capacity:
        raise ValueError(f"a lane of {capacity} rows cannot take blocks of {block}")
    return [
        # Each lane's words have their own cache line: two samplers never write to the same one.
        Block(f"{name}.words", (num_lanes, 8), np.int64),
        Block(f"{name}.rows", (num_lanes, capacity + block), layout.dtype),
    ]


class LaneWriter:
    """The sampler's end of a lane."""

    def __init__(self, words: NDArray[np.int64], rows: Rows, block: int) -> None:
        """Continue a lane after the last row its previous writer committed."""
        self._words = words
        self._rows = rows
        self._block = block
        self._capacity = len(rows) - block
        self._committed = int(words[COMMITTED])

    def reserve(self) -> Rows:
        """The next `block` slots, to fill in place."""
        end = self._committed + self._block
        self._words[RESERVED] = max(self._words[RESERVED], end)
        start = self._committed % self._capacity
        return self._rows[start : start + self._block]

    def commit(self, num_rows: int) -> None:
        """Publish the first `num_rows` of the reserved slots; the others stay unwritten."""
        start = self._committed % self._capacity
        spilled = start + num_rows - self._capacity
        if spilled > 0:
            self._rows[:spilled] = self._rows[self._capacity : self._capacity + spilled]
        self._committed += num_rows
        self._words[COMMITTED] = self._committed


class LaneReader:
    """The learner's end of a lane."""

    def __init__(
        self, words: NDArray[np.int64], rows: NDArray[Any], block: int, start: int = 0
    ) -> None:
        """Start with row number `start`."""
        self._words = words
        self._rows = rows
        self.capacity = len(rows) - block
        self._next = start
        self.num_lost = 0

    @property
    def position(self) -> int:
        """The number of the next row to drain."""
        return self._next

    @property
    def num_waiting(self) -> int:
        """Committed rows that are not drained yet, including overwritten ones."""
        return max(int(self._words[COMMITTED]) - self._next, 0)

    def drain(self, into: NDArray[Any]) -> NDArray[Any]:
        """Copy the oldest new rows to the front of `into`; returns the part of `into` with whole rows."""
        committed = int(self._words[COMMITTED])
        # No writer goes back: an environment's native code has overwritten the word. Continue from there.
        self._next = min(self._next, committed)
        oldest = committed - self.capacity
        if self._next < oldest:
            self._lose(oldest - self._next)
        start, num_rows = self._next, min(committed - self._next, len(into))
        slot = start % self.capacity
        head = min(num_rows, self.capacity - slot)
        into[:head] = self._rows[slot : slot + head]
        into[head:num_rows] = self._rows[: num_rows - head]
        self._next = start + num_rows
        # The re-check: a slot that the writer has reserved by now may have been half-written.
        spoilt = min(max(int(self._words[RESERVED]) - self.capacity - start, 0), num_rows)
        self.num_lost += spoilt
        return into[spoilt:num_rows]

    def _lose(self, num_rows: int) -> None:
        self.num_lost += min(num_rows, MOST_LOST)
        self._next += num_rows


class Experience:
    """All lanes of a run."""

    def __init__(self, arena: Arena, block: int, name: str = "experience") -> None:
        """Open the lanes in an arena that was created with `experience_blocks`."""
        self._words = arena[f"{name}.words"]
        self._rows = arena[f"{name}.rows"]
        self._block = block

    def writer(self, lane: int) -> LaneWriter:
        """The writing end of a lane; a lane has one writer at a time."""
        return LaneWriter(self._words[lane], self._rows[lane], self._block)

    def readers(
        self, as_words: bool = False, positions: Sequence[int] | None = None
    ) -> list[LaneReader]:
        """The reading ends of all lanes, starting at the oldest row that each still holds.

        With `as_words`, rows are drained as a matrix of 32-bit words: numpy copies records far slower.
        With `positions`, rows before these numbers were drained by the reader before this one.
        """
        ends = []
        for lane, (words, rows) in enumerate(zip(self._words, self._rows, strict=True)):
            committed = int(words[COMMITTED])
            start = max(committed - (len(rows) - self._block), 0)
            if positions is not None:
                start = max(start, min(positions[lane], committed))
            form = as_matrix(rows) if as_words else rows
            ends.append(LaneReader(words, form, self._block, start))
        return ends

    def clear(self) -> None:
        """Start again with empty lanes. No writer or reader may be open."""
        self._words[:] = 0


class Lanes:
    """The reading ends of several lanes, drained together."""

    def __init__(self, lanes: Sequence[LaneReader]) -> None:
        """Read these lanes, which return rows as 32-bit words."""
        self._lanes, self._in_order = list(lanes), list(lanes)

    @property
    def num_lost(self) -> int:
        """Rows that were overwritten before they were read."""
        return sum(lane.num_lost for lane in self._lanes)

    @property
    def num_waiting(self) -> int:
        """Rows that can be drained now."""
        return sum(min(lane.num_waiting, lane.capacity) for lane in self._lanes)

    @property
    def positions(self) -> list[int]:
        """The number of the next row to take from each lane."""
        return [lane.position for lane in self._in_order]

    def drain(self, buffer: Rows) -> Rows:
        """Fill the front of the buffer from all lanes; returns that part of it."""
        words, end = as_matrix(buffer), 0
        for lane in self._lanes:
            if lane.num_waiting == 0:
                continue
            room = words[end:]
            if len(room) == 0:
                break
            lost = lane.num_lost
            rows = lane.drain(room)
            if lane.num_lost > lost:
                room[: len(rows)] = rows  # the first rows were overwritten: close the gap
            end += len(rows)
        # If the buffer was too small for all lanes, another one comes first next time.
        self._lanes.append(self._lanes.pop(0))
        return buffer[:end]
