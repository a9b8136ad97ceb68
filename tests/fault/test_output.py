"""Output that is too much, or that nobody takes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spreeze.store.logs import KEPT_BYTES, LOG_BYTES
from user_runs import TESTS, read, training, wait_for

ALONE = ("--no-dashboard", "--learner.no-compile", "--evaluator.episodes", "1")


@pytest.mark.fault("F48")
@pytest.mark.fault("F75")
def test_an_environment_that_prints_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    with training(tmp_path, "fakes:NoisyEnv", "--steps", "3000", *ALONE) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    summary = read(tmp_path, "summary")
    assert summary["env_steps"] * 100_000 > 30 * LOG_BYTES
    assert summary["faults"]["log_cut"] >= 2
    logs = tmp_path / "runs" / "r" / "logs"
    assert 0 < (logs / "sampler-0.log.1").stat().st_size <= KEPT_BYTES
    for log in logs.glob("*.log"):
        assert log.stat().st_size <= LOG_BYTES, log


@pytest.mark.fault("F13")
def test_a_pipe_that_nobody_reads_any_more_does_not_end_training(tmp_path: Path) -> None:
    """As in `spreeze train ... 2>&1 | head -1`."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "spreeze", "train", "Pendulum-v1", "--name", "r", *ALONE]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*command, "--time", "6s"],
        cwd=tmp_path,
        stdout=writing,
        stderr=writing,
        env=os.environ | {"PYTHONPATH": paths},
    )
    os.close(writing)
    with open(reading, "rb") as pipe:
        pipe.readline()
    try:
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > 50)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["reason"]) == ("finished", "time")
    assert read(tmp_path, "status")["state"] == "finished"
    assert summary["faults"]["output_dropped"] > 0


@pytest.mark.exhaustive
@pytest.mark.fault("F13")
def test_a_pipe_that_is_full_from_the_start_does_not_hold_up_training(tmp_path: Path) -> None:
    """As a terminal that is paused."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "spreeze", "train", "Pendulum-v1", "--name", "r", *ALONE]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [*command, "--time", "3s"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=writing,
        env=buffered | {"PYTHONPATH": paths},
    )
    os.close(writing)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
    assert read(tmp_path, "summary")["state"] == "finished"
    assert read(tmp_path, "summary")["faults"]["output_dropped"] > 0


@pytest.mark.fault("F74")
def test_a_run_without_a_home_and_with_few_files(tmp_path: Path) -> None:
    """Updates are compiled by default, so the learner asks for the cache, too."""
    command = [sys.executable, "-m", "spreeze", "train", "Pendulum-v1", "--name", "r"]
    environment = os.environ | {"HOME": "/dev/null/nobody", "TMPDIR": str(tmp_path)}
    del environment["XDG_CACHE_HOME"]
    done = subprocess.run(
        ["prlimit", "--nofile=256", *command, "--steps", "3000", "--no-dashboard"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / f'spreeze-{os.getuid()}'} is used instead" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Error" not in (tmp_path / "runs/r/logs/learner-0.log").read_text()


@pytest.mark.fault("F74")
@pytest.mark.parametrize(
    ("limit", "said"), [("--nofile=20", "ulimit -n"), ("--as=400000000", "ulimit -v")]
)
def test_a_limit_that_is_too_low_is_named_in_one_line(
    tmp_path: Path, limit: str, said: str
) -> None:
    command = [sys.executable, "-m", "spreeze", "train", "Pendulum-v1"]
    done = subprocess.run(
        ["prlimit", limit, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert not list(tmp_path.iterdir())
