"""Real tasks, trained to real scores; run with `make learning`."""

from __future__ import annotations

import pytest

import spreeze
from user_runs import records

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", range(5))
def test_pendulum_is_solved_within_half_a_minute(runs: str, seed: int) -> None:
    run = spreeze.train("Pendulum-v1", runs=runs, seed=seed, time="60s", target=-200)
    print(run.summary["time_to_target_s"])
    assert run.summary["time_to_target_s"] is not None
    assert run.summary["time_to_target_s"] < 30


@pytest.mark.parametrize("seed", range(3))
def test_cart_pole_is_solved_within_half_a_minute(runs: str, seed: int) -> None:
    run = spreeze.train("CartPole-v1", runs=runs, seed=seed, time="60s", target=475)
    print(run.summary["time_to_target_s"])
    assert run.summary["time_to_target_s"] is not None
    assert run.summary["time_to_target_s"] < 30


def test_lunar_lander_lands_within_five_minutes(runs: str) -> None:
    run = spreeze.train("LunarLanderContinuous-v3", runs=runs, time="5m", target=200)
    print(run.summary["time_to_target_s"])
    assert run.summary["reason"] == "target"


@pytest.mark.parametrize("algo", ["td3", "ddpg", "fastsac", "fasttd3", "tqc", "ppo"])
def test_every_algorithm_solves_pendulum(runs: str, algo: str) -> None:
    run = spreeze.train("Pendulum-v1", algo=algo, runs=runs, time="3m", target=-200)
    print(run.summary["time_to_target_s"])
    assert run.summary["reason"] == "target"


def test_half_cheetah_runs_within_ten_minutes(runs: str) -> None:
    run = spreeze.train("HalfCheetah-v5", runs=runs, time="10m", target=3000)
    print(run.summary["time_to_target_s"])
    assert run.summary["reason"] == "target"


@pytest.mark.fault("F69")
def test_the_curve_does_not_fall_after_a_resume(runs: str) -> None:
    """Over five seeds, the mean of the first three evaluations after a resume against the last three before.

    The rule: the median of the differences is above -50, and no seed falls by more than 150. A policy
    that has not learned gets about -1200, one that has about -150; evaluations of ten episodes differ
    by about 30 from each other.
    """
    falls = []
    for seed in range(5):
        run = spreeze.train("Pendulum-v1", runs=runs, seed=seed, time="60s", target=-200)
        before = [line["eval/mean_reward"] for line in records(run.path, "evaluator-0")]
        more = spreeze.train("Pendulum-v1", runs=runs, resume=run.path.name, time="12s")
        after = [line["eval/mean_reward"] for line in records(more.path, "evaluator-0")]
        falls.append(sum(after[:3]) / 3 - sum(before[-3:]) / 3)
    print([round(fall) for fall in falls])
    assert sorted(falls)[2] > -50
    assert min(falls) > -150
