"""What the evaluator judges: the policy averaged over the last updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spreeze.config import config_with, default_config
from spreeze.roles.evaluator import Average
from spreeze.wires.arena import Arena
from spreeze.wires.weights import Weights, weights_blocks

LATE = 200_000
"""Updates from which on the average covers its full share of them."""


class Stage:
    """A weights wire and a clock: all that the average sees of a run."""

    def __init__(self, arena: Arena, average: float) -> None:
        self.config = config_with(default_config(env="x"), {"evaluator.average": average})
        self.weights, self.seconds = Weights(arena), 0.0
        self.average = Average(self, 2)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.seconds

    def publish(self, *policy: float, updates: int) -> list[float]:
        """Publish a policy, let the average look; what it is then."""
        self.weights.publish(np.array(policy, np.float32), updates, 0)
        self.seconds += 1
        self.average.look()
        return self.average.vector.tolist()


@pytest.fixture
def stage() -> Iterator[Any]:
    arena = Arena.create(weights_blocks(2))
    yield lambda average=0.1: Stage(arena, average)
    arena.close()


def test_the_average_forgets_with_the_updates(stage: Any) -> None:
    made = stage()
    made.publish(0.0, 0.0, updates=0)
    assert made.publish(1.0, 2.0, updates=LATE) == [1.0, 2.0], "the first that has learned anything"
    falls = made.publish(-9.0, 2.0, updates=LATE + 200)
    assert falls == pytest.approx([1 - 10 * 200 / (0.1 * (LATE + 200)), 2.0], rel=1e-5)
    for i in range(2, 600):
        steady = made.publish(1.0, 2.0, updates=LATE + 200 * i)
    assert steady == pytest.approx([1.0, 2.0], abs=1e-2)
    assert made.average.stamp.updates == LATE + 200 * 599


def test_updates_between_two_looks_count_all(stage: Any) -> None:
    """Whoever looks half as often gets about the same."""
    results = []
    for step in (100, 200):
        made = stage()
        made.publish(0.0, 0.0, updates=LATE)
        made.publish(0.0, 0.0, updates=LATE + 1)
        for updates in range(LATE + 1 + step, LATE + 20_002, step):
            vector = made.publish(1.0, 0.0, updates=updates)
        results.append(vector[0])
    assert results[0] == pytest.approx(results[1], rel=0.01)
    assert 0.5 < results[0] < 0.7, "a share of 1 - 1/e, when as much was done as it covers"


@pytest.mark.parametrize(("average", "updates"), [(0.1, 1000), (0.0, LATE)])
def test_early_or_switched_off_it_is_the_newest(stage: Any, average: float, updates: int) -> None:
    made = stage(average)
    for i in range(4):
        assert made.publish(float(i), -float(i), updates=updates + 20 * i) == [i, -i]


def test_a_learner_that_begins_again_is_not_mixed_with_what_it_lost(stage: Any) -> None:
    made = stage()
    for updates in (0, LATE, LATE + 10):
        made.publish(5.0, 5.0, updates=updates)
    assert made.publish(1.0, 1.0, updates=LATE - 1000) == [1.0, 1.0]


def test_it_looks_now_and_then_and_not_at_each_step(stage: Any) -> None:
    made = stage()
    made.publish(0.0, 0.0, updates=0)
    made.weights.publish(np.ones(2, np.float32), 1, 0)
    made.average.look()
    assert made.average.stamp.version == 1, "at the same moment as before"
    made.seconds += 0.06
    made.average.look()
    assert made.average.stamp.version == 2
