"""Metrics: JSON lines in the run directory, one writer per file, and TensorBoard made from them."""

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
    """Numbers as JSON knows them: NaN and infinities become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Recorder:
    """Appends records to `metrics/<role>-<i>.jsonl`."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def record(self, *, time_s: float, env_steps: int, updates: int, **values: Any) -> None:
        """One line; every record can be drawn over time, env steps or updates."""
        line = {"time_s": round(time_s, 3), "env_steps": env_steps, "updates": updates, **values}
        text = json.dumps({name: finite(value) for name, value in line.items()})
        with contextlib.suppress(OSError):  # a full disk costs a line, not the run
            self._file.write(text + "\n")

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()


class Follower:
    """Reads what was appended to the metrics of a run since the last look."""

    def __init__(self, folder: Path) -> None:
        """Follow every file of a `metrics` folder."""
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(role, record) for each complete line that is new."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # its writer is in the middle of it
                    self._offsets[path] = self._offsets.get(path, 0) + len(line)
                    with contextlib.suppress(json.JSONDecodeError):  # cut off by a full disk
                        yield path.stem, json.loads(line)


class Rate:
    """Events per second over a sliding window."""

    def __init__(self, window_s: float = 5.0) -> None:
        """Over the last `window_s` seconds."""
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def update(self, count: float, now_s: float | None = None) -> float:
        """Take note of a running count; returns its rate."""
        now = time.monotonic() if now_s is None else now_s
        if self._seen and count < self._seen[-1][1]:  # it began anew from an older state
            self._seen.clear()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._window_s:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0
