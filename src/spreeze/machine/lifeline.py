"""Processes that end with their parent, however the parent ends, and with everything that they have started."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_S, LOOK_AGAIN_S = 3.0, 0.005
OWNER = "SPREEZE_ROLE"
"""Programs inherit this variable: the name of the role that has started them, directly or not."""
MARK = re.compile(r"/memfd:spreeze role (\S+)")
"""Processes that are only forked inherit this mapping, with the same name."""


_marks: list[mmap.mmap] = []


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `by` to this process when `parent` dies. Exit now if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(on: bool = True) -> None:
    """Become the parent of descendants whose own parent ends, in sessions of their own too; or no longer."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on))


def own_what_starts(name: str) -> None:
    """Mark all that this process starts from now on as its own. No other process ever has this name."""
    os.environ[OWNER] = name
    with suppress(OSError):  # too many files
        file = os.memfd_create(f"spreeze role {name}")
        os.truncate(file, mmap.PAGESIZE)
        _marks.append(mmap.mmap(file, mmap.PAGESIZE))
        os.close(file)


def end_children(keep: Mapping[int, str]) -> bool:
    """Kill and reap the children of this process except those with the pids in `keep`, and what these own by their names.

    True if it must be called again: what a killed child has started comes to this process, if it has
    adopted orphans.
    """
    children = [child for child in psutil.Process().children() if child.pid not in keep]
    names = set(keep.values())
    others = [child.pid for child in children if _owner(child) not in names]
    for pid in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(others)


def _owner(process: psutil.Process) -> str | None:
    """The role that has started it; None if it was started without the variables of its parent."""
    with suppress(OSError, ValueError):
        if found := MARK.search(Path(f"/proc/{process.pid}/maps").read_text(errors="replace")):
            return found[1]
    with suppress(psutil.Error, OSError):
        variables: dict[str, str] = process.environ()
        return variables.get(OWNER)
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
        end_children(keep={})
        time.sleep(LOOK_AGAIN_S)
