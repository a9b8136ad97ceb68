"""A disk that is full, at every moment of a run: training goes on, and output comes back when it can."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from user_runs import learning, read, records, training, wait_for

ALONE = ("--no-dashboard", "--learner.no-compile")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "spreeze-test", str(folder)]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            yield folder
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
            return
    pytest.skip("this user may not mount a disk")


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0")


@pytest.mark.fault("F13")
@pytest.mark.fault("F64")
def test_a_run_survives_a_full_disk_and_its_output_comes_back(
    disk: Path, recovered: Callable[[float], None]
) -> None:
    run = disk / "runs" / "r"
    with training(disk, "Pendulum-v1", "--checkpoint.every-s", "1", *ALONE) as process:
        pids = learning(disk)
        fill(disk)
        time.sleep(2.5)  # the disk stays full for a while: two statuses and a checkpoint fail
        before = read(disk, "status")["progress"]
        (disk / "filler").unlink()
        freed_s = time.monotonic()
        wait_for(lambda: read(disk, "status")["progress"]["updates"] > before["updates"])
        recovered(time.monotonic() - freed_s)
        after_s = read(disk, "status")["progress"]["time_s"]
        for role in ("supervisor-0", "learner-0", "sampler-0", "evaluator-0"):
            wait_for(lambda role=role: any(r["time_s"] > after_s for r in records(run, role)))  # type: ignore[misc]
        assert read(disk, "status")["pids"] == pids, "nothing was restarted"
        fill(disk)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "summary.json could not be written (No space left on device)" in out
    assert "env steps" in out, "its main numbers are shown"
    assert not (run / "summary.json").exists()
    assert sorted(os.listdir(run / "tensorboard")), "at least one event file"


@pytest.mark.exhaustive
@pytest.mark.fault("F09")
@pytest.mark.fault("F64")
def test_roles_that_are_killed_on_a_full_disk_come_back_and_learn_on_it(disk: Path) -> None:
    killed = ("learner-0", "sampler-0", "evaluator-0")
    with training(disk, "Pendulum-v1", "--checkpoint.every-s", "1", *ALONE) as process:
        pids = learning(disk)
        wait_for((disk / "runs" / "r" / "checkpoints" / "last").exists)
        fill(disk)
        for name in killed:
            os.kill(pids[name], signal.SIGKILL)
        found = wait_for(lambda: roles_of(process.pid, killed, other_than=pids))
        for name in ("learner-0", "sampler-0"):  # the learner has to load its checkpoint first
            before = psutil.Process(found[name]).cpu_times().user
            wait_for(lambda n=name, b=before: psutil.Process(found[n]).cpu_times().user > b + 0.3)  # type: ignore[misc]
        (disk / "filler").unlink()
        wait_for(lambda: read(disk, "status")["pids"].items() >= found.items())
        before = read(disk, "status")["progress"]["updates"]
        wait_for(lambda: read(disk, "status")["progress"]["updates"] > before)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert read(disk, "summary")["faults"]["killed"] == len(killed)


def roles_of(supervisor: int, names: tuple[str, ...], other_than: dict[str, int]) -> dict[str, int]:
    """The pids of these roles, once all of them are other ones than before; else nothing."""
    found = {}
    for child in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(child.cmdline()).split()
            if len(title) > 1 and title[1] in names and other_than[title[1]] != child.pid:
                found[title[1]] = child.pid
    return found if len(found) == len(names) else {}


@pytest.mark.fault("F64")
def test_a_disk_that_is_full_for_a_moment_at_the_end_gets_the_summary(disk: Path) -> None:
    with training(disk, "Pendulum-v1", *ALONE) as process:
        learning(disk)
        fill(disk)
        status = (disk / "runs" / "r" / "status.json").stat().st_mtime_ns
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert (disk / "runs" / "r" / "status.json").stat().st_mtime_ns == status
        (disk / "filler").unlink()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    summary = read(disk, "summary")
    assert summary["reason"] == "stopped"
    assert "could not be written" not in out


@pytest.mark.fault("F64")
def test_a_disk_that_is_full_at_the_start_is_named_in_one_line(disk: Path) -> None:
    fill(disk)
    with training(disk, "Pendulum-v1", *ALONE) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert not list((disk / "runs").glob("*/config.json"))
