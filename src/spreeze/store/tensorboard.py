"""TensorBoard event files, written from the metrics of a run."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spreeze.faults import fault_point
from spreeze.store.metrics import MetricsReader, is_number

FLUSH_EVERY_S = 10.0


class TensorBoard:
    """Copies the metrics of a run into its `tensorboard/` folder, with env steps as the step.

    It writes in the thread that calls it. After an OSError the next `update` begins a new file and
    repeats what may not have reached the old one. So a full disk loses nothing, once there is room again.
    """

    def __init__(self, run_path: Path) -> None:
        """Prepare to copy the metrics of the run at `run_path`."""
        self._folder = run_path / "tensorboard"
        self._metrics = MetricsReader(run_path / "metrics")
        self._file: Any = None
        self._num_files = 0
        self._flushed_s = 0.0
        self._flushed: dict[Path, int] = {}
        """How far the metrics had been read at the last flush."""

    def update(self, flush: bool = False) -> None:
        """Write the new records. The first call imports tensorboardX, which may take a second."""
        try:
            fault_point("tensorboard.write")
            if self._file is None:
                self._open()
            for role, record in self._metrics.read_new():
                self._write(role, record)
            if flush or time.monotonic() - self._flushed_s >= FLUSH_EVERY_S:
                self._file.flush()
                self._flushed_s = time.monotonic()
                self._flushed = dict(self._metrics.offsets)
        except OSError:
            self._give_up_file()
            raise

    def close(self) -> None:
        """Write the remaining records and close the file."""
        self.update(flush=True)
        self._file.close()

    def _write(self, role: str, record: dict[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        suffix = "" if role.endswith("-0") else f"/{role}"
        values = [
            Summary.Value(tag=name + suffix, simple_value=float(value))
            for name, value in record.items()
            if "/" in name and is_number(value)
        ]
        step = record.get("env_steps", 0)
        if values and is_number(step) and abs(step) < 2**63:
            event = Event(
                wall_time=time.time(),
                step=int(step),
                summary=Summary(value=values),
            )
            self._file.write(event.SerializeToString())

    def _open(self) -> None:
        """Begin a new file."""
        with _without_torch():
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.record_writer import RecordWriter

        class EventFile(RecordWriter):  # type: ignore[misc]
            def flush(self) -> None:  # tensorboardX would wait here until the disk has it all
                self._writer.flush()

        self._folder.mkdir(parents=True, exist_ok=True)
        now, host = time.time(), socket.gethostname()
        name = f"events.out.tfevents.{now:.0f}.{host}.{self._num_files}"
        self._file = EventFile(str(self._folder / name))
        self._num_files += 1
        self._file.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())

    def _give_up_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            path = Path(self._file.path)
            with contextlib.suppress(OSError):
                if path.stat().st_size == 0:  # or a disk that stays full gets one every second
                    path.unlink()
        self._file = None
        self._metrics.offsets = dict(self._flushed)


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hide torch from tensorboardX, which would import it (a second of CPU time) only to accept tensors."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
