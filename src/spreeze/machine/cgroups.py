"""The limits of the container or service that this process runs in: control groups of version 2 and 1.

A group's limit also holds for the groups inside it, so all groups from this process's own up to the
root count, and the smallest limit wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

SYSTEM = Path("/")


def core_limit(system: Path = SYSTEM) -> float | None:
    """CPU time per second that this process may use, in cores; None without a limit."""
    found = []
    for group in _groups("cpu", system):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = _quota(group)
            if quota != "max" and int(quota) > 0:  # version 1 says -1
                found.append(int(quota) / int(period))
    return min(found, default=None)


def free_memory(system: Path = SYSTEM) -> int | None:
    """Bytes that this process may still use; None without a limit."""
    found = []
    for group in _groups("memory", system):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found.append(_free_bytes(group))
    return min(found, default=None)


def _groups(controller: str, system: Path) -> Iterator[Path]:
    """The folders of this process's groups for a controller, innermost first."""
    mounts = system / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # Version 2 has one tree for all; beside version 1 it is in a folder of its own.
            names = [".", "unified"] if not controllers else [controllers, controller]
            if controllers and controller not in controllers.split(","):
                continue
            # Inside a container the path may be the host's: then only the root is there.
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for mount in dict.fromkeys(mounts / name for name in names):
                for depth in range(len(parts), -1, -1):
                    yield mount.joinpath(*parts[:depth])


def _quota(group: Path) -> tuple[str, str]:
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text().split()
        return quota, period
    return (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()


def _free_bytes(group: Path) -> int:
    names = ("memory.max", "memory.current", "inactive_file")
    if not (group / names[0]).exists():
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit, used = (int((group / name).read_text()) for name in names[:2])
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return limit - used + int(stat[names[2]])  # the kernel drops cached files when memory is needed
