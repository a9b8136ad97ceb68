"""Lets the processes of a run compute on a GPU at the same time, by NVIDIA's Multi-Process Service.

Without it the GPU serves one process after the other: who acts waits for whole chunks of updates. With Pong on an
H200 an answer took 15 ms; with the service 2 ms. It comes with the driver. Each run starts its own and ends it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable by which CUDA finds the service."""
USUAL_FOLDER = Path("/tmp/nvidia-mps")  # noqa: S108  (NVIDIA's choice)
PATIENCE_S = 10.0
BEGIN_WORK = (sys.executable, "-c", "import ctypes; exit(ctypes.CDLL('libcuda.so.1').cuInit(0))")
SERVE = """
"$1" -d || exit 1
exec 3<&0
(
  trap '' HUP INT TERM
  read -r _ <&3
  echo quit -t 1 | timeout 5 "$1"
  kill "$(cat "$2"/*.pid)"
  rm -rf -- "$2"
) > /dev/null 2>&1 &
"""
"""Starts the service, and ends it when the pipe closes, which the kernel does when the process dies. Then its
folder goes: before, it is how the service is told to end."""


class SharedGpu:
    """The service of one run; the run goes on without it where it cannot be had."""

    def __init__(self, wanted: bool, begin_work: Sequence[str] = BEGIN_WORK) -> None:
        """Start it if it is wanted, and see that a process can work with it. If one runs already, CUDA finds that."""
        self.folder: Path | None = None
        self._shell: subprocess.Popen[bytes] | None = None
        program = shutil.which(PROGRAM)
        is_there = FOLDER in os.environ or (USUAL_FOLDER / "control").exists()
        if not wanted or is_there or program is None:
            return
        folder = tempfile.mkdtemp(prefix="spreeze-gpu-")
        with suppress(OSError, subprocess.TimeoutExpired):
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", SERVE, "spreeze-gpu", program, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(folder),
                cwd="/",
                start_new_session=True,
            )
            if self._shell.wait(PATIENCE_S) == 0 and _works(begin_work, folder):
                self.folder = Path(folder)
                return
        self.close()
        if self._shell is None or self._shell.poll() != 0:  # nothing began that would remove it
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End it now; ending it twice is harmless."""
        self.folder = None
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()


def _works(begin_work: Sequence[str], folder: str) -> bool:
    done = subprocess.run(
        begin_work,
        env={**os.environ, FOLDER: folder},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode == 0


def _environment(folder: str) -> dict[str, str]:
    """That of the service, which sees all GPUs; its clients choose among them."""
    variables = {**os.environ, FOLDER: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables
