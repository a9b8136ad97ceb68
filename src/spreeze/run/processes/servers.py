"""The fork servers of a run, started first of all: their imports take longer than anything else does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
PRELOAD = ("numpy", "gymnasium", "spreeze.roles.sampler", "spreeze.roles.evaluator")
PRELOAD_WITH_TORCH = ("spreeze.roles.learner",)


class Server:
    """A fork server: it imports once what its children need, while the caller goes on."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        """Start it."""
        self.ready = False
        """Whether it has said that its imports are done."""
        self.socket, theirs = socket.socketpair()
        # One thread of linear algebra per process, set before numpy is imported anywhere.
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
        # -P: a random.py in the user's folder must not stand in for the library's.
        command = [sys.executable, "-P", "-m", "spreeze.run.processes.forkserver"]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), *preload],
                pass_fds=[theirs.fileno()],
                env=environment | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                # A group of its own: Ctrl-C reaches the supervisor only, which stops the rest in order.
                process_group=0,
            )

    def close(self) -> None:
        """End it, and whatever it has started."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


_early: list[Server] = []


def start_early() -> None:
    """Start those of the run to come, before this process imports what it needs itself."""
    _early.extend((Server(PRELOAD), Server(PRELOAD_WITH_TORCH)))


def servers_of_a_run() -> list[Server]:
    """One for small processes, one for those with torch."""
    if not _early:
        start_early()
    servers = _early.copy()
    _early.clear()
    return servers
