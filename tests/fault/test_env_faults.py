"""Runs whose environments misbehave: training goes on, and the summary says what happened."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

import spreeze
from spreeze.store.rundir import RunDir
from spreeze.testing import FaultEnv
from user_runs import read, records, training, wait_for


@pytest.mark.fault("F42")
@pytest.mark.fault("F48")
@pytest.mark.fault("F49")
def test_an_environment_may_do_to_its_process_what_it_likes(tmp_path: Path) -> None:
    """It changes the working directory, signals, seeds and standard output, prints, and raises."""
    run = tmp_path / "runs" / "r"
    with training(tmp_path, "fakes:unruly_env", "--no-dashboard") as process:
        error = RunDir(run).error("sampler-0")
        wait_for(lambda: "the arm fell off" in error.read_text(), 60)
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > 100, 60)
        wait_for(lambda: records(run, "sampler-0"), 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    summary = read(tmp_path, "summary")
    assert summary["state"] == "interrupted"
    assert summary["faults"]["env_error"] > 0
    assert summary["restarts"] == 0
    assert "fault_env.py" in error.read_text()


@pytest.mark.fault("F42")
@pytest.mark.fault("F43")
@pytest.mark.parametrize(("fault", "kind"), [("raise", "env_error"), ("huge", "bad_numbers")])
def test_rare_faults_do_not_end_a_run(runs: str, fault: str, kind: str) -> None:
    env = partial(FaultEnv, fault=fault, at=300)
    run = spreeze.train(env, runs=runs, serial=True, steps="4000", device="cpu", dashboard=False)
    assert run.summary["state"] == "finished"
    assert set(run.summary["faults"]) == {kind}


@pytest.mark.exhaustive
@pytest.mark.fault("F46")
def test_a_sampler_that_leaks_is_replaced(tmp_path: Path) -> None:
    limit = ("--limits.memory-mb", "50", "--no-dashboard", "--learner.no-compile")
    with training(tmp_path, "fakes:leaking_env", *limit) as process:
        wait_for(lambda: "leaked memory" in str(read(tmp_path, "status")["warnings"]), 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    summary = read(tmp_path, "summary")
    assert summary["faults"]["leaked"] >= 1
    assert summary["state"] == "interrupted"
