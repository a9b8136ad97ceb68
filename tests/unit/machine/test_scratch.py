"""A temporary folder goes with its process, however the process ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from spreeze.machine.scratch import Scratch

HOLDS = """
import os, signal, sys, time
from spreeze.machine.scratch import Scratch
scratch = Scratch("scratch-")
folder = scratch.path
(folder / "logs").mkdir()
(folder / "logs" / "a").write_text("x")
print(folder, flush=True)
sys.stdin.read()
{end}
"""


def gone(path: Path) -> bool:
    deadline = time.monotonic() + 30
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not path.exists()


@pytest.mark.parametrize(
    "end", ["", "os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)", "os.killpg(0, 9)"]
)
def test_it_goes_however_its_process_ends(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS.format(end=end)],
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "logs" / "a").exists()
        assert folder.stat().st_mode & 0o077 == 0, "other users may not read it"
        process.stdin.close()
    assert gone(folder)


def test_it_stays_while_programs_that_the_process_has_started_end() -> None:
    scratch = Scratch("scratch-")
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert scratch.path.exists()
    scratch.remove()
    assert not scratch.path.exists()
    scratch.remove()


def test_without_a_shell_it_is_still_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("subprocess.Popen", missing)
    scratch = Scratch("scratch-")
    assert scratch.path.is_dir()
    scratch.remove()
    assert not scratch.path.exists()
