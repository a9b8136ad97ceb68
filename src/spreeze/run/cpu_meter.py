"""CPU use of the processes of a run, by role."""

from __future__ import annotations

import contextlib

import psutil


class CpuMeter:
    """Measures CPU use between two calls; psutil needs the same process objects each time."""

    def __init__(self) -> None:
        """Nothing is measured before the second call."""
        self._processes: dict[int, psutil.Process] = {}

    def percent(self, pids: dict[str, int]) -> dict[str, float]:
        """Percent of one core for each role, summed over its processes."""
        use: dict[str, float] = {}
        for name, pid in pids.items():
            with contextlib.suppress(psutil.Error):
                role, processes = name.split("-")[0], [psutil.Process(pid)]
                if role == "evaluator":
                    processes += processes[0].children()  # its workers
                for process in processes:
                    known = self._processes.setdefault(process.pid, process)
                    use[role] = use.get(role, 0.0) + known.cpu_percent()
        return use
