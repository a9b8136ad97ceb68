"""The replay on disk against a plain list: rows may be lost, and none is ever wrong."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spreeze.rows import Field, Layout, RowFormat
from spreeze.spec import Floats
from spreeze.store import replay_store
from spreeze.store.replay_store import HEADER, FoundRows, ReplayStore

LAYOUT, FORM = Layout((Field("obs", 2), Field("reward", 1))), RowFormat(gamma=0.9)
MAX_ROWS = 50


def store_in(folder: Path, **changes: Any) -> ReplayStore:
    knobs = {"layout": LAYOUT, "form": FORM, "max_bytes": MAX_ROWS * LAYOUT.row_bytes, **changes}
    return ReplayStore(folder, **knobs)


def rows_of(values: list[int]) -> Floats:
    return np.repeat(np.array(values, np.float32)[:, None], LAYOUT.width, 1)


def read(store: ReplayStore, first: int, end: int, found: FoundRows | None = None) -> list[int]:
    blocks = list(store.read(first, end, found or FoundRows()))
    assert all((block == block[:, :1]).all() for block in blocks), "no row is torn"
    return [int(value) for block in blocks for value in block[:, 0]]


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


ACTION = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 25), st.integers(0, 10)),
    st.tuples(st.just("full"), st.integers(1, 25), st.integers(0, 100)),
    st.tuples(st.just("restart"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("damage"), st.integers(0, 10), st.integers(0, 10_000)),
)


@pytest.mark.fault("F69")
@settings(max_examples=150, deadline=None)
@given(st.lists(ACTION, max_size=25))
@example([("write", 8, 0), ("write", 18, 7), ("write", 25, 0), ("restart", 1, 0)])
def test_what_is_read_is_what_was_written_or_nothing(actions: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "replay"
        store, truth, harmed = store_in(folder), {}, False
        end = oldest = 0  # rows before `oldest` may be gone, also after a restart
        for step, (action, number, more) in enumerate(actions):
            values = [10_000 * (step + 1) + i for i in range(number)]
            if action == "write":
                # Some of the rows before are written again, as a block that was not full is.
                first = end
                while first > end - more and first - 1 in truth:
                    first -= 1
                again = [truth[i] for i in range(first, end)]
                store.write(first, rows_of(again + values))
                truth |= dict(zip(range(end, end + number), values, strict=True))
                end += number
            if action == "full":
                harmed = True
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(replay_store, "write_new", disk_that_is_full_after(more))
                    with pytest.raises(OSError, match="No space"):
                        store.write(end, rows_of(values))
                end += number  # these rows are lost
            if action == "restart":  # from a state before the newest rows
                store = store_in(folder)
                end = max(0, end - number)
                store.clear_drafts()
                store.cut(end)
                truth = {i: value for i, value in truth.items() if i < end}
            if action == "damage" and folder.exists() and (files := sorted(folder.glob("*.rows"))):
                harmed = True
                damage(files[number % len(files)], more)
            found = read(store, 0, end)
            assert len(set(found)) == len(found), "no row comes twice"
            assert found == [value for value in truth.values() if value in found], "in order"
            oldest = max(oldest, end - MAX_ROWS)
            newest = [truth[i] for i in range(oldest, end) if i in truth]
            if not harmed:
                assert found[len(found) - len(newest) :] == newest, "the newest are all there"
            if folder.exists():
                most = MAX_ROWS + 2 * (25 + 10)
                files = list(folder.iterdir())
                assert disk_bytes(folder) <= most * LAYOUT.row_bytes + len(files) * HEADER.size


def disk_that_is_full_after(num_bytes: int) -> Any:
    def write(path: Path, content: bytes) -> None:
        path.write_bytes(content[:num_bytes])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


def damage(path: Path, where: int) -> None:
    """Flip a bit, or cut the file."""
    content = bytearray(path.read_bytes())
    at = where % (2 * len(content) or 1)
    if at < len(content):
        content[at] ^= 1 << where % 8
        path.write_bytes(content)
    else:
        path.write_bytes(content[: at - len(content)])


def test_damaged_blocks_are_named_and_the_others_used(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for first in range(0, 40, 10):
        store.write(first, rows_of(list(range(first, first + 10))))
    damaged, cut = sorted(tmp_path.glob("*.rows"))[1:3]
    damage(damaged, HEADER.size + 20)
    cut.write_bytes(cut.read_bytes()[:-1])
    found = FoundRows()
    assert read(store, 0, 40, found) == [*range(10), *range(30, 40)]
    assert found.damaged == [damaged.name, cut.name]
    assert read(store, 35, 38) == [35, 36, 37], "blocks outside the range are not even opened"


@pytest.mark.parametrize(
    "changes",
    [
        {"form": RowFormat(gamma=0.99)},
        {"form": RowFormat(gamma=0.9, n_step=3)},
        {"layout": Layout((Field("obs", 1), Field("reward", 2)))},
        {"layout": Layout((Field("obs", 3), Field("reward", 1)))},
    ],
    ids=["gamma", "n_step", "fields", "size"],
)
def test_rows_of_another_format_are_refused_and_named(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    store_in(tmp_path).write(0, rows_of([1, 2, 3, 4]))
    found = FoundRows()
    assert list(store_in(tmp_path, **changes).read(0, 4, found)) == []
    assert len(found.refused) == 1
    assert not found.damaged


def test_a_huge_file_in_its_place_is_not_read_into_memory(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with (tmp_path / "000000000000000.rows").open("wb") as file:
        file.truncate(1 << 40)
    found = FoundRows()
    assert read(store, 0, 10, found) == []
    assert found.damaged


def test_a_block_that_is_written_again_replaces_those_it_covers(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for first in range(3):
        store.write(first, rows_of([first]))
    store.write(0, rows_of([0, 1, 2, 3]))
    assert read(store, 0, 4) == [0, 1, 2, 3]


def test_the_store_holds_no_more_than_it_may(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for first in range(0, 1000, 10):
        store.write(first, rows_of(list(range(first, first + 10))))
    assert read(store, 0, 1000) == list(range(950, 1000))
    assert len(list(tmp_path.iterdir())) == 5
