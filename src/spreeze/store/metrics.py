"""Metrics: JSON lines in the run directory, with one writer per file."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Recorder:
    """Appends records to `metrics/<role>-<i>.jsonl`."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path` for appending."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def record(self, *, time_s: float, env_steps: int, updates: int, **values: Any) -> None:
        """Append one line. Every record can be plotted over time, env steps or updates."""
        line = {"time_s": round(time_s, 3), "env_steps": env_steps, "updates": updates, **values}
        text = json.dumps({name: finite(value) for name, value in line.items()})
        with contextlib.suppress(OSError):  # on a full disk the line is lost and the run continues
            self._file.write(text + "\n")

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()


class MetricsReader:
    """Reads the metrics of a run as they are appended."""

    def __init__(self, folder: Path) -> None:
        """Read every file of the `metrics` folder `folder`."""
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read_new(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (role, record) for each complete line since the last call."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # still being written
                    self._offsets[path] = self._offsets.get(path, 0) + len(line)
                    with contextlib.suppress(json.JSONDecodeError):  # cut short by a full disk
                        yield path.stem, json.loads(line)


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
