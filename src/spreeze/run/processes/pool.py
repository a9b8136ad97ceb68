"""The child processes of a run: forked by its fork servers, watched by the supervisor."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import BinaryIO

import cloudpickle

from spreeze.roles.context import Job
from spreeze.run.processes import forkserver
from spreeze.run.processes.call_result import CallResult, Raised
from spreeze.run.processes.servers import ForkServers, Server, no_process
from spreeze.user_code import allowed
from spreeze.wires.arena import Arena

OOM_POINTS = {
    "sampler": 1000,
    "visualizer": 990,
    "dashboard": 980,
    "tracker": 980,
    "evaluator": 970,
}
"""Whom the kernel ends first when memory runs out: what is replaced at the lowest cost. A point is a thousandth of the
memory: with these, the learner comes last even if it uses nearly all of it."""


class StartFailed(RuntimeError):
    """The system did not allow another process."""


@dataclass
class Child:
    """A process of this run, as the supervisor sees it."""

    name: str
    pid: int
    report_fd: int
    """Where its report is read; -1 when that is complete."""
    exit_code: int | None = None
    """None while it runs; negative if a signal ended it."""
    report: bytes = b""
    """What it wrote at its end: how it ended, as a pickled CallResult."""

    @property
    def how_it_ended(self) -> str:
        """The signal or the exit code, for a person."""
        code = self.exit_code or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    @property
    def result(self) -> CallResult | None:
        """What it reported; None without a whole report."""
        with contextlib.suppress(pickle.UnpicklingError, EOFError):
            result: CallResult = cloudpickle.loads(self.report)
            return result
        return None

    @property
    def error(self) -> Raised | None:
        """The exception that ended it; None if it was something else."""
        result = self.result
        return result if isinstance(result, Raised) else None

    def kill(self) -> None:
        """Send SIGKILL if it still runs."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it still runs."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def read_report(self) -> None:
        """Take what has arrived of its report, without waiting for more."""
        with contextlib.suppress(BlockingIOError):
            while self.report_fd >= 0:
                part = os.read(self.report_fd, 1 << 16)
                self.report += part
                if not part:
                    self.close_report()

    def close_report(self) -> None:
        """Read no more; closing twice is harmless."""
        if self.report_fd >= 0:
            os.close(self.report_fd)
            self.report_fd = -1


class Processes:
    """Starts and watches the processes of one run."""

    def __init__(self, servers: ForkServers | None = None) -> None:
        """Use these fork servers, or start one that preloads no torch; `close` ends them."""
        self._servers = servers or ForkServers.start(preload_torch=False)
        self._running: dict[int, Child] = {}
        self._ended: list[Child] = []
        """Those that `poll` has not returned yet: a child may end while another one is started."""
        self.failure: str | None = None
        """Why no process can run any more: a fork server has ended, and its children with it."""

    def ready(self, with_torch: bool) -> bool:
        """Whether a process would start at once: its server has finished its imports."""
        return self._servers.get(with_torch).ready

    def start(
        self,
        name: str,
        function: str,
        payload: bytes,
        output: int,
        fds: tuple[int, ...] = (),
        with_torch: bool = False,
    ) -> Child:
        """Run `module:function(payload, report_fd, *fds)` in a child whose output goes to `output`."""
        server = self._servers.get(with_torch)
        points = OOM_POINTS.get(name.partition("-")[0], 0)
        request = forkserver.Request(function, payload, sys.path, allowed(), points)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        child = Child(name, 0, reading)
        try:
            forkserver.send(server.socket, request, (writing, *fds, output))
        except OSError:  # the server has ended; receiving says how
            pass
        finally:
            os.close(writing)
        while (message := self._receive(server)) is not None:
            kind, child.pid, code = message
            if kind == "started":
                self._running[child.pid] = child
                return child
            if kind == "failed":
                child.close_report()
                raise StartFailed(no_process(code))
        child.close_report()
        raise StartFailed(self.failure)

    def poll(self, timeout_s: float = 0.0) -> list[Child]:
        """Children that have ended since the last call; waits up to `timeout_s` for one."""
        self._handle_messages(0.0 if self._ended else timeout_s)
        ended, self._ended = self._ended, []
        return ended

    def wait(self, children: Sequence[Child], timeout_s: float) -> None:
        """Wait until these children have ended, up to `timeout_s`; `poll` does not return them then."""
        deadline = time.monotonic() + timeout_s
        while (
            any(c.exit_code is None for c in children) and (left := deadline - time.monotonic()) > 0
        ):
            self._handle_messages(min(left, 0.1))
        self._ended = [child for child in self._ended if child not in children]

    def close(self) -> None:
        """Kill what still runs, and the fork servers."""
        for child in self._running.values():
            child.kill()
            child.close_report()
        self._running.clear()
        self._servers.close()

    def _handle_messages(self, timeout_s: float) -> None:
        """Handle everything that has arrived from servers and children; wait for it up to `timeout_s`."""
        servers = {server.socket: server for server in self._servers.all}
        while self.failure is None:
            reports = {c.report_fd: c for c in self._running.values() if c.report_fd >= 0}
            ready = connection.wait([*servers, *reports], timeout_s)
            if not ready:
                return
            for source in ready:
                if isinstance(source, int):
                    reports[source].read_report()
                elif self._receive(servers[source]) is None:  # type: ignore[index]
                    return
            timeout_s = 0.0

    def _receive(self, server: Server) -> tuple[str, int, int] | None:
        """The next message of a server, noted if it is about the end of a child; None if the server has ended."""
        message = forkserver.receive(server.socket)
        if message is None:
            self.failure = f"a fork server of the run ended with exit code {server.process.wait()}"
            for pid in list(self._running):
                self._exited(pid, -signal.SIGKILL)
            return None
        kind, pid, code = message[0]
        server.ready = True
        if kind == "exited":
            self._exited(pid, code)
        return kind, pid, code

    def _exited(self, pid: int, code: int) -> None:
        child = self._running.pop(pid)
        child.exit_code = code
        child.read_report()
        child.close_report()
        self._ended.append(child)


@dataclass(frozen=True)
class Observer:
    """A process that watches a run through its directory alone: the live page, a tracker."""

    name: str
    function: str
    """`module:function(payload, report_fd, *fds)`."""
    payload: bytes
    fds: tuple[int, ...]


def needs_torch(task: Job | Observer) -> bool:
    """Whether the fork server that has imported torch starts it."""
    return isinstance(task, Job) and (task.role == "learner" or task.acts_through_torch)


def start_task(processes: Processes, task: Job | Observer, arena: Arena, log: BinaryIO) -> Child:
    """Start a role or an observer, with its output appended to `log`."""
    fds: tuple[int, ...]
    if isinstance(task, Job):
        function, fds = "spreeze.run.processes.entry:role_main", (arena.fd,)
        payload = cloudpickle.dumps((task, arena.blocks))
    else:
        function, payload, fds = task.function, task.payload, task.fds
    try:
        return processes.start(
            task.name, function, payload, log.fileno(), fds, with_torch=needs_torch(task)
        )
    except OSError as error:  # such as too many open files
        raise StartFailed(f"could not start {task.name}: {error.strerror}") from None
