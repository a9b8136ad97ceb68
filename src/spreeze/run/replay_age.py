"""How old the stored transitions are."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

MAX_ARRIVALS = 100_000


class ReplayAge:
    """Remembers when env steps were made."""

    def __init__(self) -> None:
        """No step yet."""
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=MAX_ARRIVALS)

    def add(self, time_s: float, env_steps: int) -> None:
        """How many steps there are at this time; called once a second."""
        self._arrivals.append((time_s, env_steps))

    def median_s(self, rows: int) -> float | None:
        """Median age of the newest `rows` transitions, to within a second; None without any."""
        if not rows:
            return None
        now_s, env_steps = self._arrivals[-1]
        index = bisect_left(self._arrivals, env_steps - rows // 2, key=lambda arrival: arrival[1])
        return now_s - self._arrivals[min(index, len(self._arrivals) - 1)][0]
