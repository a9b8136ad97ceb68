"""A clock that stops together with the processes whose time it takes, and what these use of the machine."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import NamedTuple

import psutil

from spreeze.machine.facts import detect_machine
from spreeze.machine.gpu_meter import GpuMeter
from spreeze.machine.lifeline import adopt_orphans

POLL_S = 0.01
KILL_AFTER_S = 10.0


class Cores(NamedTuple):
    """Cores in use while the clock ran, on average."""

    own: float
    """By the processes of the clock."""
    others: float
    """By other programs."""
    stolen: float
    """Taken by the machine's host."""


class Use(NamedTuple):
    """Seconds of CPU time."""

    busy: float
    """By all programs, with what the host has taken."""
    stolen: float
    family: float
    """By a framework's processes."""

    @classmethod
    def until_now(cls, family: list[psutil.Process]) -> Use:
        """Since the machine, and the processes, were started."""
        cpu, used = psutil.cpu_times(), 0.0
        for process in family:
            with contextlib.suppress(psutil.Error):
                used += sum(process.cpu_times()[:4])  # with children that have ended
        busy = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal
        return cls(busy, cpu.steal, used)


class Family:
    """All that this process has started since, directly or not. It adopts what a parent leaves behind."""

    def __init__(self) -> None:
        """From now on."""
        self._strangers = set(psutil.Process().children())
        adopt_orphans()

    def members(self) -> list[psutil.Process]:
        """The processes now, parents first."""
        found = []
        for child in psutil.Process().children():
            if child not in self._strangers:
                with contextlib.suppress(psutil.Error):
                    found += [child, *child.children(recursive=True)]
        return found

    def end(self, first: psutil.Popen) -> None:
        """Ask the first process to end, then kill what is left, until nothing is."""
        _send(first, signal.SIGTERM)
        with contextlib.suppress(psutil.TimeoutExpired):
            first.wait(KILL_AFTER_S)
        deadline = time.monotonic() + KILL_AFTER_S
        while (left := self.members()) and time.monotonic() < deadline:
            for process in left:
                _send(process, signal.SIGKILL)
            first.poll()  # before anything else can take its exit code
            psutil.wait_procs([process for process in left if process.pid != first.pid], POLL_S)


class Clock:
    """Seconds since the command, without those in which its processes were stopped."""

    def __init__(self, family: Family) -> None:
        """Start."""
        self._family = family
        self._began_s = time.monotonic()
        self._stopped_s = self._own_s = self._others_s = self._stolen_s = 0.0
        self._gpus = GpuMeter(tuple(f"cuda:{i}" for i in range(len(detect_machine().gpus))))
        self._gpu_percents: list[float] = []
        self._before = Use.until_now(family.members())

    def seconds(self) -> float:
        """Now."""
        return time.monotonic() - self._began_s - self._stopped_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the framework inside this block."""
        began_s = time.monotonic()
        if (percent := self._gpus.percent()) is not None:
            self._gpu_percents.append(percent)
        for _ in range(2):  # a process may have been started in between
            family = self._family.members()
            for process in family:
                _send(process, signal.SIGSTOP)
        self._add_use(family)
        try:
            yield
        finally:
            self._before = Use.until_now(family)
            for process in reversed(family):
                _send(process, signal.SIGCONT)
            self._stopped_s += time.monotonic() - began_s

    def cores(self) -> Cores:
        """Who used the CPUs until now."""
        self._add_use(self._family.members())
        passed_s = max(self.seconds(), POLL_S)
        others_s = max(0.0, self._others_s)
        return Cores(self._own_s / passed_s, others_s / passed_s, self._stolen_s / passed_s)

    def gpu_percent(self) -> float | None:
        """Mean use of the GPUs just before each stop. None without a GPU."""
        return mean(self._gpu_percents) if self._gpu_percents else None

    def _add_use(self, family: list[psutil.Process]) -> None:
        now, before = Use.until_now(family), self._before
        stolen, own = now.stolen - before.stolen, now.family - before.family
        self._stolen_s += stolen
        self._own_s += own
        self._others_s += (now.busy - before.busy) - own - stolen
        self._before = now


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
