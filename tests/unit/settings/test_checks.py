"""Checks: wrong knobs are refused, all at once, each with the way out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spreeze.settings.checks import check_config, check_folder
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.parse import parse_count, parse_duration


def problems_of(**knobs: Any) -> list[str]:
    return check_config(config_with(default_config(env="Pendulum-v1"), knobs))


def test_the_defaults_have_no_problem() -> None:
    assert problems_of() == []


@pytest.mark.parametrize(
    ("algo", "knobs", "said"),
    [
        ("fastsac", {"algo.spread": (float("nan"), 1.0)}, "--algo.spread nan 1.0: must be two"),
        ("fastsac", {"algo.spread": (0.5, 1.0, 2)}, "--algo.spread 0.5 1.0 2: must be two"),
        ("td3", {"algo.noise": (0.5, 0.05)}, "the smaller first"),
        ("td3", {"algo.noise": 0.5}, "--algo.noise 0.5: must be two numbers from 0 to 10"),
        ("sac", {"algo.hidden": 64}, "--algo.hidden 64: must be one or more whole numbers"),
        ("sac", {"algo.hidden": (64.5,)}, "--algo.hidden 64.5: must be one or more whole numbers"),
        ("fastsac", {"algo.normalise_reward": False}, "only represent returns from -5 to 5"),
        ("fasttd3", {"algo.reward_scale": 30.0}, "--algo.reward-scale 30: at most 1"),
        ("dqn", {"algo.policy_delay": 2}, "DQN has no actor"),
        ("ppo", {"learner.batch_size": 64, "learner.updates_per_step": 1.0}, "4096 times"),
        ("dqn", {"algo.actor_hidden": (8,)}, "DQN has no actor"),
        ("sac", {"algo.activation": "gelo"}, "Did you mean gelu?"),
        ("ppo", {"learner.batch_size": 64, "learner.ratio_bounds": (0, 0.1)}, "max-reuse is 8"),
        ("sac", {"algo.lr_schedule": "linear"}, "--algo.lr-schedule: over what? Add --steps"),
        (
            "dqn",
            {"algo.exploration_schedule": "cosine", "serial": True, "time": "5m"},
            "--algo.exploration-schedule with --serial: over what? Add --steps",
        ),
        ("ppo", {"algo.entropy_schedule": "liner", "steps": "1e5"}, "Did you mean linear?"),
        ("sac", {"learner.batch_size": 0}, "must be a whole number from 1 to 1,048,576"),
    ],
)
def test_knobs_with_no_effect_or_a_bad_one_are_refused(
    algo: str, knobs: dict[str, Any], said: str
) -> None:
    assert check_config(default_config(algo, "Mine-v0")) == []
    (problem,) = check_config(config_with(default_config(algo, "Mine-v0"), knobs))
    assert said in problem


@pytest.mark.parametrize(
    ("knobs", "parts"),
    [
        ({"learner.batch_size": -1}, ["--learner.batch-size -1", "from 1 to"]),
        ({"learner.batch_size": 10**9}, ["--learner.batch-size"]),
        ({"replay.capacity": 1000, "learner.batch_size": 2000}, ["2000", "1000", "never be drawn"]),
        ({"replay.capacity": 1000, "learner.warmup_rows": 2000}, ["never start"]),
        ({"replay.placement": "cpu"}, ["--replay.placement cpu", "pinned"]),
        (
            {"replay.placement": "pinned", "device": "cpu"},
            ["--replay.placement pinned", "use host"],
        ),
        (
            {"algo.priority": 0.6, "device": "cuda", "replay.placement": "host"},
            ["--algo.priority", "gpu or pinned"],
        ),
        (
            {"evaluator.env": ("A-v1", "B-v1", "C-v1"), "evaluator.kwargs": ("{}", "{}")},
            ["--evaluator.kwargs: 2 sets", "3 environments"],
        ),
        (
            {"evaluator.kwargs": ('{"g": 5', '{"g": 6}')},
            ["--evaluator.kwargs", '{"g": 5', "JSON object"],
        ),
        ({"evaluator.kwargs": (5,)}, ["--evaluator.kwargs 5: must be text"]),
        ({"seed": "one", "seeds": "3"}, ["--seed one"]),
        ({"evaluator.env": ("A-v1", "A-v1")}, ["A-v1 {} is given twice"]),
        ({"evaluator.every_steps": 0}, ["--evaluator.every-steps 0", "from 1 to"]),
        ({"algo.gamma": 1.5}, ["--algo.gamma 1.5"]),
        ({"algo.gamma": float("nan")}, ["--algo.gamma nan"]),
        ({"algo.termination_cost": -1.0}, ["--algo.termination-cost -1.0"]),
        ({"algo.hidden": ()}, ["--algo.hidden"]),
        ({"algo.hidden": (256, 0)}, ["--algo.hidden"]),
        ({"sampler.processes": 0}, ["--sampler.processes 0"]),
        ({"learner.ratio_bounds": (2.0, 1.0)}, ["--learner.ratio-bounds"]),
        ({"time": "soon"}, ["--time soon", "90s"]),
        ({"time": "-5s"}, ["--time -5s"]),
        ({"steps": "many"}, ["--steps many", "500k"]),
        ({"device": "tpu"}, ["--device tpu", "cpu"]),
        ({"name": "../up"}, ["--name"]),
        ({"target": float("inf")}, ["--target"]),
        ({"env": ""}, ["which environment"]),
        ({"env.kwargs": "{goal: 2}"}, ["--env.kwargs {goal: 2}", '{"goal": 2}']),
        ({"env.kwargs": "[1]"}, ["--env.kwargs [1]", "not an object"]),
        (
            {"env.kwargs": '{"goal": 2}', "env.engine": "envpool"},
            ["--env.kwargs", "gymnasium only"],
        ),
        ({"trace": "soon"}, ["--trace soon", "not a duration"]),
        ({"trace": "2m"}, ["--trace 2m", "the longest is 60s"]),
        ({"env.engine": "warp"}, ["--env.engine warp", "gymnasium, envpool"]),
    ],
)
@pytest.mark.fault("S14")
def test_a_wrong_value_is_refused_with_what_is_allowed(
    knobs: dict[str, Any], parts: list[str]
) -> None:
    (problem,) = problems_of(**knobs)
    assert all(part in problem for part in parts)


def test_all_problems_are_reported_at_once() -> None:
    assert len(problems_of(**{"algo.lr": -1.0, "time": "x", "replay.capacity": 1})) == 3


def test_folders_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b") == []
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in check_folder(file / "runs")[0]
    if os.getuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        assert "cannot be written" in check_folder(tmp_path / "runs")[0]
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5m", 90), (" 60 ", 60)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"), [("500k", 500_000), ("1e6", 10**6), ("2M", 2 * 10**6), ("7", 7)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count
