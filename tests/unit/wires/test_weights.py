"""The weights wire on real shared memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spreeze.spec import Floats
from spreeze.wires.arena import Arena
from spreeze.wires.weights import SEAL, SLOTS, Stamp, Weights, WeightsReader, weights_blocks

SIZE = 5


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(weights_blocks(SIZE))
    yield arena
    arena.close()


@pytest.fixture
def weights(arena: Arena) -> Weights:
    return Weights(arena)


def vector(version: int) -> Floats:
    """The weights of a version in these tests."""
    return np.arange(SIZE, dtype=np.float32) + 10 * version


def publish(weights: Weights, versions: int) -> None:
    """Publish the next few versions."""
    for _ in range(versions):
        version = weights.version + 1
        assert weights.publish(vector(version), 100 * version, 1000 * version) == version


def fetch(weights: Weights, have: int = 0) -> tuple[Stamp | None, Floats]:
    """What a reader with version `have` gets."""
    into = np.full(SIZE, np.nan, np.float32)
    return weights.fetch(into, have), into


def assert_reads(weights: Weights, version: int) -> None:
    """A new reader gets this version, whole and with its counters."""
    stamp, got = fetch(weights)
    assert stamp == Stamp(version, 100 * version, 1000 * version)
    np.testing.assert_array_equal(got, vector(version))


def test_nothing_to_fetch_before_the_first_version(weights: Weights) -> None:
    assert weights.size == SIZE
    assert weights.version == 0
    assert fetch(weights)[0] is None


def test_each_version_is_read_with_its_counters(weights: Weights) -> None:
    """The slots are reused several times."""
    for version in range(1, 3 * SLOTS + 2):
        publish(weights, 1)
        assert weights.version == version
        assert_reads(weights, version)


@pytest.mark.fault("F40")
@pytest.mark.parametrize("start", [2**32 - 5, 2**63 - 100])
def test_versions_and_counters_may_be_large(arena: Arena, weights: Weights, start: int) -> None:
    arena["weights.newest"][0] = start
    for more in range(1, 10):
        weights.publish(vector(more), start + more, start - more)
        stamp, got = fetch(weights, have=start + more - 1)
        assert stamp == Stamp(start + more, start + more, start - more)
        np.testing.assert_array_equal(got, vector(more))


def test_fetch_does_not_touch_the_vector_without_a_new_version(weights: Weights) -> None:
    publish(weights, 2)
    stamp, got = fetch(weights, have=2)
    assert stamp is None
    assert np.isnan(got).all()
    publish(weights, 1)
    stamp, got = fetch(weights, have=2)
    assert stamp is not None
    assert stamp.version == 3


def test_a_slow_reader_gets_the_newest_version(weights: Weights) -> None:
    publish(weights, 1)
    assert_reads(weights, 1)
    publish(weights, 5)
    assert_reads(weights, 6)


def test_what_is_published_is_a_copy(weights: Weights) -> None:
    """Even of a vector that is not contiguous in memory."""
    wide = np.repeat(vector(1), 2)
    weights.publish(wide[::2], 100, 1000)
    wide[:] = -1
    assert_reads(weights, 1)


def test_no_flipped_bit_is_accepted(arena: Arena, weights: Weights) -> None:
    """With any bit of the vector flipped, the reader keeps its old weights; then it recovers."""
    publish(weights, 1)
    data = arena["weights.data"][1].view(np.uint8)
    for position in range(8 * data.size):
        byte, bit = divmod(position, 8)
        data[byte] ^= 1 << bit
        assert fetch(weights)[0] is None
        data[byte] ^= 1 << bit
        assert_reads(weights, 1)


@pytest.mark.fault("F29")
def test_a_slot_that_was_reused_during_the_copy_is_refused(arena: Arena, weights: Weights) -> None:
    """The vector and its checksum may be right, but the seal is not that of this version."""
    publish(weights, 1)
    slots = arena["weights.slots"]
    for seal in (0, 4):
        slots[1, SEAL] = seal
        assert fetch(weights)[0] is None
    slots[1, SEAL] = 1
    assert_reads(weights, 1)


@pytest.mark.parametrize("before", range(1, SLOTS + 2))
@pytest.mark.fault("F28")
def test_a_learner_killed_while_it_publishes_leaves_the_last_version(
    arena: Arena, weights: Weights, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last version stays readable; the successor reuses the number that was never announced."""

    def killed(_: Any) -> int:
        raise KeyboardInterrupt

    publish(weights, before)
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "crc32", killed)  # called between the vector and the seal
        with pytest.raises(KeyboardInterrupt):
            weights.publish(vector(-1), 0, 0)
    assert weights.version == before
    assert_reads(weights, before)
    successor = Weights(arena)
    publish(successor, 1)
    assert_reads(weights, before + 1)


@pytest.mark.parametrize(
    "vector", [np.zeros(SIZE), np.zeros(1, np.float32), np.zeros((SIZE, 1), np.float32)]
)
def test_a_vector_of_the_wrong_type_or_shape_is_not_published(
    weights: Weights, vector: Any
) -> None:
    """A float64 vector or one of another size would never match its checksum."""
    with pytest.raises(ValueError, match="is not a policy of 5 float32"):
        weights.publish(vector, 1, 1)
    assert weights.version == 0


def test_a_reader_follows_the_newest_version_and_never_shows_torn_data(
    arena: Arena, weights: Weights
) -> None:
    mine = np.zeros(SIZE, np.float32)
    reader = WeightsReader(weights, mine)
    assert not reader.refresh()
    publish(weights, 2)
    assert reader.refresh()
    assert reader.stamp.version == 2
    np.testing.assert_array_equal(mine, vector(2))
    assert not reader.refresh(), "nothing is new"
    publish(weights, 1)
    arena["weights.data"][0, 0] += 1  # version 3 is torn
    assert not reader.refresh()
    assert reader.stamp.version == 2
    np.testing.assert_array_equal(mine, vector(2))
