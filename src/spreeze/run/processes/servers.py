"""The fork servers of a run: processes that import once what their children need.

Torch takes longer to import than anything else before the first update. So `spreeze train` starts
the servers first, and they import while the command reads its flags and plans the run. This module
imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from spreeze.errors import RunFailed
from spreeze.machine.threads import ONE_THREAD

PRELOAD = ("numpy", "gymnasium", "spreeze.roles.sampler", "spreeze.roles.evaluator")
PRELOAD_WITH_TORCH = ("spreeze.roles.learner",)
CLOSE_S = 5.0
"""How long a server may take to end what its children have started."""


class Server:
    """One fork server; the constructor does not wait for its imports."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        """Start it; it imports the modules of `preload`."""
        self.ready = False
        """Whether it has reported that its imports are done."""
        self.socket, theirs = socket.socketpair()
        environment = os.environ | ONE_THREAD
        # -P: a random.py in the user's folder must not replace the standard library's.
        command = [sys.executable, "-P", "-m", "spreeze.run.processes.forkserver"]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(os.getpid()), *preload],
                    pass_fds=[theirs.fileno()],
                    env=environment | {"PYTHONPATH": path},
                    stdin=subprocess.DEVNULL,
                    # Its own process group: Ctrl-C reaches only the supervisor, which stops the rest in order.
                    process_group=0,
                )
            except OSError as error:
                self.socket.close()
                raise RunFailed(no_process(error.errno)) from None

    def close(self) -> None:
        """End it and everything it has started; closing twice is harmless."""
        self.socket.close()
        if self.process.returncode is not None:
            return
        self.process.terminate()  # it ends its descendants first, also those in other sessions
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_S)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def no_process(number: int | None) -> str:
    """Why the system has refused to start a process, from its error number."""
    why = os.strerror(number or 0)
    if number == errno.EAGAIN:
        why = "there are too many processes. End some, or raise the limit (ulimit -u)"
    if number == errno.ENOMEM:
        why = "there is not enough memory"
    return f"could not start a process: {why}"


@dataclass(frozen=True)
class ForkServers:
    """Where the processes of a run are forked: small ones, and those that need torch."""

    plain: Server
    with_torch: Server
    """The same server as `plain` if no torch is preloaded."""

    @staticmethod
    def start(preload_torch: bool = True) -> ForkServers:
        """Start them. Without `preload_torch` there is one server, whose children import torch if they need it."""
        plain = Server(PRELOAD)
        return ForkServers(plain, Server(PRELOAD_WITH_TORCH) if preload_torch else plain)

    def get(self, with_torch: bool) -> Server:
        """The server for a process that needs torch, or for one that does not."""
        return self.with_torch if with_torch else self.plain

    @property
    def all(self) -> list[Server]:
        """Each server once."""
        return [self.plain] if self.plain is self.with_torch else [self.plain, self.with_torch]

    def close(self) -> None:
        """Kill the servers and everything they have started; closing twice is harmless."""
        for server in self.all:
            server.close()
