"""What a crew needs to note: a run's progress has it, and so has an outpost."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from spreeze.faults import Fault


class Account(Protocol):
    """Where a crew notes what happens to its processes."""

    pids: dict[str, int]
    faults: Counter[Fault]
    standing: dict[str, list[str]]
    restarts: int
    stop_reason: str | None

    def note(self, text: str) -> None:
        """Tell the user about an event."""
