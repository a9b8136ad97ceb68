"""Output that is too much, or that nobody takes."""

from __future__ import annotations

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
