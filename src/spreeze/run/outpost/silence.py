"""Ends an outpost that the learner's machine has forgotten."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

JOIN_S = 600.0
"""How long joining may take: environments are made and tried out."""


class Silence:
    """Ends this process if the learner's machine has been silent for too long."""

    def __init__(self) -> None:
        """Listen from now on."""
        self.limit_s = JOIN_S
        self._heard_s: float = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._listen, name="silence", daemon=True).start()

    def broken(self) -> None:
        """It was heard."""
        self._heard_s = time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Silence does not count in here."""
        self._heard_s = float("inf")
        try:
            yield
        finally:
            self.broken()

    def end(self) -> None:
        """Listen no more."""
        self._over.set()

    def _listen(self) -> None:
        while time.monotonic() - self._heard_s < self.limit_s:
            if self._over.wait(min(1.0, self.limit_s / 4)):
                return
        os._exit(1)  # the fork server and its samplers end with this process
