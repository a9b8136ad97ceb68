"""What a user's signals mean for a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Ctrl-C, SIGTERM, SIGHUP: the first asks for a clean stop, a second Ctrl-C ends the run at once."""

    def __init__(self, serial: bool) -> None:
        """Nothing was asked yet."""
        self.serial = serial
        self.signal: int | None = None
        self.urgent = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal. Raises nothing: an exception could come in the middle of anything."""
        self.urgent |= self.signal is not None and number == signal.SIGINT
        self.signal = self.signal or number
        if self.urgent and self.serial:
            raise KeyboardInterrupt  # the one process may be stuck inside the environment

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals inside the block; only a main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, self) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
