"""A thread that makes writes to disk, so that nobody else waits for a disk that hangs.

Writes are handed over and made in order. What fails, or finds too many others waiting, is dropped and
counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_WRITES, MAX_BYTES = 1000, 1 << 20
"""Writes that wait for the disk, and the bytes of those that say how many they have; more are dropped."""
PATIENCE_S = 0.05
"""How long `write` waits for a disk that answered until now."""


@dataclass
class _Write:
    make: Callable[[], None]
    num_bytes: int
    made: threading.Event = field(default_factory=threading.Event)


class WriteThread(threading.Thread):
    """Makes the writes that are handed over, one after another."""

    def __init__(
        self, name: str, on_loss: Callable[[], None], look_every_s: float | None = None
    ) -> None:
        """`on_loss` is called for each write that is dropped; `routine` at least every `look_every_s`."""
        super().__init__(name=name, daemon=True)
        self._on_loss, self._look_every_s = on_loss, look_every_s
        self._waiting: deque[_Write] = deque()
        self._num_bytes, self._adding = 0, threading.Lock()
        self._wake, self._closing, self._hangs = threading.Event(), False, False

    def hand_over(self, make: Callable[[], None]) -> None:
        """Let the thread make this write; when the thread itself calls this, it does so at once."""
        if threading.current_thread() is self:
            self.attempt(make)
            return
        self._add(_Write(make, 0))
        self._wake.set()

    def write(self, make: Callable[[], None], num_bytes: int) -> None:
        """Let the thread make this write, and wait a moment for it: a process that dies next has said it.

        While the disk hangs, there is no wait. In a process that was forked from this one, there is no
        thread, and the write is made at once.
        """
        if not self.is_alive():
            make()
            return
        write = _Write(make, num_bytes)
        if self._add(write):
            self._wake.set()
            if not self._hangs:
                self._hangs = not write.made.wait(PATIENCE_S)

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def close(self, limit_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Make all writes that wait, for a limited time; `hurry` says whether to stop waiting."""
        self._closing = True
        self._wake.set()
        deadline = time.monotonic() + limit_s
        while self.is_alive() and time.monotonic() < deadline and not hurry():
            self.join(0.05)

    def run(self) -> None:
        """Make writes until the thread is closed."""
        while not self._closing:
            self._wake.wait(self._look_every_s)
            self._wake.clear()
            self._make_all()
            self.routine()
        self._make_all()
        self.finish()

    def routine(self) -> None:
        """What else is to be done each time."""

    def finish(self) -> None:
        """What is to be done at the end."""

    def attempt(self, make: Callable[[], None]) -> None:
        """Make a write, and count it if it fails."""
        try:
            make()
        except Exception:  # whatever it is, the thread goes on
            self._on_loss()

    def _add(self, write: _Write) -> bool:
        with self._adding:
            is_full = self._num_bytes + write.num_bytes > MAX_BYTES and self._waiting
            if not is_full and len(self._waiting) < MAX_WRITES:
                self._num_bytes += write.num_bytes
                self._waiting.append(write)
                return True
        self._on_loss()
        return False

    def _make_all(self) -> None:
        while self._waiting:
            with self._adding:
                write = self._waiting.popleft()
                self._num_bytes -= write.num_bytes
            self.attempt(write.make)
            write.made.set()
            self._hangs = False
