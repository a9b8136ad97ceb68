"""Metrics: JSON lines in the run directory, one writer per file, and TensorBoard made from them."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH_WORTH, SAMPLING_WORTH = 0.5, 0.25
LARGE_BATCH = 2048
"""To which power of batch size and env steps learning goes on, and the size from which more rows bring nothing;
docs/tuning.md has the runs."""


def finite(value: Any) -> Any:
    """Numbers as JSON knows them: NaN and infinities become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def learning_speed(update_hz: float, batch_size: int, sample_hz: float) -> float:
    """What the settings are to make large, as far as rates tell it: how fast a run learns.

    A larger batch makes an update worth more, but less than in proportion and only up to a size; so do
    fresher transitions.
    """
    worth = min(batch_size, LARGE_BATCH) ** BATCH_WORTH
    return float(update_hz * worth * sample_hz**SAMPLING_WORTH)


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


class TensorBoard:
    """Mirrors the metrics of a run into its `tensorboard/` folder, over env steps."""

    def __init__(self, run_path: Path) -> None:
        """Mirror the run at `run_path`."""
        self._folder = run_path / "tensorboard"
        self._follower = Follower(run_path / "metrics")
        self._writer: Any = None
        # Its import takes a moment on a busy machine: not while the supervisor is needed.
        self._importing = threading.Thread(target=self._open, name="tensorboard", daemon=True)

    def update(self) -> None:
        """Write what is new, if the writer is there by now."""
        if self._importing.ident is None:
            self._importing.start()
        if self._importing.is_alive() or self._writer is None:
            return
        for role, record in self._follower.new():
            suffix = "" if role.endswith("-0") else f"/{role}"
            for name, value in record.items():
                if "/" in name and isinstance(value, int | float):
                    self._writer.add_scalar(name + suffix, value, record["env_steps"])

    def close(self) -> None:
        """Write the rest."""
        if self._importing.ident is None:
            self._importing.start()
        self._importing.join()
        with contextlib.suppress(OSError):
            self.update()
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        with _without_torch():
            from tensorboardX import SummaryWriter

        with contextlib.suppress(OSError):
            self._writer = SummaryWriter(str(self._folder), flush_secs=10)


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Import as if it were not installed: tensorboardX would load it, a second of a core, just to know its tensors."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


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
