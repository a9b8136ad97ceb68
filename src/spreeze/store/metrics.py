"""Metrics: JSON lines in the run directory, with one writer per file."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from spreeze.errors import DamagedFile
from spreeze.faults import fault_point
from spreeze.store.files import open_inside, parse_json
from spreeze.store.write_thread import WriteThread

T = TypeVar("T")

MAX_RECORD_BYTES, MAX_LINE_BYTES = 64 << 10, 4 << 20
"""The longest line that is read as a record, and the longest one that is passed over."""
RECORDS = 2500
"""A record covers at least this part of a run's age, so files grow with its logarithm."""


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def record_interval(base_s: float, age_s: float) -> float:
    """Seconds between two records of a run of this age: a day of a long run takes a few megabytes per file."""
    return max(base_s, age_s / RECORDS)


class Records(Protocol):
    """Takes records: a `Recorder`, or what hands them to one."""

    def record(self, *, time_s: float, env_steps: int, updates: int, **values: Any) -> None:
        """Append one record. Every record can be plotted over time, env steps or updates."""


def as_line(*, time_s: float, env_steps: int, updates: int, **values: Any) -> str:
    """A record as a line of JSON."""
    line = {"time_s": round(time_s, 3), "env_steps": env_steps, "updates": updates, **values}
    return json.dumps({name: finite(value) for name, value in line.items()}) + "\n"


class Recorder:
    """Appends records to `metrics/<role>-<i>.jsonl`.

    On a full disk a line is lost and counted, and the run continues. The file has whole lines only. With a
    thread, all of this happens there, so nobody else waits for the disk.
    """

    def __init__(
        self,
        path: Path,
        on_loss: Callable[[], None] = lambda: None,
        thread: WriteThread | None = None,
    ) -> None:
        """Open the file at `path` for appending; `on_loss` is called for each line that is lost."""
        self._path, self._on_loss = path, on_loss
        self._do = thread.hand_over if thread else lambda do: do()
        self._fd: int | None = None
        self._do(self._try_to_open)

    def record(self, *, time_s: float, env_steps: int, updates: int, **values: Any) -> None:
        """Append one line."""
        self.append(as_line(time_s=time_s, env_steps=env_steps, updates=updates, **values))

    def append(self, line: str) -> None:
        """Append a line that ends with a newline."""
        self._do(lambda: self._append(line))

    def close(self) -> None:
        """Close the file."""
        self._do(self._close)

    def _append(self, line: str) -> None:
        try:
            fault_point("metrics.write")
            if self._fd is None:
                self._fd = self._open()
            _append_whole(self._fd, line.encode())
        except OSError:
            self._on_loss()

    def _try_to_open(self) -> None:
        with contextlib.suppress(OSError):  # tried again with each line
            self._fd = self._open()

    def _close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # its last writer was killed within a line
            with contextlib.suppress(OSError):
                os.write(fd, b"\n")
        return fd


def _append_whole(fd: int, line: bytes) -> None:
    """Append all of a line or nothing."""
    size = os.fstat(fd).st_size
    if os.write(fd, line) < len(line):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class MetricsReader:
    """Reads the metrics of a run as they are appended."""

    def __init__(self, folder: Path) -> None:
        """Read every file of the `metrics` folder `folder`."""
        self._folder = folder
        self.offsets: dict[Path, int] = {}
        """How far each file has been read. A copy from before, put back, reads again from there."""

    def read_new(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (role, record) for each complete line since the last call."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with contextlib.suppress(DamagedFile), open_inside(self._folder, path.name) as file:
                if self.offsets.get(path, 0) > os.fstat(file.fileno()).st_size:
                    self.offsets[path] = 0  # someone has emptied it
                file.seek(self.offsets.get(path, 0))
                for line, record in read_records(file):
                    self.offsets[path] = self.offsets.get(path, 0) + len(line)
                    if record is not None:
                        yield path.stem, record


def read_records(file: BinaryIO) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each complete line and its record, None if it is damaged: its writer was killed within it.

    A line that is too long counts as damaged. One that is still being written ends the reading.
    """
    while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
        whole = len(line) <= MAX_RECORD_BYTES
        try:
            yield line, parse_json(line, "a line of metrics") if whole else None
        except DamagedFile:
            yield line, None


def is_number(value: Any) -> bool:
    """Whether a stored value is a number that can be drawn."""
    return type(value) in (int, float) and abs(value) < 1e300


class Thinned(Generic[T]):
    """An even selection of a growing series, of bounded length."""

    def __init__(self, limit: int) -> None:
        """Keep fewer than `limit` items."""
        self.items: list[T] = []
        self.num_seen = 0
        self._limit, self._stride = limit, 1

    def add(self, item: T) -> None:
        """Add the next item; when there are too many, every other one is dropped."""
        self.num_seen += 1
        if (self.num_seen - 1) % self._stride:
            return
        self.items.append(item)
        if len(self.items) >= self._limit:
            del self.items[1::2]
            self._stride *= 2


class Mean:
    """The mean of all numbers so far."""

    def __init__(self) -> None:
        """No number yet."""
        self._sum, self._num = 0.0, 0

    def add(self, number: float) -> None:
        """Add a number."""
        self._sum += number
        self._num += 1

    @property
    def value(self) -> float | None:
        """The mean to two digits; None without any number."""
        return round(self._sum / self._num, 2) if self._num else None


class Rate:
    """Events per second over a sliding window."""

    def __init__(self, window_s: float = 5.0) -> None:
        """Average over the last `window_s` seconds."""
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def update(self, count: float, now_s: float | None = None) -> float:
        """Add a reading of a running count and return its rate."""
        now = time.monotonic() if now_s is None else now_s
        if self._seen and count < self._seen[-1][1]:  # the process restarted from an older state
            self._seen.clear()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._window_s:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0
