"""The policy that is evaluated: an average over the last updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spreeze.roles.evaluator.average import PolicyAverage
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.weights import Weights, weights_blocks

LATE = 200_000
"""From this many updates on, the average covers its full share of them."""


class Wire:
    """A weights wire and a clock: all that the average knows of a run."""

    def __init__(self, arena: Arena, average: float, algo: str) -> None:
        self.config = config_with(default_config(algo, "x"), {"evaluator.average": average})
        self.weights, self.seconds = Weights(arena), 0.0
        self.average = PolicyAverage(self, 2)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.seconds

    def publish(self, *policy: float, updates: int) -> list[float]:
        """Publish a policy and refresh the average; returns the average."""
        self.weights.publish(np.array(policy, np.float32), updates, 0)
        self.seconds += 1
        self.average.refresh()
        return self.average.vector.tolist()


@pytest.fixture
def wire() -> Iterator[Any]:
    arena = Arena.create(weights_blocks(2))
    yield lambda average=0.1, algo="sac": Wire(arena, average, algo)
    arena.close()


@pytest.mark.parametrize(("algo", "now"), [("sac", -9.0), ("ppo", -4.0)])
def test_policies_of_few_large_updates_are_averaged_sooner(
    wire: Any, algo: str, now: float
) -> None:
    made = wire(algo=algo)
    for updates in (0, 4000, 4100):
        made.publish(1.0, 1.0, updates=updates)
    assert made.publish(-9.0, 1.0, updates=4200) == [now, 1.0]


def test_old_policies_fade_with_the_updates(wire: Any) -> None:
    made = wire()
    made.publish(0.0, 0.0, updates=0)
    assert made.publish(1.0, 2.0, updates=LATE) == [1.0, 2.0], (
        "the first policy that has learned anything"
    )
    for i in range(1, 600):
        steady = made.publish(1.0, 2.0, updates=LATE + 200 * i)
    updates = LATE + 200 * 600
    average = made.publish(-9.0, 2.0, updates=updates)
    assert average == pytest.approx([1 - 10 * 200 / (0.1 * updates), 2.0], rel=1e-4)
    assert steady == pytest.approx([1.0, 2.0])
    assert made.average.stamp.updates == updates


def test_the_first_policy_after_a_restart_is_soon_forgotten(wire: Any) -> None:
    """After `--resume` or a restart, the average starts from one policy, which may be a bad one."""
    made = wire()
    made.publish(0.0, 0.0, updates=10 * LATE)
    made.publish(-9.0, 0.0, updates=10 * LATE + 1)
    for i in range(1, 101):
        vector = made.publish(1.0, 0.0, updates=10 * LATE + 1 + 100 * i)
    assert vector[0] == pytest.approx(1.0, abs=0.01), "the mean of all later policies"


def test_all_updates_between_two_fetches_count(wire: Any) -> None:
    """Fetching half as often gives about the same average."""
    results = []
    for step in (100, 200):
        made = wire()
        made.publish(0.0, 0.0, updates=0)
        for updates in range(LATE, 2 * LATE, step):
            made.publish(0.0, 0.0, updates=updates)
        for updates in range(2 * LATE, 2 * LATE + 40_000, step):
            vector = made.publish(1.0, 0.0, updates=updates)
        results.append(vector[0])
    assert results[0] == pytest.approx(results[1], rel=0.01)
    assert 0.55 < results[0] < 0.68, "about 1 - 1/e after as many updates as it covers"


@pytest.mark.parametrize(("average", "updates"), [(0.1, 1000), (0.0, LATE)])
def test_early_or_switched_off_it_is_the_newest_policy(
    wire: Any, average: float, updates: int
) -> None:
    made, draws = wire(average), np.random.default_rng(0)
    for i in range(20):
        policy = draws.normal(size=2).astype(np.float32).tolist()
        assert made.publish(*policy, updates=updates + 20 * i) == policy, "bit for bit"


def test_policies_of_a_restarted_learner_are_not_mixed_with_those_it_lost(wire: Any) -> None:
    made = wire()
    for updates in (0, LATE, LATE + 10):
        made.publish(5.0, 5.0, updates=updates)
    assert made.publish(1.0, 1.0, updates=LATE - 1000) == [1.0, 1.0]


def test_it_fetches_at_intervals_and_not_at_each_call(wire: Any) -> None:
    made = wire()
    made.publish(0.0, 0.0, updates=0)
    made.weights.publish(np.ones(2, np.float32), 1, 0)
    made.average.refresh()
    assert made.average.stamp.version == 1, "too soon after the last fetch"
    made.seconds += 0.06
    made.average.refresh()
    assert made.average.stamp.version == 2
