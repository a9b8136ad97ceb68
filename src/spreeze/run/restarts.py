"""When processes start: first when their fork server is ready, after a crash with a delay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from spreeze.roles.context import Job
from spreeze.run.processes.pool import Observer, Processes, needs_torch

DELAYS_S = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)
"""The delay before each restart of a process; after the last one it is given up."""

Task = Job | Observer


class StartQueue:
    """Which processes are to be started, and when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is to be started yet."""
        self._clock = clock
        self.exits: Counter[str] = Counter()
        """How often each process has ended although the run continued."""
        self._waiting: list[tuple[float, Task]] = []

    def add(self, task: Task) -> None:
        """Start a process as soon as its fork server is ready."""
        self._waiting.append((0.0, task))

    def add_restart(self, task: Task) -> bool:
        """Restart a process that has ended, with a longer delay each time; False if it has ended too often."""
        self.exits[task.name] += 1
        count = self.exits[task.name]
        if count > len(DELAYS_S):
            return False
        self._waiting.append((self._clock() + DELAYS_S[count - 1], task))
        return True

    def pop_due(self, processes: Processes) -> list[Task]:
        """Take out the processes that can be started now."""
        now, due, waiting = self._clock(), [], []
        for start_s, task in self._waiting:
            if start_s <= now and processes.ready(needs_torch(task)):
                due.append(task)
            else:
                waiting.append((start_s, task))
        self._waiting = waiting
        return due
