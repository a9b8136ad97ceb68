"""Processes that end with their parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `by` to this process when `parent` dies. Exit now if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)
