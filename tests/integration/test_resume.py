"""Resumed runs: a serial one does the same as one that was never interrupted; no run forgets what it knew."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fakes
import spreeze
from spreeze.store.checkpoint import load_training
from spreeze.store.resume_point import ResumePoint, find_resume_point
from user_runs import records

SMALL: dict[str, Any] = {
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "learner.warmup_rows": 200,
    "sampler.random_steps": 100,
    "replay.capacity": 1500,
    "evaluator.every_s": 0.1,
    "evaluator.episodes": 3,
    "checkpoint.every_s": 1.0,  # a thousand env steps
}
STEPS = 3500


class InterruptedEnv(fakes.ReachEnv):
    """Presses Ctrl-C once, after so many resets in this process."""

    left = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        InterruptedEnv.left -= 1
        if InterruptedEnv.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().reset(seed=seed, options=options)


class InterruptedChoiceEnv(fakes.ChoiceEnv, InterruptedEnv):
    pass


ENVS = {"sac": InterruptedEnv, "dqn": InterruptedChoiceEnv, "ppo": InterruptedEnv}


def train(runs: str, algo: str, name: str, steps: int = STEPS, **knobs: Any) -> Path:
    more = knobs if "resume" in knobs else {**SMALL, "algo": algo, **knobs}
    if algo == "ppo" and "resume" not in knobs:
        more |= {"learner.warmup_rows": 10, "replay.capacity": 300, "algo.segment": 16}
    run = spreeze.train(
        ENVS[algo], runs=runs, name=name, seed=3, serial=True, steps=str(steps), **more
    )
    return run.path


def final_state(run: Path) -> dict[str, Any]:
    return load_file(run / "checkpoints" / "last" / "train.safetensors")


def evaluations(run: Path, after_steps: int) -> list[Any]:
    lines = [(line["env_steps"], line["eval/mean_reward"]) for line in records(run, "evaluator-0")]
    return [line for line in lines if line[0] > after_steps]


@pytest.mark.fault("F69")
@pytest.mark.parametrize("algo", ["sac", "dqn", "ppo"])
def test_a_serial_run_that_was_interrupted_ends_bit_equal(algo: str, runs: str) -> None:
    whole = train(runs, algo, "whole")
    expected = final_state(whole)
    assert expected["updates"] > 20
    train(runs, algo, "early", 400)
    train(runs, algo, "middle", 1300)
    InterruptedEnv.left = 2400
    train(runs, algo, "signal")
    assert InterruptedEnv.left <= 0
    assert load_training(Path(runs) / "signal" / "checkpoints").env_steps < STEPS
    train(runs, algo, "twice", 2700, resume="middle")
    for name in ("early", "signal", "twice"):
        found = find_resume_point(str(Path(runs) / name), serial=True)
        assert (found is None) == (name == "early"), "before the first boundary it starts afresh"
        resumed = train(runs, algo, f"{name}-resumed", resume=name)
        state = final_state(resumed)
        for vector, numbers in expected.items():
            np.testing.assert_array_equal(state[vector], numbers, f"{name}: {vector}")
        since = sum(found[1].env_steps) if found else 0
        assert evaluations(resumed, since) == evaluations(whole, since)
    assert evaluations(whole, 0)


@pytest.mark.fault("F69")
def test_a_resumed_run_goes_on_with_its_replay_and_its_level(runs: str) -> None:
    """The rule: the mean of the first three evaluations is at most 0.02 below that of the last three.

    Random policies of ReachEnv get about -0.4, so a run that starts to learn again is far outside.
    """
    knobs = SMALL | {"tuner.off": True, "evaluator.every_s": 0.2, "replay.capacity": 10_000}
    until = {"target": -0.004, "time": "60s"}
    first = spreeze.train(fakes.ReachEnv, runs=runs, name="a", **until, **knobs)
    assert first.summary["reason"] == "target"
    before = [line["eval/mean_reward"] for line in records(first.path, "evaluator-0")]
    saved = load_training(first.path / "checkpoints")
    point = ResumePoint.of(saved)
    second = spreeze.train(fakes.ReachEnv, runs=runs, name="b", resume="a", time="5s")
    log = (second.path / "logs" / "learner-0.log").read_text()
    num_rows = min(point.rows[1] - point.rows[0], 10_000)
    assert f"with {num_rows:,} rows in the replay" in log
    after = [line["eval/mean_reward"] for line in records(second.path, "evaluator-0")]
    assert np.mean(after[:3]) > np.mean(before[-3:]) - 0.02
    assert second.summary["env_steps"] > saved.env_steps
    assert second.summary["updates"] > saved.updates
    later = ResumePoint.of(load_training(second.path / "checkpoints"))
    assert sum(later.episodes) > sum(point.episodes) > 0
