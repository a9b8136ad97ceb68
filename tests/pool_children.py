"""What children of a fork server run in tests. Few imports, because twenty of them start at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

DETACHED = """
import subprocess
program = subprocess.Popen(["sleep", "987654"], start_new_session=True, stdout=subprocess.DEVNULL)
print(program.pid)
"""
BACKGROUND = "sleep 0.05 >/dev/null & echo $!"


def end_at_once(_: bytes, report_fd: int) -> int:
    return 3


def sleep(_: bytes, report_fd: int) -> int:
    time.sleep(600)
    return 0


def start_programs(_: bytes, report_fd: int) -> int:
    """What a simulator may do: a program in a separate session, without variables, and one whose parent has ended."""
    own = subprocess.Popen(["sleep", "987654"], start_new_session=True, env={})
    orphan = subprocess.run([sys.executable, "-c", DETACHED], stdout=subprocess.PIPE, check=True)
    os.write(report_fd, f"{own.pid} {int(orphan.stdout)} ".encode())
    time.sleep(600)
    return 0


def start_short_programs(_: bytes, report_fd: int) -> int:
    """Programs that go on alone and end soon, and one that is waited for long after its end."""
    own = subprocess.Popen(["sh", "-c", "exit 7"])
    started = [
        subprocess.run(["sh", "-c", BACKGROUND], stdout=subprocess.PIPE, check=True)
        for _ in range(10)
    ]
    os.write(report_fd, b" ".join(program.stdout.strip() for program in started) + b";")
    time.sleep(2)
    os.write(report_fd, b"%d;" % own.wait())
    time.sleep(600)
    return 0


def fork_only(_: bytes, report_fd: int) -> int:
    """Processes that are only forked: one here, one in another session, and two whose own parent has ended."""

    def say() -> None:
        os.write(report_fd, f"{os.getpid()} ".encode())

    _fork(say)
    _fork(os.setsid, say)
    middle = _fork(
        lambda: _fork(say),
        lambda: _fork(os.setsid, say, lambda: os.closerange(0, 1000)),
        lambda: os._exit(0),
    )
    os.waitpid(middle, 0)
    time.sleep(600)
    return 0


def _fork(*steps: Callable[[], object]) -> int:
    """Fork a process that takes these steps and then sleeps."""
    if (pid := os.fork()) == 0:
        for step in steps:
            step()
        time.sleep(600)
        os._exit(0)
    return pid
