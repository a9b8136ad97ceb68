"""Processes that end with their parent, however the parent ends, and with everything that they have started."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_S, LOOK_AGAIN_S = 3.0, 0.005
OWNER = "SPREEZE_ROLE"
"""Programs inherit this variable: the pid of the role that has started them, directly or not."""


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `by` to this process when `parent` dies. Exit now if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(on: bool = True) -> None:
    """Become the parent of descendants whose own parent ends, in sessions of their own too; or no longer."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on))


def end_children(keep: Collection[int]) -> bool:
    """Kill and reap the children of this process but those in `keep` and what these own.

    True if it must be called again: what a killed child has started comes to this process, if it has
    adopted orphans.
    """
    children = [child for child in psutil.Process().children() if child.pid not in keep]
    others = [child.pid for child in children if _owner(child) not in keep]
    for pid in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(others)


def _owner(process: psutil.Process) -> int | None:
    """The role that has started it; None for a process that was only forked, or whose variables were cleared."""
    with suppress(psutil.Error, OSError, KeyError, ValueError):
        return int(process.environ()[OWNER])
    return None


def reap_orphans(keep: Collection[int]) -> None:
    """Reap the children of this process that have ended, but those in `keep`, whose end is handled elsewhere."""
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in keep:
                return  # it hides the others until it is reaped
            os.waitpid(ended.si_pid, 0)


def end_descendants(limit_s: float = END_S) -> None:
    """Kill everything that this process and its descendants have started, until nothing is left."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and (family := psutil.Process().children(recursive=True)):
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        end_children(keep=())
        time.sleep(LOOK_AGAIN_S)
