"""The record of a run: all that the supervisor writes to disk, written by a thread of its own.

The supervisor only hands things over, so a disk that is full, slow or hangs never holds it up. What
cannot be written is dropped and counted, and writing starts again when it can.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.faults import Fault, fault_point
from spreeze.store.files import write_atomic
from spreeze.store.logs import cut_logs
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.store.tensorboard import TensorBoard
from spreeze.store.write_thread import WriteThread
from spreeze.text import plain

LOOK_EVERY_S, TENSORBOARD_EVERY_S = 0.1, 1.0
RETRY_S, RETRY_EVERY_S = 3.0, 0.1
"""How long the summary is tried again on a full disk."""
MAX_ERROR = 200
"""Characters that are shown of an environment's error."""
END_LIMIT_S = 10.0
"""How long a run waits at its end for a disk that hangs."""


@dataclass(frozen=True)
class LastWords:
    """What is written at the end."""

    summary: dict[str, Any]
    status: dict[str, Any]


class Record(WriteThread):
    """Writes status, summary, TensorBoard files and the supervisor's metrics, and cuts long logs."""

    def __init__(self, run_dir: RunDir) -> None:
        """Prepare to write to `run_dir`; `start` starts the thread."""
        super().__init__("record", self.count, LOOK_EVERY_S)
        self.faults = Counter({Fault.OUTPUT_DROPPED: 0, Fault.LOG_CUT: 0})
        """Writes that failed, and logs that were cut. Both keys stay, so any thread may read it."""
        self.learning = False
        """Whether there are updates yet; TensorBoard is imported then, when the cores are less busy."""
        self.summary_problem: str | None = "the disk did not answer"
        """Why summary.json could not be written; None once it is there."""
        self.env_errors: dict[str, str] = {}
        """The newest error of each role's environments, in one line."""
        self._run_dir = run_dir
        self._status: dict[str, Any] | None = None
        self._errors_read: dict[Path, int] = {}
        self._last: LastWords | None = None
        self._counting = threading.Lock()
        file = run_dir.metrics / "supervisor-0.jsonl"
        self._recorder = Recorder(file, self.count, thread=self)
        self._tensorboard, self._tensorboard_s = TensorBoard(run_dir.path), 0.0

    def record(self, *, time_s: float, env_steps: int, updates: int, **values: Any) -> None:
        """Hand over a line of metrics."""
        self._recorder.record(time_s=time_s, env_steps=env_steps, updates=updates, **values)

    def show(self, status: dict[str, Any]) -> None:
        """Hand over the contents of status.json; only the newest are written."""
        self._status = status
        self.wake()

    def end_with(self, last: LastWords, hurry: Callable[[], bool]) -> None:
        """Write everything that is left, for a limited time; `hurry` says whether to stop waiting."""
        self._last = last
        self.close(END_LIMIT_S, hurry)

    def count(self, num: int = 1) -> None:
        """Count writes that were dropped; any thread may call it."""
        with self._counting:
            self.faults[Fault.OUTPUT_DROPPED] += num

    def routine(self) -> None:
        """Write the newest status, cut long logs, read what environments say, and continue the TensorBoard files."""
        if (status := self._status) is not None:
            self._status = None
            self.attempt(lambda: self._write_status(status))
        self.attempt(self._cut_logs)
        self.attempt(self._read_errors)
        now = time.monotonic()
        if self.learning and now - self._tensorboard_s >= TENSORBOARD_EVERY_S:
            self._tensorboard_s = now
            self.attempt(self._tensorboard.update)

    def finish(self) -> None:
        """Write the summary, and close the files."""
        if (last := self._last) is None:
            return
        deadline = time.monotonic() + RETRY_S
        while self.summary_problem is not None:
            self.attempt(lambda: self._write_summary(last.summary))
            if self.summary_problem is None or time.monotonic() > deadline:
                break
            time.sleep(RETRY_EVERY_S)
        self.attempt(lambda: self._write_status(last.status))
        self._recorder.close()
        self.attempt(self._cut_logs)
        self.attempt(self._tensorboard.close)

    def _write_status(self, status: dict[str, Any]) -> None:
        fault_point("status.write")
        view = RunDir(self._run_dir.live).read("view")
        write_atomic(self._run_dir.path / "status.json", status | {"visualizer": view})

    def _write_summary(self, summary: dict[str, Any]) -> None:
        try:
            fault_point("summary.write")
            write_atomic(self._run_dir.path / "summary.json", summary)
            self.summary_problem = None
        except OSError as error:
            self.summary_problem = error.strerror or str(error)
            raise

    def _cut_logs(self) -> None:
        num_cut, num_lost = cut_logs(self._run_dir.path / "logs")
        self.faults[Fault.LOG_CUT] += num_cut
        self.count(num_lost)

    def _read_errors(self) -> None:
        for path in (self._run_dir.path / "logs").glob("*.error"):
            changed = path.stat().st_mtime_ns
            if self._errors_read.get(path) != changed:
                self._errors_read[path] = changed
                lines = path.read_text(errors="replace").strip().splitlines()
                self.env_errors[path.stem] = plain(lines[-1][:MAX_ERROR]) if lines else ""
