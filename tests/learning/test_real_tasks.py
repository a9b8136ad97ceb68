"""Real tasks to real scores on any machine; `make learning`."""

from __future__ import annotations

import pytest

import spreeze

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", range(5))
def test_pendulum_is_solved_within_half_a_minute(runs: str, seed: int) -> None:
    run = spreeze.train("Pendulum-v1", runs=runs, seed=seed, time="60s", target=-200)
    print(run.summary["time_to_target_s"])
    assert run.summary["time_to_target_s"] is not None
    assert run.summary["time_to_target_s"] < 30


def test_half_cheetah_runs_within_ten_minutes(runs: str) -> None:
    run = spreeze.train("HalfCheetah-v5", runs=runs, time="10m", target=3000)
    print(run.summary["time_to_target_s"])
    assert run.summary["reason"] == "target"
