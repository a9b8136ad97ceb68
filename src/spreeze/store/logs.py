"""Logs of bounded size: an environment may print without end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from spreeze.faults import fault_point
from spreeze.store.files import replace_bytes
from spreeze.store.write_thread import WriteThread

LOG_BYTES, KEPT_BYTES = 8 << 20, 1 << 20
"""When a log is cut, and how much of its end stays, in `<name>.log.1`."""


class _Forgiving(io.FileIO):
    """A stream that drops what cannot be written, and counts it."""

    on_loss: Callable[[], None] = staticmethod(lambda: None)
    thread: WriteThread | None = None

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        if self.thread is None:
            self._write(content)
        else:
            self.thread.write(lambda: self._write(content), len(content))
        return len(content)

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[super().write(content) or len(content) :]
        except OSError:
            self.on_loss()


class _Open(io.TextIOWrapper):
    """Standard output, which an environment may close while others still print."""

    def close(self) -> None:
        self.flush()


def forgive_failed_prints() -> None:
    """Let `print` never raise in this process: on a full disk an environment's print would end its step."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = io.BufferedWriter(_Forgiving(fd, "w", closefd=False))
        text = _Open(stream, "utf-8", "backslashreplace", line_buffering=fd == 2)
        setattr(sys, name, text)


def count_lost_prints(on_loss: Callable[[], None], thread: WriteThread | None) -> None:
    """Call `on_loss` for each print that is lost. With a thread, none waits long for a disk that hangs."""
    _Forgiving.on_loss, _Forgiving.thread = staticmethod(on_loss), thread


def cut_logs(folder: Path) -> tuple[int, int]:
    """Cut the logs that are too long; returns how many were cut, and of how many the end was lost."""
    num_cut = num_lost = 0
    for path in folder.glob("*.log"):
        if path.is_symlink() or path.stat().st_size <= LOG_BYTES:
            continue
        try:
            fault_point("log.rotate")
            _keep_end(path)
        except OSError:
            num_lost += 1
        # Its writers append, so they go on at the new end. This frees space on a full disk, too.
        os.truncate(path, 0)
        num_cut += 1
    return num_cut, num_lost


def _keep_end(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(-KEPT_BYTES, os.SEEK_END)
        replace_bytes(path.with_name(f"{path.name}.1"), file.read(KEPT_BYTES))


def open_log(path: Path) -> BinaryIO:
    """A log to append to; on a disk that has no room for another file, what is written goes nowhere."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")


def open_text_log(path: Path | None) -> TextIO:
    """A log to append text to, which never raises; None: what is written goes nowhere."""
    with open_log(Path(os.devnull) if path is None else path) as raw:
        stream = io.BufferedWriter(_Forgiving(os.dup(raw.fileno()), "w"))
    return io.TextIOWrapper(stream, "utf-8", "backslashreplace", line_buffering=True)
