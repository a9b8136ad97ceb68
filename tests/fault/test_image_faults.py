"""Faults in runs that learn from images: as in others, nothing is lost and nobody else notices."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spreeze
from spreeze.store.checkpoint import load_training
from spreeze.store.resume_point import ResumePoint
from spreeze.store.rundir import RunDir
from spreeze.testing import FaultEnv
from user_runs import read, training, wait_for

SMALL: dict[str, Any] = {
    "algo": "sac",
    "algo.hidden": (16,),
    "sampler.random_steps": 0,
    "evaluator.episodes": 2,
    "learner.updates_per_step": 0.02,
}
FLAGS = (
    *("--algo", "sac", "--algo.hidden", "16", "--evaluator.episodes", "2"),
    *("--no-dashboard", "--learner.no-compile", "--device", "cpu"),
)


@pytest.mark.fault("F42")
@pytest.mark.fault("F43")
@pytest.mark.parametrize(
    ("fault", "part", "kind", "said"),
    [
        ("raise", "obs", "env_error", "the arm fell off"),
        ("nan", "obs", "env_error", "type float32; it should be an image of shape (16, 24, 1)"),
        ("bad_shape", "obs", "env_error", "it should be an image of shape (16, 24, 1)"),
        ("bad_dtype", "obs", "env_error", "it should be an image"),
        ("huge", "reward", "bad_numbers", "the reward 1e+30"),
    ],
)
def test_bad_frames_cost_their_episode_and_are_named(
    runs: str, fault: str, part: Any, kind: str, said: str
) -> None:
    env = partial(FaultEnv, pixels=True, fault=fault, part=part, at=200)
    run = spreeze.train(env, runs=runs, serial=True, steps="2500", dashboard=False, **SMALL)
    assert run.summary["state"] == "finished"
    assert run.summary["updates"] > 0
    assert set(run.summary["faults"]) == {kind}
    assert said in RunDir(run.path).error("sampler-0").read_text()


def train(runs: str, **more: Any) -> Any:
    env = partial(FaultEnv, pixels=True)
    return spreeze.train(env, runs=runs, seed=3, dashboard=False, **SMALL | more)


def test_a_seed_repeats_with_images(runs: str) -> None:
    first, second = (train(runs, serial=True, steps="2500") for _ in range(2))
    assert first.summary["updates"] == second.summary["updates"] > 0
    policies = [spreeze.load(run.path) for run in (first, second)]
    np.testing.assert_array_equal(policies[0].vector, policies[1].vector)


def test_a_resumed_run_goes_on_with_its_films(runs: str) -> None:
    first = train(runs, steps="6000", name="a")
    point = ResumePoint.of(load_training(first.path / "checkpoints"))
    transitions = 128 * (point.rows[1] - point.rows[0])
    assert transitions > 0
    second = train(runs, steps="9000", name="b", resume="a")
    log = (second.path / "logs" / "learner-0.log").read_text()
    assert f"with {transitions:,} rows in the replay" in log
    assert second.summary["updates"] > first.summary["updates"]


@pytest.mark.fault("F01")
@pytest.mark.fault("F04")
@pytest.mark.fault("F10")
@pytest.mark.parametrize(
    ("role", "acting"),
    [
        ("sampler-0", "samplers"),
        ("learner-0", "samplers"),
        ("evaluator-0", "samplers"),
        ("sampler-0", "inference"),
        ("inference-0", "inference"),
    ],
)
def test_a_killed_role_is_back_and_learning_goes_on(tmp_path: Path, role: str, acting: str) -> None:
    env = "spreeze.testing:FaultEnv"
    kwargs = ("--env.kwargs", '{"pixels": true}', "--sampler.acting", acting)
    with training(tmp_path, env, *kwargs, *FLAGS) as process:
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > 20, 60)
        pid = read(tmp_path, "status")["pids"][role]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: read(tmp_path, "status")["pids"].get(role, pid) != pid, 30)
        before = read(tmp_path, "status")["progress"]
        for count in ("updates", "env_steps"):
            wait_for(lambda c=count: read(tmp_path, "status")["progress"][c] > before[c] + 20, 60)  # type: ignore[misc]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["restarts"]) == ("interrupted", 1)


@pytest.mark.exhaustive
@pytest.mark.fault("F46")
def test_a_sampler_of_images_that_leaks_is_replaced(tmp_path: Path) -> None:
    kwargs = ("--env.kwargs", '{"pixels": true, "fault": "leak", "num_bytes": 100000}')
    limit = ("--limits.memory-mb", "50")
    with training(tmp_path, "spreeze.testing:FaultEnv", *kwargs, *limit, *FLAGS) as process:
        wait_for(lambda: "leaked memory" in str(read(tmp_path, "status")["warnings"]), 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert read(tmp_path, "summary")["faults"]["leaked"] >= 1
