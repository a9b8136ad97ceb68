"""The replay on disk: the newest rows of a run, in blocks of a few megabytes.

Rows have numbers, in the order in which the learner took them. A block is a file of consecutive rows,
named by the number of its first one:

    magic, format version, hash of the row format, first row, rows, bytes per row, checksum | rows

A block appears under its name when it is complete on disk, and is never changed, only replaced. Where two
overlap, the one that starts later counts. So a process that is killed, a full disk or a damaged file can
cost rows, but no row is ever wrong: a block whose checksum does not fit is dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from spreeze.errors import DamagedFile
from spreeze.faults import fault_point
from spreeze.rows import Layout, RowFormat
from spreeze.spec import Floats
from spreeze.store.files import read_inside, sync, write_new

BLOCK_BYTES = 4 << 20
MAGIC, FORMAT = b"SPRZROWS", 1
HEADER = struct.Struct("<8sI16sQQII")
"""Magic, format version, hash of the row format, first row, rows, bytes per row, checksum."""


def format_hash(layout: Layout, form: RowFormat) -> bytes:
    """Stands for everything that a row means: its fields, and how rewards and discounts were made."""
    return hashlib.sha256(repr((layout, form)).encode()).digest()[:16]


@dataclass
class FoundRows:
    """Rows as they are read, and what could not be."""

    damaged: list[str] = field(default_factory=list)
    """Files that are damaged."""
    refused: list[str] = field(default_factory=list)
    """Files with rows of another format."""


class ReplayStore:
    """Writes and reads the blocks of one run."""

    def __init__(self, folder: Path, layout: Layout, form: RowFormat, max_bytes: int) -> None:
        """Keep the newest `max_bytes` of rows in `folder`, which is made by the first write."""
        self._folder, self._hash, self._row_bytes = (
            folder,
            format_hash(layout, form),
            layout.row_bytes,
        )
        self.max_rows = max_bytes // layout.row_bytes
        """Rows that are kept; a block more while old ones are replaced."""
        self.block_rows = max(1, min(BLOCK_BYTES // layout.row_bytes, self.max_rows))
        """Rows in a full block."""

    def write(self, first: int, rows: Floats) -> None:
        """Write rows from number `first` on as one block, then delete what it covers or makes too old.

        Raises OSError if the disk refuses it.
        """
        content = np.ascontiguousarray(rows, np.float32).tobytes()
        check = zlib.crc32(content, zlib.crc32(struct.pack("<QQ", first, len(rows))))
        header = HEADER.pack(MAGIC, FORMAT, self._hash, first, len(rows), self._row_bytes, check)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(first)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.unlink(missing_ok=True)
            write_new(draft, header + content)
            sync(draft)
            draft.replace(path)
        except OSError:  # such as a full disk: the file would only take the room of the next one
            draft.unlink(missing_ok=True)
            raise
        fault_point("replay.block_written")
        end = first + len(rows)
        for number, covered in self._blocks():
            if number > first and number + self._most_rows(covered) <= end:
                covered.unlink(missing_ok=True)
        self._delete_before(end - self.max_rows)

    def read(self, first: int, end: int, found: FoundRows) -> Iterator[Floats]:
        """The rows from `first` to before `end` that are whole, oldest first, a block at a time."""
        blocks = self._blocks()
        starts = [number for number, _ in blocks]
        for (number, path), next_number in zip(blocks, [*starts[1:], end], strict=False):
            stop = min(next_number, end)
            if number >= stop or number + self._most_rows(path) <= first:
                continue
            rows = self._load(number, path, found)
            if rows is not None:
                yield rows[max(first - number, 0) : stop - number]

    def cut(self, end: int) -> None:
        """Forget rows from number `end` on: they came after the state that training continues from."""
        for number, path in self._blocks():
            if number >= end:
                path.unlink(missing_ok=True)
            elif number + self._most_rows(path) > end:
                rows = self._load(number, path, FoundRows())
                path.unlink(missing_ok=True)
                if rows is not None:
                    with contextlib.suppress(OSError):
                        self.write(number, rows[: end - number])

    def clear_drafts(self) -> None:
        """Delete what writers that were killed have left unfinished."""
        for draft in self._folder.glob(".*.rows.*"):
            draft.unlink(missing_ok=True)

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:015d}.rows"

    def _blocks(self) -> list[tuple[int, Path]]:
        """The number of the first row of each block, and its file, in order."""
        files = [path for path in self._folder.glob("*.rows") if path.stem.isdecimal()]
        return sorted((int(path.stem), path) for path in files)

    def _most_rows(self, path: Path) -> int:
        """The rows in a file, by its size."""
        with contextlib.suppress(OSError):
            return max(0, path.stat().st_size - HEADER.size) // self._row_bytes
        return 0

    def _load(self, number: int, path: Path, found: FoundRows) -> Floats | None:
        """The rows of a block, unless it is damaged or of another format."""
        largest = HEADER.size + max(BLOCK_BYTES, self._row_bytes)
        try:
            content = read_inside(self._folder, path.name, limit=largest)
            magic, version, form, first, num, row_bytes, check = HEADER.unpack_from(content)
        except (OSError, DamagedFile, struct.error):
            found.damaged.append(path.name)
            return None
        body = memoryview(content)[HEADER.size :]
        if magic == MAGIC and (version, form, row_bytes) != (FORMAT, self._hash, self._row_bytes):
            found.refused.append(path.name)
            return None
        whole = zlib.crc32(body, zlib.crc32(struct.pack("<QQ", first, num))) == check
        if magic != MAGIC or first != number or len(body) != num * row_bytes or not whole:
            found.damaged.append(path.name)
            return None
        return np.frombuffer(body, np.float32).reshape(num, -1).copy()

    def _delete_before(self, oldest: int) -> None:
        """Delete the blocks whose rows are all older than number `oldest`."""
        blocks = self._blocks()
        for (number, path), (next_number, _) in pairwise(blocks):
            if min(number + self._most_rows(path), next_number) <= oldest:
                path.unlink(missing_ok=True)
