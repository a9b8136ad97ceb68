"""The child processes of a run: forked by its fork servers, watched by the supervisor."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from spreeze.errors import UsageError
from spreeze.roles.context import Job
from spreeze.run.processes import forkserver
from spreeze.run.processes.call_result import CallResult, Raised, Refused
from spreeze.run.processes.servers import ForkServers, Server
from spreeze.user_code import allowed
from spreeze.wires.arena import Arena

CALL_LIMIT_S = 120.0


class CallFailed(RuntimeError):
    """A function raised in another process; the message is its traceback."""

    def __init__(self, traceback: str, cause: str) -> None:
        """`cause` is the problem in one line."""
        super().__init__(traceback)
        self.cause = cause


@dataclass
class Child:
    """A process of this run, as the supervisor sees it."""

    name: str
    pid: int
    report_fd: int
    exit_code: int | None = None
    """None while it runs; negative if a signal ended it."""
    report: bytes = b""
    """What it wrote at its end: its result, or its traceback."""

    @property
    def how_it_ended(self) -> str:
        """The signal or the exit code, for a person."""
        code = self.exit_code or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """Send SIGKILL if it still runs."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Processes:
    """Starts and watches the processes of one run."""

    def __init__(self, servers: ForkServers | None = None) -> None:
        """Use these fork servers, or start one that preloads no torch; `close` ends them."""
        self._servers = servers or ForkServers.start(preload_torch=False)
        self._running: dict[int, Child] = {}
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
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        request = {
            "function": function,
            "payload": payload,
            "sys_path": sys.path,
            "user_code": allowed(),
        }
        try:
            forkserver.send(server.socket, request, (writing, *fds, output))
        finally:
            os.close(writing)
        while (message := self._receive(server)) is not None:
            kind, pid, code = message
            if kind == "started":
                child = Child(name, pid, reading)
                self._running[pid] = child
                return child
            if kind == "exited":
                self._exited(pid, code)
        os.close(reading)
        raise RuntimeError(self.failure)

    def poll(self, timeout_s: float = 0.0) -> list[Child]:
        """Children that have ended since the last call; waits up to `timeout_s` for one."""
        ended: list[Child] = []
        by_socket = {server.socket: server for server in self._servers.all}
        while self._running and (ready := select.select(list(by_socket), [], [], timeout_s)[0]):
            for line in ready:
                if (message := self._receive(by_socket[line])) is None:
                    return [
                        *ended,
                        *(self._exited(pid, -signal.SIGKILL) for pid in list(self._running)),
                    ]
                kind, pid, code = message
                if kind == "exited":
                    ended.append(self._exited(pid, code))
            timeout_s = 0.0
        return ended

    def wait(self, children: list[Child], timeout_s: float) -> None:
        """Wait until these children have ended, up to `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (
            any(c.exit_code is None for c in children) and (left := deadline - time.monotonic()) > 0
        ):
            self.poll(min(left, 0.1))

    def close(self) -> None:
        """Kill what still runs, and the fork servers."""
        for child in self._running.values():
            child.kill()
            os.close(child.report_fd)
        self._running.clear()
        self._servers.close()

    def _receive(self, server: Server) -> tuple[str, int, int] | None:
        message = forkserver.receive(server.socket)
        if message is None:
            self.failure = f"a fork server of the run ended with exit code {server.process.wait()}"
            return None
        kind, pid, code = message[0]
        server.ready = True
        return kind, pid, code

    def _exited(self, pid: int, code: int) -> Child:
        child = self._running.pop(pid)
        child.exit_code = code
        with open(child.report_fd, "rb") as pipe:
            child.report = pipe.read() or b""
        return child


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
    return isinstance(task, Job) and task.role == "learner"


def start_task(processes: Processes, task: Job | Observer, arena: Arena, log: Path) -> Child:
    """Start a role or an observer, with its output appended to `log`."""
    fds: tuple[int, ...]
    if isinstance(task, Job):
        function, fds = "spreeze.run.processes.entry:role_main", (arena.fd,)
        payload = cloudpickle.dumps((task, arena.blocks))
    else:
        function, payload, fds = task.function, task.payload, task.fds
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return processes.start(
            task.name, function, payload, output.fileno(), fds, with_torch=needs_torch(task)
        )


def call(
    processes: Processes,
    function: Callable[..., Any],
    *arguments: Any,
    with_torch: bool = False,
) -> Any:
    """Call a function in a throw-away process and return its result.

    UsageError is raised as it is. Any other exception becomes a CallFailed with its traceback: the
    exception itself may not be picklable.
    """
    output = os.memfd_create("output")
    try:
        payload = cloudpickle.dumps((function, arguments))
        function_name = "spreeze.run.processes.entry:call_main"
        child = processes.start("probe", function_name, payload, output, with_torch=with_torch)
        processes.wait([child], CALL_LIMIT_S)
        os.lseek(output, 0, os.SEEK_SET)
        with open(output, "rb", closefd=False) as file:
            printed = file.read().decode(errors="replace")
    finally:
        os.close(output)
    if child.exit_code is None:
        child.kill()
        cause = f"It did not return within {CALL_LIMIT_S:.0f} s."
        raise CallFailed(f"{printed}\n{cause}", cause)
    if not child.report:
        cause = f"Its process ended with exit code {child.exit_code}."
        raise CallFailed(f"{printed}\n{cause}", cause)
    result: CallResult = cloudpickle.loads(child.report)
    if isinstance(result, Refused):
        raise UsageError(result.problems)
    if isinstance(result, Raised):
        raise CallFailed(result.traceback, result.cause)
    return result.value
