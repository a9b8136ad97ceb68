"""Whole runs whose numbers are too large: they learn on, or end with the reason; the policy stays finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fakes
import spreeze
from spreeze.policy.load import load_policy
from user_runs import read, training

SMALL = {"algo.hidden": (16, 16), "learner.batch_size": 32, "learner.compile": False}


@pytest.mark.exhaustive
@pytest.mark.fault("F53")
def test_a_run_that_diverges_again_and_again_fails_with_advice(tmp_path: Path) -> None:
    knobs = ("--algo", "sac", "--algo.lr", "1", "--algo.hidden", "16", "16", "--learner.no-compile")
    bounds = ("--learner.batch-size", "32", "--sampler.processes", "1", "--time", "100s")
    bounds += ("--limits.rollbacks-per-minute", "1")
    with training(tmp_path, "fakes:HugeEnv", *knobs, *bounds, "--no-dashboard") as process:
        _, error = process.communicate(timeout=110)
    assert process.returncode == 1, error
    assert "RepeatedDivergence" in error
    assert "Lower --algo.lr" in error
    summary = read(tmp_path, "summary")
    assert summary["state"] == "failed"
    assert summary["faults"]["rolled_back"] == 2
    policy = load_policy(tmp_path / "runs" / "r" / "checkpoints" / "last")
    assert np.isfinite(policy.vector).all()


@pytest.mark.fault("F53")
def test_huge_rewards_below_the_limit_do_no_harm(runs: str) -> None:
    run = spreeze.train(fakes.HugeEnv, runs=runs, serial=True, steps="4000", algo="sac", **SMALL)
    assert run.summary["faults"] == {}
    assert run.summary["updates"] > 100
