"""A trace: what each process of a run did, moment by moment, for some seconds of it.

While it is recorded, each process keeps in memory when it began to do something else, and saves this at
the end. `join_traces` makes one file of all of them, for ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import gzip
import io
import json
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.store.files import replace_bytes
from spreeze.store.rundir import RunDir

MAX_MOMENTS = 400_000
"""Moments that one process keeps; its recording ends there."""
ORDER = ("learner", "inference", "sampler", "evaluator", "visualizer")


class Activity(Enum):
    """What a process does."""

    WAIT = "wait"
    ACT = "act"
    SIMULATE = "simulate"
    WRITE = "write rows"
    FETCH = "fetch weights"
    DRAIN = "take rows"
    UPDATE = "update"
    PUBLISH = "publish weights"
    EVALUATE = "evaluate"
    DRAW = "draw"
    OTHER = "other"


ACTIVITIES = tuple(Activity)
_NUMBERS = {activity: number for number, activity in enumerate(ACTIVITIES)}
_MOMENT = np.dtype([("ns", np.int64), ("activity", np.int8)])
"""A process began to do this at this time of the monotonic clock, which all processes share."""

Mark = Callable[[Activity], None]
"""Says what a process does from now on."""

Write = Callable[[Callable[[], None]], None]
"""Makes a write, maybe later. On a full disk it is dropped: then the process is not in the trace."""


def no_mark(_: Activity) -> None:
    """Without a trace nothing is recorded."""


class Tracer:
    """Records what one process does."""

    def __init__(
        self, path: Path, seconds: float, is_due: Callable[[], bool], write: Write
    ) -> None:
        """Record for `seconds` from when `is_due` says so, and have it saved to `path` by `write`."""
        self._path, self._limit_ns, self._is_due = path, int(seconds * 1e9), is_due
        self._write = write
        self._times, self._activities = array("q"), array("b")
        self._doing: Activity | None = None
        self._end_ns, self._is_over = 0, False

    def mark(self, activity: Activity) -> None:
        """The process does this from now on."""
        if self._is_over:
            return
        now_ns = time.monotonic_ns()
        if not self._end_ns:
            if not self._is_due():
                return
            self._end_ns = now_ns + self._limit_ns
        if activity is not self._doing:
            self._doing = activity
            self._add(now_ns, activity)
        if now_ns >= self._end_ns or len(self._times) >= MAX_MOMENTS:
            self.close()

    def close(self) -> None:
        """End the recording, and save it if it had begun."""
        if self._end_ns and not self._is_over:
            self._add(time.monotonic_ns(), Activity.OTHER)
            moments = np.empty(len(self._times), _MOMENT)
            moments["ns"], moments["activity"] = self._times, self._activities
            file = io.BytesIO()
            np.save(file, moments)
            self._write(lambda: self._save(file.getvalue()))
        self._is_over = True
        self._times, self._activities = array("q"), array("b")

    def _save(self, content: bytes) -> None:
        self._path.parent.mkdir(exist_ok=True)
        replace_bytes(self._path, content)

    def _add(self, now_ns: int, activity: Activity) -> None:
        self._times.append(now_ns)
        self._activities.append(_NUMBERS[activity])


def join_traces(run: RunDir) -> dict[str, dict[str, float]]:
    """Make one file of the parts; returns the percentage of its time that each process spent on what."""
    parts = sorted(run.trace_parts.glob("*.npy"), key=_place)
    moments = {part.stem: np.load(part, allow_pickle=False) for part in parts}
    with gzip.open(run.trace, "wt", compresslevel=1) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, (process, rows) in enumerate(moments.items()):
            file.writelines(f"{json.dumps(row)},\n" for row in _titles(number, process))
            file.writelines(_events(number, rows))
        file.write("{}]}\n")  # JSON allows no comma before the bracket
    for part in parts:
        part.unlink()
    with suppress(OSError):  # not empty: a process has just saved its part, too late
        run.trace_parts.rmdir()
    return {process: _percentages(rows) for process, rows in moments.items()}


def read_trace(path: Path) -> dict[str, list[tuple[float, float, Activity]]]:
    """What each process of a trace did: start and duration in seconds of each activity."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    named = [event for event in events if event.get("name") == "process_name"]
    names = {event["pid"]: event["args"]["name"] for event in named}
    spans: dict[str, list[tuple[float, float, Activity]]] = {name: [] for name in names.values()}
    for event in events:
        if event.get("ph") == "X":
            span = event["ts"] / 1e6, event["dur"] / 1e6, Activity(event["name"])
            spans[names[event["pid"]]].append(span)
    return spans


def _place(part: Path) -> tuple[int, int]:
    """The learner first, then samplers by their numbers."""
    role, _, index = part.stem.rpartition("-")
    return ORDER.index(role), int(index)


def _titles(number: int, process: str) -> Iterator[dict[str, Any]]:
    """What a viewer calls a process, and where it shows it."""
    row = {"ph": "M", "pid": number, "tid": number}
    yield row | {"name": "process_name", "args": {"name": process}}
    yield row | {"name": "process_sort_index", "args": {"sort_index": number}}


def _events(number: int, moments: NDArray[Any]) -> Iterator[str]:
    """A line for each thing that a process did. Times are microseconds."""
    starts = (moments["ns"] / 1e3).tolist()
    names = [ACTIVITIES[i].value for i in moments["activity"].tolist()]
    for start, end, name in zip(starts, starts[1:], names, strict=False):
        if end > start:
            yield (
                f'{{"ph": "X", "pid": {number}, "tid": {number}, "name": "{name}", '
                f'"ts": {start:.3f}, "dur": {end - start:.3f}}},\n'
            )


def _percentages(moments: NDArray[Any]) -> dict[str, float]:
    spent = np.bincount(moments["activity"][:-1], np.diff(moments["ns"]), len(ACTIVITIES))
    shares = 100 * spent / max(spent.sum(), 1)
    named = zip(ACTIVITIES, shares.tolist(), strict=True)
    return {activity.value: round(share, 1) for activity, share in named if share}
