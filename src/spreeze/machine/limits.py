"""The limits of this process (`ulimit`): whether a run fits, checked before anything starts."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

FILES, FILES_PER_PROCESS = 40, 3
"""Files that the supervisor opens for itself, and for each process: its report, its log, its handle."""
THREADS_PER_PROCESS = 3
"""What counts against `ulimit -u`; libraries start some threads of their own."""


def limit_problems(processes: int, address_bytes: int) -> Iterator[str]:
    """What this process's limits forbid: so many processes, the largest with so much address space."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES + FILES_PER_PROCESS * processes
    if _below(files, needed):
        yield (
            f"a run of {processes} processes opens up to {needed} files, and the limit is {files}. "
            f"Raise it with: ulimit -n {max(needed, 1024)}"
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if _below(space, address_bytes):
        yield (
            f"the largest process of this run needs {address_bytes / 2**30:.1f} GiB of address space, "
            f"and the limit is {space / 2**30:.1f} GiB. Raise it with: ulimit -v unlimited"
        )
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    running = 0 if threads == resource.RLIM_INFINITY or os.geteuid() == 0 else _threads_of_user()
    needed = running + THREADS_PER_PROCESS * processes
    if running and threads < needed:
        yield (
            f"a run of {processes} processes needs about {needed - running} threads beside the "
            f"{running} that you have running, and the limit is {threads}. "
            f"Raise it with: ulimit -u {needed}"
        )


def _below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed


def _threads_of_user() -> int:
    """Threads of this user: the kernel counts those against the limit. Root has none."""
    num = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and folder.stat().st_uid == os.getuid():
                num += len(os.listdir(folder / "task"))
    return num
