"""Reading one run as it grows: its metrics as tables of bounded size, and what has changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from itertools import islice
from typing import Any

from spreeze.dashboard.runs import StoredRun, clean
from spreeze.store.files import loads

MAX_ROWS = 1500
MAX_COLUMNS, MAX_FILES, MAX_NOTES = 120, 16, 300
MAX_LINE_BYTES, READ_BYTES = 64 << 10, 1 << 20
METRICS_FILES = r"(?!sampler-)[\w.-]{1,60}\.jsonl"
"""Files of samplers are left out: the supervisor's file has their sums."""
VIDEO_FILES = r"[\w-]{1,60}\.mp4"
AXES = ("time_s", "env_steps", "updates")


class Table:
    """The numbers of one metrics file. When there are too many rows, every other one is dropped."""

    def __init__(self) -> None:
        """Start empty."""
        self.columns = list(AXES)
        self.rows: list[list[float | None]] = []
        self._stride, self._seen = 1, 0
        self.fresh: list[list[float | None]] = []
        """Rows since the last poll."""

    def add(self, record: dict[str, Any]) -> None:
        """Add the numbers of a record."""
        self._seen += 1
        if (self._seen - 1) % self._stride:
            return
        for name, value in record.items():
            if _is_number(value) and name not in self.columns and len(self.columns) < MAX_COLUMNS:
                self.columns.append(name)
        row = [record.get(name) for name in self.columns]
        kept = [value if _is_number(value) else None for value in row]
        self.rows.append(kept)
        self.fresh.append(kept)
        if len(self.rows) >= 2 * MAX_ROWS:
            self.rows = self.rows[::2]
            self._stride *= 2


class RunTail:
    """Everything that a page shows of a run."""

    def __init__(self, run: StoredRun, files: str = METRICS_FILES) -> None:
        """Prepare to read `run`. Only metrics files that match `files` are read."""
        self.run, self._files = run, files
        self.tables: dict[str, Table] = {}
        self.notes: deque[dict[str, Any]] = deque(maxlen=MAX_NOTES)
        self._new_notes: list[dict[str, Any]] = []
        self._offsets: dict[str, int] = {}
        self._sent: dict[str, Any] = {}

    def poll(self) -> tuple[dict[str, Any], bool]:
        """Read on. Returns what has changed since the last poll, and whether there is more to read now."""
        more = False
        for name in self.run.listing("metrics", self._files)[:MAX_FILES]:
            more |= self._read(name)
        changes: dict[str, Any] = {}
        tables = {
            role: {"columns": table.columns, "rows": table.fresh}
            for role, table in self.tables.items()
            if table.fresh
        }
        if tables:
            changes["tables"] = tables
        if self._new_notes:
            changes["notes"] = self._new_notes
        self._new_notes = []
        for table in self.tables.values():
            table.fresh = []
        for name, value in self._state().items():
            if self._sent.get(name) != value:
                self._sent[name] = changes[name] = value
        return changes, more

    def snapshot(self) -> dict[str, Any]:
        """Everything up to the last poll."""
        tables = {
            role: {"columns": table.columns, "rows": table.rows}
            for role, table in self.tables.items()
        }
        return {"snapshot": True, "tables": tables, "notes": list(self.notes), **self._sent}

    def frame_stamp(self) -> int:
        """A number that changes with every new picture; 0 without one."""
        with contextlib.suppress(OSError):
            return (self.run.live / "frame.jpg").lstat().st_mtime_ns
        return 0

    def _state(self) -> dict[str, Any]:
        """What the small files say."""
        return {
            "status": self.run.read("status"),
            "summary": self.run.read("summary"),
            "view": self.run.json("live", "view.json"),
            "videos": self.run.listing("videos", VIDEO_FILES),
        }

    def _read(self, name: str) -> bool:
        """Read the new lines of one file. Returns whether there are more."""
        file = self.run.open("metrics", name)
        if file is None:
            return False
        offset = self._offsets.get(name, 0)
        with file:
            if offset > os.fstat(file.fileno()).st_size:
                offset = 0  # someone has emptied it
            file.seek(offset)
            data = file.read(READ_BYTES)
        lines, _, _ = data.rpartition(b"\n")
        if not lines and len(data) == READ_BYTES:
            self._offsets[name] = offset + len(data)  # a line that never ends is skipped
            return True
        self._offsets[name] = offset + (len(lines) + 1 if lines else 0)
        for line in lines.splitlines():
            if len(line) <= MAX_LINE_BYTES:
                with contextlib.suppress(ValueError):
                    self._add(name.removesuffix(".jsonl"), loads(line))
        return len(data) == READ_BYTES

    def _add(self, role: str, record: Any) -> None:
        """Sort one record into the notes and the table of its role."""
        if not isinstance(record, dict):
            return
        record = {clean(k): clean(v, 0) for k, v in islice(record.items(), MAX_COLUMNS)}
        note_values = {k: v for k, v in record.items() if k == "event" or k.startswith("tuner/")}
        if note_values:
            note = {axis: record.get(axis) for axis in AXES} | note_values
            self.notes.append(note)
            self._new_notes.append(note)
        if any(_is_number(v) for k, v in record.items() if k not in AXES):
            self.tables.setdefault(role, Table()).add(record)


async def curve(run: StoredRun) -> list[list[float | None]]:
    """The evaluations of a run as rows [time_s, env_steps, updates, mean return]."""
    tail = RunTail(run, r"evaluator-0\.jsonl")
    while tail.poll()[1]:
        await asyncio.sleep(0)
    table = tail.tables.get("evaluator-0")
    if table is None or "eval/mean_reward" not in table.columns:
        return []
    wanted = [table.columns.index(name) for name in (*AXES, "eval/mean_reward")]
    stride = max(1, len(table.rows) // 400)
    return [
        [row[i] if i < len(row) else None for i in wanted]
        for row in (*table.rows[:-1:stride], *table.rows[-1:])
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
