"""One lane on real shared memory: against a model, and each corner case by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spreeze.rows import Field, Layout, Rows
from spreeze.wires.arena import Arena
from spreeze.wires.experience import (
    COMMITTED,
    RESERVED,
    Experience,
    LaneReader,
    LaneWriter,
    experience_blocks,
)

LAYOUT = Layout((Field("obs", 3), Field("reward", 1), Field("version", 1, "<u4")))
GARBAGE = 2**24 - 1


def fill(slots: Rows, ids: Any) -> None:
    """Write rows in which every number is derived from the id."""
    ids = np.asarray(ids)
    slots["obs"] = ids[:, None] + np.arange(3)
    slots["reward"] = -ids
    slots["version"] = ids


def ids_of(rows: Rows) -> list[int]:
    """The ids of rows; fails if any row is not whole."""
    expected = rows.copy()
    fill(expected, rows["version"].astype(np.int64))
    np.testing.assert_array_equal(rows, expected)
    ids: list[int] = rows["version"].tolist()
    return ids


def write(writer: LaneWriter, ids: list[int]) -> None:
    """Commit one block of rows."""
    fill(writer.reserve()[: len(ids)], ids)
    writer.commit(len(ids))


def drain(reader: LaneReader, size: int) -> list[int]:
    """The ids of the next rows, drained into a buffer of `size` rows."""
    return ids_of(reader.drain(np.zeros(size, LAYOUT.dtype)))


class LaneMachine(RuleBasedStateMachine):
    """Writers come and go, the reader drains at any time; the model is the list of all rows."""

    @initialize(block=st.integers(1, 6), more=st.integers(0, 12))
    def create(self, block: int, more: int) -> None:
        self.block, self.capacity = block, block + more
        self.arena = Arena.create(experience_blocks(LAYOUT, 1, self.capacity, block))
        self.experience = Experience(self.arena, block)
        self.words = self.arena["experience.words"][0]
        self.writer = self.experience.writer(0)
        self.reader = self.experience.readers()[0]
        self.committed: list[int] = []
        self.reserved = 0
        self.position = self.num_delivered = 0
        self.next_id = 0

    def teardown(self) -> None:
        if hasattr(self, "arena"):
            self.arena.close()

    def reserve(self) -> Rows:
        """Reserve in the model and in the lane."""
        self.reserved = max(self.reserved, len(self.committed) + self.block)
        return self.writer.reserve()

    def write(self, num_rows: int) -> None:
        ids = list(range(self.next_id, self.next_id + num_rows))
        self.next_id += num_rows
        fill(self.reserve()[:num_rows], ids)
        self.writer.commit(num_rows)
        self.committed += ids

    @rule(data=st.data())
    def write_some(self, data: st.DataObject) -> None:
        """Write a block, maybe a partial or empty one."""
        self.write(data.draw(st.integers(0, self.block)))

    @rule(num_rows=st.integers(0, 100))
    def write_many(self, num_rows: int) -> None:
        """Write enough to go around the ring several times."""
        for start in range(0, num_rows, self.block):
            self.write(min(self.block, num_rows - start))

    @rule(scribbled=st.integers(0, 6))
    def leave_half_written(self, scribbled: int) -> None:
        """The writer has reserved its slots and overwritten some; the next rule sees this state."""
        fill(self.reserve()[:scribbled], [GARBAGE] * min(scribbled, self.block))

    @rule()
    def replace_writer(self) -> None:
        """The writer was killed, at whatever point; a successor takes over."""
        self.writer = self.experience.writer(0)

    @rule(size=st.integers(0, 40))
    def drain(self, size: int) -> None:
        """Rows arrive whole and in order; those that were or may be overwritten count as lost."""
        total = len(self.committed)
        end = min(total, max(self.position, total - self.capacity) + size)
        intact = max(self.reserved - self.capacity, self.position)
        ids = drain(self.reader, size)
        assert ids == self.committed[intact:end]
        self.num_delivered += len(ids)
        self.position = max(end, self.position)

    @precondition(lambda self: self.words[RESERVED] <= self.words[COMMITTED])
    @rule()
    def drain_all(self) -> None:
        """While no writer is active, the newest ring is read in full."""
        fresh = self.experience.readers()[0]
        assert drain(fresh, self.capacity) == self.committed[-self.capacity :]

    @invariant()
    def accounts(self) -> None:
        """Each row that the reader has passed was delivered or counted as lost."""
        assert self.num_delivered + self.reader.num_lost == self.position
        assert self.reader.num_waiting == len(self.committed) - self.position

    @invariant()
    def counters(self) -> None:
        """The words equal those of the model, so they never decrease."""
        assert self.words[COMMITTED] == len(self.committed)
        assert self.words[RESERVED] == self.reserved


TestLaneMachine = LaneMachine.TestCase
TestLaneMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.fixture
def lane() -> Iterator[Any]:
    """Makes lanes: `lane(capacity, block)` returns the experience and the words of its lanes."""
    arenas = []

    def make(capacity: int, block: int, num_lanes: int = 1) -> tuple[Experience, Any]:
        arena = Arena.create(experience_blocks(LAYOUT, num_lanes, capacity, block))
        arenas.append(arena)
        return Experience(arena, block), arena["experience.words"]

    yield make
    for arena in arenas:
        arena.close()


def test_rows_are_read_as_they_were_written(lane: Any) -> None:
    experience, _ = lane(capacity=8, block=4)
    writer, (reader,) = experience.writer(0), experience.readers()
    write(writer, [0, 1, 2])
    write(writer, [3])
    assert reader.num_waiting == 4
    assert drain(reader, 3) == [0, 1, 2]
    assert reader.num_waiting == 1
    assert drain(reader, 3) == [3]
    assert drain(reader, 3) == []
    assert (reader.num_waiting, reader.num_lost) == (0, 0)


def test_a_block_that_spills_over_the_end_is_read_from_the_front(lane: Any) -> None:
    """The second block of 3 goes to slots 3, 4 and 5 of a ring of 4; slots 4 and 5 are copied to 0 and 1."""
    experience, _ = lane(capacity=4, block=3)
    writer, (reader,) = experience.writer(0), experience.readers()
    write(writer, [0, 1, 2])
    assert drain(reader, 4) == [0, 1, 2]
    write(writer, [3, 4, 5])
    assert drain(reader, 4) == [3, 4, 5]
    write(writer, [6, 7])
    assert drain(reader, 1) == [6]
    assert drain(reader, 4) == [7]
    assert reader.num_lost == 0


@pytest.mark.fault("F39")
def test_a_lapped_reader_gets_the_newest_ring_and_counts_the_rest(lane: Any) -> None:
    experience, _ = lane(capacity=4, block=2)
    writer, (reader,) = experience.writer(0), experience.readers()
    for i in range(0, 20, 2):
        write(writer, [i, i + 1])
    assert reader.num_waiting == 20
    assert drain(reader, 3) == [16, 17, 18]
    assert reader.num_lost == 16
    assert drain(reader, 3) == [19]
    assert reader.num_lost == 16


def test_reserved_slots_cost_the_oldest_rows(lane: Any) -> None:
    """A full ring of 4 with 2 reserved slots holds 2 rows that are certainly whole.

    This holds until those slots are committed, even if the writer has not touched them.
    """
    experience, _ = lane(capacity=4, block=2)
    writer, (reader,) = experience.writer(0), experience.readers()
    write(writer, [0, 1])
    write(writer, [2, 3])
    fill(writer.reserve(), [GARBAGE, GARBAGE])
    assert drain(reader, 4) == [2, 3]
    assert reader.num_lost == 2


@pytest.mark.fault("F35")
def test_a_successor_writes_the_uncommitted_rows_again(lane: Any) -> None:
    """Rows that its predecessor overwrote stay lost, although no writer is active there now."""
    experience, words = lane(capacity=4, block=2)
    write(experience.writer(0), [0, 1])
    write(experience.writer(0), [2, 3])
    fill(experience.writer(0).reserve(), [GARBAGE, GARBAGE])
    (reader,) = experience.readers()
    successor = experience.writer(0)
    assert words[0, RESERVED] == 6
    assert drain(reader, 4) == [2, 3]
    write(successor, [4])
    assert drain(reader, 4) == [4]
    assert reader.num_lost == 2


@pytest.mark.fault("F40")
@pytest.mark.parametrize("start", [2**32 - 7, 2**40 + 1, 2**63 - 100])
def test_a_lane_works_with_large_counters(lane: Any, start: int) -> None:
    """It works as at its start; the numbers are not multiples of the capacity."""
    experience, words = lane(capacity=6, block=3)
    words[0, [RESERVED, COMMITTED]] = start
    writer, (reader,) = experience.writer(0), experience.readers()
    assert len(reader.drain(np.zeros(9, LAYOUT.dtype))) == 6
    assert reader.num_lost == 0, "rows of an earlier reader are not lost"
    for i in range(0, 12, 3):
        write(writer, [i, i + 1, i + 2])
    assert reader.num_waiting == 12
    assert drain(reader, 6) == [6, 7, 8, 9, 10, 11]
    assert reader.num_lost == 6
    assert words[0, COMMITTED] == start + 12


def test_lanes_are_separate(lane: Any) -> None:
    experience, words = lane(capacity=4, block=2, num_lanes=3)
    write(experience.writer(1), [7, 8])
    assert [drain(reader, 4) for reader in experience.readers()] == [[], [7, 8], []]
    assert words[:, COMMITTED].tolist() == [0, 2, 0]
    assert words.strides[0] == 64


def test_a_block_may_be_as_large_as_the_ring_but_not_larger() -> None:
    assert experience_blocks(LAYOUT, 1, 4, 4)
    with pytest.raises(ValueError, match="a lane of 4 rows cannot take blocks of 5"):
        experience_blocks(LAYOUT, 1, 4, 5)


WORD = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-50, 50), st.sampled_from([2**63 - 1, -(2**63)])
)


@pytest.mark.fault("S18")
@pytest.mark.fault("S25")
@given(st.lists(st.tuples(WORD, WORD, st.integers(1, 20)), min_size=1, max_size=8))
def test_overwritten_words_never_lead_out_of_the_lane(broken: list[tuple[int, int, int]]) -> None:
    """Native code of an environment may write anywhere in the memory that its sampler has mapped."""
    block, capacity = 3, 7
    lane = np.zeros(capacity + block + 100, LAYOUT.dtype)
    lane["version"] = 1
    lane["version"][capacity + block :] = GARBAGE  # what lies behind the lane
    words = np.zeros(8, np.int64)
    reader = LaneReader(words, lane[: capacity + block], block)
    for reserved, committed, size in broken:
        words[RESERVED], words[COMMITTED] = reserved, committed
        assert reader.num_waiting >= 0
        into = np.zeros(size + 1, LAYOUT.dtype)
        into["version"][size:] = 7  # what lies behind the buffer
        rows = reader.drain(into[:size])
        assert len(rows) <= min(size, capacity)
        assert (rows["version"] == 1).all()
        assert into["version"][size] == 7
    assert abs(reader.num_lost) < 2**63, "the run counts in 64 bits"


@pytest.mark.fault("S18")
def test_a_lane_recovers_from_an_overwritten_word() -> None:
    words, lane = np.zeros(8, np.int64), np.zeros(10, LAYOUT.dtype)
    writer, reader = LaneWriter(words, lane, 3), LaneReader(words, lane, 3)
    write(writer, [0, 1, 2])
    assert drain(reader, 9) == [0, 1, 2]
    words[COMMITTED] = 2**40
    reader.drain(np.zeros(9, LAYOUT.dtype))
    write(writer, [3, 4, 5])  # the writer knows its own count
    drain(reader, 9)
    write(writer, [6, 7, 8])
    assert drain(reader, 9) == [6, 7, 8]
