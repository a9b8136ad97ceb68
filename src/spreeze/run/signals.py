"""What Ctrl-C, SIGTERM and SIGHUP mean for a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """The first signal asks for a clean stop; Ctrl-C after it kills the roles at once."""

    def __init__(self, serial: bool) -> None:
        """`serial`: whether all roles run in this process."""
        self.serial = serial
        self.signal: int | None = None
        """The first signal that came."""
        self.urgent = False
        """Whether Ctrl-C was pressed again."""

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal. Raises in serial mode only, because a signal may interrupt any line of code."""
        self.urgent |= self.signal is not None and number == signal.SIGINT
        self.signal = self.signal or number
        if self.urgent and self.serial:
            raise KeyboardInterrupt  # the only process may be stuck inside its environment

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals inside the block. Does nothing outside the main thread, where Python cannot handle any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, self) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
