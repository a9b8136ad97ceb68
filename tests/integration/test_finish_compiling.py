"""A short run's compilation is finished in the background, for the next run."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import psutil
import pytest

from spreeze.machine.facts import compiler
from spreeze.run import finish_compiling
from spreeze.store.rundir import RunDir
from user_runs import read, training, wait_for

KNOBS = ("--learner.batch-size", "32", "--algo.hidden", "8", "--no-dashboard", "--steps", "3000")

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def train(folder: Path, *knobs: str) -> str:
    """What a short run says at its end."""
    with training(folder, "Pendulum-v1", *KNOBS, *knobs) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return str(out)


def is_unlocked(path: Path) -> bool:
    """Whether no process compiles."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_next_run_starts_with_what_a_short_run_began_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPREEZE_BACKGROUND", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = train(tmp_path)
    assert "still being compiled, in the background and for at most 3 minutes" in out
    assert "Tip:" not in out
    assert read(tmp_path, "summary")["compiled"] is None
    cache = tmp_path / "cache" / "spreeze"
    wait_for(lambda: list((cache / "compiled").glob("*.pt2")), finish_compiling.LIMIT_S)
    wait_for(lambda: is_unlocked(cache / finish_compiling.LOCK))
    (tmp_path / "runs" / "r").rename(tmp_path / "runs" / "before")
    assert "still being compiled" not in train(tmp_path)
    assert read(tmp_path, "summary")["compiled"] is True


def test_it_ends_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "in the background" not in train(tmp_path), "SPREEZE_BACKGROUND=0 forbids it"
    (tmp_path / "cache" / "spreeze").mkdir(parents=True, exist_ok=True)
    run = RunDir(tmp_path / "runs" / "r")
    with (tmp_path / "cache" / "spreeze" / finish_compiling.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that it has to wait
        pid = finish_compiling.start(run, "auto", limit_s=1)
        assert pid is not None
        assert os.getsid(pid) == pid, "a closed terminal does not end it"
        wait_for(lambda: psutil.Process(pid).nice() == 19)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
