"""The wires under stress: real processes are killed at random, and every row is verified.

Each value depends on its number and on the life that wrote it; a life is one writer process, from
its start until it is killed. So a mix of two rows, two versions or two lives is always detected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import verified_rows
from forked import Children, forked
from spreeze.rows import Rows, row_layout
from spreeze.spec import EnvSpec, Floats
from spreeze.wires.arena import Arena, Block
from spreeze.wires.experience import COMMITTED, RESERVED, Experience, LaneReader, experience_blocks
from spreeze.wires.weights import Stamp, Weights, weights_blocks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NUM_LIVES = 40
LONGEST_LIFE_S = 0.2
CAPACITY, BLOCK = 64, 8
LAYOUT = row_layout(
    EnvSpec(id="", obs_shape=(50,), action_shape=(4,), action_low=(-1,) * 4, action_high=(1,) * 4)
)
NUM_WEIGHTS = 65_536  # 256 KiB
ACCEPTED, REFUSED, WRONG, HAVE = range(4)


@pytest.fixture
def children() -> Iterator[Children]:
    with forked() as children:
        yield children


@contextmanager
def arena_of(*blocks: Block) -> Iterator[Arena]:
    arena = Arena.create(list(blocks))
    try:
        yield arena
    finally:
        arena.close()


# --- experience


def fill(rows: Rows, numbers: Any, lives: Any) -> None:
    """Write the rows with these numbers, as these writers would."""
    mark = numbers * 31 % 65_521 + lives * 100_000
    rows["obs"] = mark[:, None] + np.arange(50)
    rows["action"] = lives[:, None]
    rows["reward"] = mark + 0.5
    rows["discount"] = -mark
    rows["next_obs"] = mark[:, None] - np.arange(50)
    rows["version"] = numbers


def num_wrong(rows: Rows, first: int) -> int:
    """How many rows, counted from number `first`, differ from what any writer wrote."""
    expected = rows.copy()
    with np.errstate(invalid="ignore"):
        lives = rows["action"][:, 0].astype(np.int64)
    fill(expected, first + np.arange(len(rows)), lives)
    differ = rows.view(np.uint8) != expected.view(np.uint8)
    return int(differ.reshape(-1, LAYOUT.row_bytes).any(axis=1).sum())


def write_on(arena: Arena, life: int) -> None:
    """A sampler: commits blocks of any size, and fills its slots with garbage before it writes them."""
    number = int(arena["experience.words"][0, COMMITTED])
    writer = Experience(arena, BLOCK).writer(0)
    sizes = random.Random(life)
    while True:
        slots, size = writer.reserve(), sizes.randint(1, BLOCK)
        slots.view(np.uint8)[:] = 0xFF
        fill(slots[:size], number + np.arange(size), np.full(size, life))
        writer.commit(size)
        number += size


@pytest.mark.fault("F35")
@pytest.mark.fault("F36")
def test_no_wrong_row_comes_out_of_a_lane_whose_writers_are_killed(children: Children) -> None:
    """The reader is always about to be lapped; a new reader after each kill sees whole rows, too."""
    times = random.Random()
    num_delivered = num_after_death = wrong = 0
    buffer = np.zeros(CAPACITY, LAYOUT.dtype)
    with arena_of(*experience_blocks(LAYOUT, 1, CAPACITY, BLOCK)) as arena:
        experience = Experience(arena, BLOCK)
        (reader,) = experience.readers()
        for life in range(NUM_LIVES):
            writer = children.start(write_on, arena, life)
            death_s = time.monotonic() + times.uniform(0, LONGEST_LIFE_S)
            while time.monotonic() < death_s:
                if reader.num_waiting >= CAPACITY - BLOCK:
                    rows = reader.drain(buffer)
                    wrong += num_wrong(rows, reader.num_lost + num_delivered)
                    num_delivered += len(rows)
            children.kill(writer)
            experience.writer(0)  # a successor that has not written yet
            first = max(int(arena["experience.words"][0, COMMITTED]) - CAPACITY, 0)
            (late,) = experience.readers()
            rows = late.drain(buffer)
            wrong += num_wrong(rows, first + late.num_lost)
            num_after_death += len(rows)
        num_left = reader.num_waiting
        committed = int(arena["experience.words"][0, COMMITTED])
    print(f"{NUM_LIVES} kills, {committed} rows: {num_delivered} delivered, {reader.num_lost} lost")
    assert wrong == 0
    assert num_delivered + reader.num_lost + num_left == committed
    assert min(num_delivered, reader.num_lost, num_after_death) > 0


def test_a_reader_that_ignores_reservations_would_be_fooled(children: Children) -> None:
    """The test can fail: without its re-check, a reader accepts the garbage of a killed writer."""
    wrong = 0
    with arena_of(*experience_blocks(LAYOUT, 1, CAPACITY, BLOCK)) as arena:
        for life in range(NUM_LIVES):
            writer = children.start(write_on, arena, life)
            time.sleep(LONGEST_LIFE_S / 4)
            children.kill(writer)
            words = arena["experience.words"][0].copy()
            words[RESERVED] = 0
            reader = LaneReader(words, arena["experience.rows"][0], BLOCK)
            rows = reader.drain(np.zeros(CAPACITY, LAYOUT.dtype))
            wrong = num_wrong(rows, reader.num_lost)
            if wrong:
                break
    print(f"{life + 1} kills: {wrong} wrong rows")
    assert wrong > 0


# --- experience, from the environment to the learner


@pytest.mark.fault("F34")
def test_every_row_of_samplers_that_are_killed_is_what_their_environments_did(
    children: Children,
) -> None:
    counts = verified_rows.stress(children, num_rows=1_000_000, num_kills=20)
    print(counts)
    assert counts.wrong == 0
    assert counts.rows >= 1_000_000
    assert counts.kills >= 20


@pytest.mark.parametrize("column", range(verified_rows.LAYOUT.width))
def test_a_row_with_one_wrong_bit_is_found(column: int) -> None:
    rows = verified_rows.some_rows(3)
    assert not verified_rows.is_wrong(rows).any()
    rows.view(np.uint32).reshape(len(rows), -1)[1, column] ^= 1
    assert verified_rows.is_wrong(rows).tolist()[1]


def test_a_missing_and_a_doubled_step_are_found() -> None:
    rows = verified_rows.some_rows(3)
    check = verified_rows.Sequence(lane=1)
    assert check.num_wrong(rows) == 0
    assert verified_rows.Sequence(lane=1).num_wrong(np.delete(rows, 5)) == 1
    assert verified_rows.Sequence(lane=1).num_wrong(np.insert(rows, 5, rows[5])) == 1
    assert verified_rows.Sequence(lane=0).num_wrong(rows) == len(rows), "of another lane"
    assert check.num_wrong(rows) == 1, "the same rows again"


# --- weights


def content(version: int, life: int) -> Floats:
    """The vector of a version, as one of the writers publishes it."""
    return (np.arange(NUM_WEIGHTS) % 1000 + version + 200_000 * life).astype(np.float32)


def is_right(stamp: Stamp, vector: Floats) -> bool:
    """Whether vector and counters are those of that version."""
    expected = content(stamp.version, life=stamp.updates)
    return stamp.env_steps == 7 * stamp.version and bool((vector == expected).all())


def publish_on(arena: Arena, life: int) -> None:
    """A learner that only publishes."""
    weights = Weights(arena)
    while True:
        version = weights.version + 1
        weights.publish(content(version, life), life, 7 * version)


def follow(arena: Arena, me: int) -> None:
    """A sampler that only fetches, until it is told to stop."""
    weights, counts, stop = Weights(arena), arena["counts"][me], arena["stop"]
    vector = np.zeros(NUM_WEIGHTS, np.float32)
    while not stop[0]:
        moved = weights.version != counts[HAVE]
        stamp = weights.fetch(vector, int(counts[HAVE]))
        if stamp is not None:
            counts[ACCEPTED] += 1
            counts[WRONG] += stamp.version <= counts[HAVE] or not is_right(stamp, vector)
            counts[HAVE] = stamp.version
        elif moved:
            counts[REFUSED] += 1


@pytest.mark.fault("F27")
@pytest.mark.fault("F28")
def test_no_torn_weights_are_taken_from_publishers_that_are_killed(children: Children) -> None:
    """Each kill leaves a readable version, the versions continue, and the readers follow them."""
    times = random.Random()
    vector = np.zeros(NUM_WEIGHTS, np.float32)
    more = [Block("counts", (2, 8), np.int64), Block("stop", (1,), np.int64)]
    with arena_of(*weights_blocks(NUM_WEIGHTS), *more) as arena:
        weights, counts = Weights(arena), arena["counts"]
        readers = [children.start(follow, arena, me) for me in range(2)]
        for life in range(NUM_LIVES):
            publisher = children.start(publish_on, arena, life)
            time.sleep(times.uniform(0, LONGEST_LIFE_S / 2))
            children.kill(publisher)
            stamp = weights.fetch(vector, 0)
            assert stamp is None if weights.version == 0 else stamp and is_right(stamp, vector)
        deadline_s = time.monotonic() + 5
        while (counts[:, HAVE] < weights.version).any() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        arena["stop"][0] = 1
        assert [children.reap(pid) for pid in readers] == [0, 0]
        newest, counts = weights.version, counts.copy()
    print(f"{NUM_LIVES} kills, {newest} versions: {counts[:, ACCEPTED]} accepted, ", end="")
    print(f"{counts[:, REFUSED]} refused, {counts[:, WRONG]} wrong")
    assert counts[:, WRONG].tolist() == [0, 0]
    assert counts[:, HAVE].tolist() == [newest, newest]
    assert newest > NUM_LIVES
    assert (counts[:, ACCEPTED] > NUM_LIVES).all()
