"""A temporary folder that goes when its process ends, however it ends."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

WATCH = """
exec 3<&0
(
  trap '' HUP INT TERM
  read -r _ <&3
  for _ in 1 2 3; do rm -rf -- "$1"; sleep 1; done
) > /dev/null 2>&1 &
"""
"""Waits in the background until the pipe closes, which the kernel does when the process dies. It removes the folder
more than once, since what dies with the process may still write. It is no child of the process, because Ray kills
the children of an actor together with the actor."""


class Scratch:
    """A temporary folder, and a small shell that removes it when this object or its process is no more."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """Make it, in the system's folder for such or in `parent`; nobody else may read it."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # without a shell, only `remove` removes it
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", WATCH, "spreeze-scratch", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            self._shell.wait()  # what it has started goes on

    def remove(self) -> None:
        """Remove it now; removing it twice is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
