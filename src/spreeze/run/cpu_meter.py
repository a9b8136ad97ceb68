"""CPU use: how many cores the processes of a run use, by role, and how many other programs use."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import NamedTuple

import psutil

from spreeze.machine.facts import usable_cores

WINDOW_S = 5.0
FULL = 0.9
"""Use of the CPUs from which a process that is added takes time from the others."""


class CpuUse(NamedTuple):
    """What is used, in cores."""

    roles: dict[str, float]
    """By role, the programs included that it has started."""
    others: float
    """By programs that do not belong to the run."""
    cores: int
    """How many the run may use."""
    cpus: int
    """How many it shares with other programs: more than `cores` where a container's limit is lower."""

    @property
    def run(self) -> float:
        """By all processes of the run."""
        return sum(self.roles.values())

    def metrics(self) -> dict[str, float]:
        """As they are recorded: 100 is one core."""
        roles = {f"perf/cpu_percent/{role}": 100 * use for role, use in self.roles.items()}
        others = {"perf/cpu_percent_others": 100 * self.others}
        return {"perf/cpu_percent": 100 * self.run, **roles, **others}

    @property
    def is_full(self) -> bool:
        """Whether no CPU is idle."""
        return self.run + self.others >= FULL * self.cpus


class _Reading(NamedTuple):
    """Seconds of CPU time until a moment."""

    time_s: float
    used: dict[str, float]
    """By role."""
    busy_s: float
    """By all programs."""


class CpuMeter:
    """Follows the processes of the run, this one and all that descend from it, and its CPUs."""

    def __init__(self) -> None:
        """Nothing is known before the second measurement."""
        self._run = psutil.Process()
        self._cpus = sorted(os.sched_getaffinity(0))
        self._cores = usable_cores()
        self._seen: dict[psutil.Process, float] = {}
        """CPU seconds of each process."""
        self._used: dict[str, float] = {}
        """CPU seconds of each role since the first measurement."""
        self._readings: deque[_Reading] = deque()

    def measure(self, pids: dict[str, int], now_s: float) -> CpuUse | None:
        """The use over the last seconds; `pids` are those of the roles, by their names. None at first."""
        self._count(pids)
        now = _Reading(now_s, dict(self._used), _busy_s(self._cpus))
        self._readings.append(now)
        while len(self._readings) > 2 and self._readings[1].time_s <= now_s - WINDOW_S:
            self._readings.popleft()
        then = self._readings[0]
        passed_s = now_s - then.time_s
        if not passed_s:
            return None
        roles = {
            role: (used - then.used.get(role, 0.0)) / passed_s for role, used in now.used.items()
        }
        others = (now.busy_s - then.busy_s) / passed_s - sum(roles.values())
        return CpuUse(roles, max(others, 0.0), self._cores, len(self._cpus))

    def _count(self, pids: dict[str, int]) -> None:
        """Add to each role what its processes have used since the last call."""
        is_first = not self._seen
        seen, self._seen = self._seen, {}
        roles = {pid: name.split("-")[0] for name, pid in pids.items()}
        processes = [self._run, *self._run.children(recursive=True)]
        for process in processes:  # parents come before their children
            with contextlib.suppress(psutil.Error), process.oneshot():
                role = roles.setdefault(process.pid, roles.get(process.ppid(), "supervisor"))
                times = process.cpu_times()
                self._seen[process] = used = times.user + times.system
                # One that is new since the last call has used all of it since then.
                before = seen.get(process, used if is_first else 0.0)
                self._used[role] = self._used.get(role, 0.0) + used - before


def _busy_s(cpus: list[int]) -> float:
    """Seconds that these CPUs have not been idle; what a virtual machine has lost to others counts."""
    with contextlib.suppress(OSError, psutil.Error):
        times = psutil.cpu_times(percpu=True)
        busy: list[float] = [
            t.user + t.nice + t.system + t.irq + t.softirq + t.steal for t in times
        ]
        return sum(busy[cpu] for cpu in cpus if cpu < len(busy))
    return 0.0
