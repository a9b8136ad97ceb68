"""Out of memory: which process the kernel ends first, and whether it has ended one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MOST = 1000
"""The highest score; the kernel takes such a process first, however small it is."""
FILES = (("", "memory.events"), ("memory", "memory.oom_control"))
"""Controller in /proc/self/cgroup and the file that counts kills: cgroup version 2, then version 1."""


def offer_as_victim(points: int) -> None:
    """Let the kernel end this process before others. Never lowers the score, so it needs no rights."""
    path = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        inherited = int(path.read_text())
        path.write_text(str(max(inherited, min(MOST, inherited + points))))


def oom_kills(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """How often the kernel has ended a process of this control group because memory ran out.

    The kernel counts a kill in the group of the process that it ended, whichever limit was reached.
    """
    with suppress(OSError):
        groups = dict(
            line.split(":", 2)[1:] for line in (proc / "self" / "cgroup").read_text().splitlines()
        )
        for controller, name in FILES:
            # In a container the path may be that of the host: then the mount itself is the group.
            for group in (groups.get(controller, ""), ""):
                with suppress(OSError, KeyError, ValueError):
                    file = mounts / controller / group.lstrip("/") / name
                    counts = dict(line.split() for line in file.read_text().splitlines())
                    return int(counts["oom_kill"])
    return 0
