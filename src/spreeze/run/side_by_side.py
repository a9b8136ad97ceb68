"""Several runs on one machine: how many of them train at a time, and each in a separate process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple

from spreeze.machine.facts import Machine, learns_on_gpu
from spreeze.machine.lifeline import die_with_parent
from spreeze.settings.config import Config

POLL_S, CHUNK = 0.2, 1 << 16
RUN_CORES, RUN_BYTES, RUN_GPU_BYTES = 4, 8 << 30, 8 << 30
"""What a run needs to be about as fast as alone: with fewer cores, its learner has none for itself."""


def runs_at_once(config: Config, num_runs: int, machine: Machine) -> tuple[int, str]:
    """How many of the runs train side by side, and why not more."""
    cores = 1 if config.serial else RUN_CORES
    held = {
        f"{machine.cores} cores, {cores} for each": machine.cores // cores,
        f"{_gib(machine.memory_bytes)} of free memory, {_gib(RUN_BYTES)} for each": (
            machine.memory_bytes // RUN_BYTES
        ),
    }
    if learns_on_gpu(config.device, machine.gpus) and machine.gpus:
        free = min(gpu.memory_bytes for gpu in machine.gpus)
        held[f"{_gib(free)} of free GPU memory, {_gib(RUN_GPU_BYTES)} for each"] = (
            free // RUN_GPU_BYTES
        )
    reason = min(held, key=lambda name: held[name])
    return max(1, min(held[reason], num_runs)), reason


def share_cores(cores: list[int], num_runs: int) -> list[list[int]]:
    """The cores of each of the runs that train at a time; as many for each, but for the rest."""
    edges = [i * len(cores) // num_runs for i in range(num_runs + 1)]
    return [cores[a:b] for a, b in pairwise(edges)]


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"


class RunCommand(NamedTuple):
    """A run to be started."""

    label: str
    """What it is called, as in "seed 3"."""
    words: Sequence[str]
    """What follows `python -m`."""


class Ended(NamedTuple):
    """A run that has ended."""

    command: RunCommand
    code: int
    """Its exit code."""


class SideBySide:
    """Runs in processes of their own, each on its share of the cores."""

    def __init__(
        self,
        next_command: Callable[[], RunCommand | None],
        at_once: int,
        show: Callable[[str, str], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Start nothing yet.

        `next_command` is asked whenever cores are free; None if there is none now. `show` gets labels and printed
        lines. `look` is called several times per second while runs go on.
        """
        self.signal: int | None = None
        """The first signal that came."""
        self._next_command, self._look = next_command, look
        self._free = share_cores(sorted(os.sched_getaffinity(0)), at_once)
        # What several would measure before they start is disturbed by the others.
        self._variables = {"SPREEZE_PROBE": "0"} if at_once > 1 else {}
        self._show = show
        self._running: list[_Child] = []
        self._selector = DefaultSelector()

    def train(self) -> Iterator[Ended]:
        """Train all, and give each when it has ended. A signal is passed on, and no further run starts."""
        with self._signals(), self._selector:
            try:
                while self._start_all() or self._running:
                    for key, _ in self._selector.select(POLL_S):
                        if not key.data.show():
                            self._selector.unregister(key.fileobj)
                    for child in [one for one in self._running if one.process.poll() is not None]:
                        yield self._end(child)
                    self._look()
            finally:
                for child in self._running:
                    child.process.kill()
                    child.close()

    def stop(self, label: str) -> None:
        """Ask a run to end politely."""
        for child in self._running:
            if child.command.label == label:
                child.process.send_signal(signal.SIGTERM)

    def _start_all(self) -> bool:
        """Start a run on all cores that are free; False if there is nothing to start now."""
        started = False
        while self._free and self.signal is None:
            if (command := self._next_command()) is None:
                break
            child = _Child(command, self._free.pop(), self._variables, self._show)
            self._running.append(child)
            self._selector.register(child.output, EVENT_READ, child)
            started = True
        return started

    def _end(self, child: _Child) -> Ended:
        """Show the rest of its output, and give its cores to another run."""
        while child.show():
            pass
        if child.output in self._selector.get_map():
            self._selector.unregister(child.output)
        self._running.remove(child)
        self._free.append(child.cores)
        return Ended(child.command, child.close())

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def pass_on(number: int, _frame: object) -> None:
            self.signal = self.signal or number
            for child in self._running:
                child.process.send_signal(number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, pass_on) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Child:
    """One run in a separate process."""

    def __init__(
        self,
        command: RunCommand,
        cores: list[int],
        variables: dict[str, str],
        show: Callable[[str, str], None],
    ) -> None:
        self.command, self.cores, self._show = command, cores, show
        all_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # it plans for these
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches this process, which passes it on once
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 (no threads yet)
                env=os.environ | variables,
            )
        finally:
            os.sched_setaffinity(0, all_cores)
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        self._line = b""

    def show(self) -> bool:
        """Show what it has printed; False if there is nothing more."""
        try:
            found = os.read(self.output, CHUNK)
        except BlockingIOError:
            return False
        *lines, self._line = (self._line + found).split(b"\n")
        for line in lines:
            self._show(self.command.label, line.decode(errors="replace"))
        return bool(found)

    def close(self) -> int:
        """Its exit code."""
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait()
