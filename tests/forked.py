"""Forked processes, for tests that kill writers at random.

The children only compute with numpy and leave by os._exit, so threads of the parent do no harm.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from spreeze.machine.lifeline import die_with_parent


class Children:
    """Forked processes."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def start(self, function: Callable[..., None], *arguments: Any) -> int:
        """Call a function in a child, which exits with 0 if the function returns."""
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            _be_child(parent, function, arguments)
        self.pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """Kill a child; it must still be running."""
        os.kill(pid, signal.SIGKILL)
        assert self.reap(pid) == -signal.SIGKILL

    def reap(self, pid: int) -> int:
        """Wait until a child ends; returns its exit code."""
        _, status = os.waitpid(pid, 0)
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(status)


def _be_child(parent: int, function: Callable[..., None], arguments: Any) -> NoReturn:
    try:
        die_with_parent(parent)
        function(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@contextmanager
def forked() -> Iterator[Children]:
    """Kill and reap every child at the end."""
    children = Children()
    try:
        yield children
    finally:
        for pid in list(children.pids):
            os.kill(pid, signal.SIGKILL)
            children.reap(pid)
