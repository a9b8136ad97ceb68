"""`spreeze train` as a separate process, as a user starts it, observed through its run directory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parent
PATHS = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])


@contextlib.contextmanager
def training(
    folder: Path, *arguments: str, output: Any = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """`spreeze train` running in `folder`; killed at the end if it still runs."""
    command = [sys.executable, "-m", "spreeze", "train", *arguments, "--name", "r"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=output,
        stderr=output,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def records(run: Path, role: str) -> list[dict[str, Any]]:
    """A role's metrics, one dict per line."""
    text = (run / "metrics" / f"{role}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for a condition and return its value; fail the test if it does not become true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError, KeyError):
            if value := condition():
                return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the run, such as `status` or `summary`."""
    return json.loads((folder / "runs" / "r" / f"{name}.json").read_text())  # type: ignore[no-any-return]


def learning(folder: Path) -> dict[str, int]:
    """Wait until the learner updates, then return the pids of the roles."""
    wait_for(lambda: read(folder, "status")["progress"]["updates"] > 50)
    return read(folder, "status")["pids"]  # type: ignore[no-any-return]


def still_there(pids: dict[str, int]) -> list[str]:
    """The processes that still run. Zombies do not count."""
    left = []
    for pid in pids.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{' '.join(process.cmdline())} ({process.status()})")
    return left


def gone_within(pids: dict[str, int], seconds: float) -> None:
    """Wait until all these processes have ended; fail the test with those that still run."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not still_there(pids), seconds)
    assert not (left := still_there(pids)), left
