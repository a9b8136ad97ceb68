"""When processes start: first when their fork server is ready, later again if they have ended.

Two rules decide whether a process that has ended is started again. Each process has a budget of
restarts that refills over time, so one kill a minute ends nothing, however long the run. And a process
that ends again and again without any progress is started later each time, and then given up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from spreeze.roles.context import Job
from spreeze.run.processes.pool import Observer, Processes, needs_torch

DELAYS_S = (0.0, 0.1, 0.5, 2.0, 10.0)
"""The delay before each restart of a process that makes no progress; after the last one it is given up."""
KILL_COST, EXCEPTION_COST = 1, 5
"""What a restart costs after an end by a signal, and after an exception that followed progress: that
is likely to come again, at full speed. Without progress, the delays are enough."""

Task = Job | Observer


class RestartBudget:
    """The restarts that one process has left: a token bucket, full at first."""

    def __init__(self, per_minute: float, now_s: float) -> None:
        """`per_minute`: how many tokens it holds, and how many come back in a minute."""
        self._per_minute = self._tokens = float(per_minute)
        self._refilled_s = now_s

    def spend(self, tokens: int, now_s: float) -> bool:
        """Take these tokens out; False, and nothing taken, if there are not enough."""
        refill = (now_s - self._refilled_s) * self._per_minute / 60
        self._tokens = min(self._per_minute, self._tokens + refill)
        self._refilled_s = now_s
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True


class StartQueue:
    """Which processes are to be started, and when."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is to be started yet. `per_minute`: restarts of one process."""
        self._clock, self._per_minute = clock, per_minute
        self.exits: Counter[str] = Counter()
        """How often each process has ended although the run continued."""
        self._futile: Counter[str] = Counter()
        """How often each one has ended without progress since its last progress."""
        self._budgets: dict[str, RestartBudget] = {}
        self._waiting: list[tuple[float, Task]] = []

    def add(self, task: Task) -> None:
        """Start a process as soon as its fork server is ready."""
        self._waiting.append((0.0, task))

    def add_restart(self, task: Task, cost: int, progressed: bool) -> bool:
        """Restart a process that has ended; False if it is given up.

        `progressed`: whether it has done any work since it was started.
        """
        name, now = task.name, self._clock()
        self.exits[name] += 1
        self._futile[name] = 0 if progressed else self._futile[name] + 1
        futile = self._futile[name]
        budget = self._budgets.setdefault(name, RestartBudget(self._per_minute, now))
        if futile > len(DELAYS_S) or not budget.spend(cost, now):
            return False
        delay_s = DELAYS_S[futile - 1] if futile else 0.0
        self._waiting.append((now + delay_s, task))
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
