"""A short run's compilation is finished in the background, for the next run."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import psutil
import pytest

from spreeze.cli.commands.train import report
from spreeze.machine.facts import compiler
from spreeze.run import finish_compiling
from spreeze.run.supervisor import Run
from spreeze.settings.defaults import default_config
from spreeze.store.rundir import RunDir
from user_runs import read, training, wait_for

KNOBS = ("--learner.batch-size", "32", "--algo.hidden", "8", "--no-dashboard", "--steps", "3000")

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that ended before its update was compiled; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with training(tmp_path, "Pendulum-v1", *KNOBS, "--learner.no-compile") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (tmp_path / "cache" / "spreeze").mkdir(parents=True, exist_ok=True)
    return RunDir(tmp_path / "runs" / "r")


def is_unlocked(path: Path) -> bool:
    """Whether no process compiles."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_it_compiles_what_the_next_run_looks_for(ended: RunDir, tmp_path: Path) -> None:
    pid = finish_compiling.start(ended, "auto")
    assert pid is not None
    cache = tmp_path / "cache" / "spreeze"
    wait_for(lambda: list((cache / "compiled").glob("????????*.bin")), finish_compiling.LIMIT_S)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert is_unlocked(cache / finish_compiling.LOCK)
    ended.path.rename(tmp_path / "runs" / "before")
    with training(tmp_path, "Pendulum-v1", *KNOBS) as process:
        process.communicate(timeout=60)
    assert read(tmp_path, "summary")["prepared"] is True


def test_a_short_run_says_what_goes_on(ended: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr(finish_compiling, "start", lambda run, _: started.append(run.path) or 4711)
    summary = {**ended.read("summary"), "update_form": "fused"}
    config = default_config(env="Pendulum-v1")
    said = report(Run(ended.path, summary), config)
    assert "Tip:" in said, "SPREEZE_BACKGROUND=0 forbids it"
    assert not started
    monkeypatch.setenv("SPREEZE_BACKGROUND", "1")
    said = report(Run(ended.path, summary), config)
    assert "still being compiled, in the background and for at most 3 minutes" in said
    assert "Tip:" not in said
    assert started == [ended.path]
    report(Run(ended.path, {**summary, "reason": "stopped"}), config)
    assert len(started) == 1, "whoever stops a run wants nothing to go on"


def test_it_ends_when_its_time_is_up(ended: RunDir, tmp_path: Path) -> None:
    with (tmp_path / "cache" / "spreeze" / finish_compiling.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that it has to wait
        pid = finish_compiling.start(ended, "auto", limit_s=1)
        assert pid is not None
        assert os.getsid(pid) == pid, "a closed terminal does not end it"
        wait_for(lambda: psutil.Process(pid).nice() == 19)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
