"""What the evaluator judges: the policy averaged over the last updates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spreeze.roles.evaluator import _num_processes
from spreeze.roles.evaluator.average import Average
from spreeze.settings.config import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.weights import Weights, weights_blocks

LATE = 200_000
"""Updates from which on the average covers its full share of them."""


class Stage:
    """A weights wire and a clock: all that the average sees of a run."""

    def __init__(self, arena: Arena, average: float, algo: str) -> None:
        self.config = config_with(default_config(algo, "x"), {"evaluator.average": average})
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
    yield lambda average=0.1, algo="sac": Stage(arena, average, algo)
    arena.close()


@pytest.mark.parametrize(("algo", "now"), [("sac", -9.0), ("ppo", -4.0)])
def test_policies_of_few_large_updates_are_averaged_sooner(
    stage: Any, algo: str, now: float
) -> None:
    made = stage(algo=algo)
    for updates in (0, 4000, 4100):
        made.publish(1.0, 1.0, updates=updates)
    assert made.publish(-9.0, 1.0, updates=4200) == [now, 1.0]


def test_the_average_forgets_with_the_updates(stage: Any) -> None:
    made = stage()
    made.publish(0.0, 0.0, updates=0)
    assert made.publish(1.0, 2.0, updates=LATE) == [1.0, 2.0], "the first that has learned anything"
    for i in range(1, 600):
        steady = made.publish(1.0, 2.0, updates=LATE + 200 * i)
    updates = LATE + 200 * 600
    falls = made.publish(-9.0, 2.0, updates=updates)
    assert falls == pytest.approx([1 - 10 * 200 / (0.1 * updates), 2.0], rel=1e-4)
    assert steady == pytest.approx([1.0, 2.0])
    assert made.average.stamp.updates == updates


def test_begun_late_the_first_policy_is_soon_forgotten(stage: Any) -> None:
    """After `--resume` or a restart all that there is comes from one policy, maybe one that falls."""
    made = stage()
    made.publish(0.0, 0.0, updates=10 * LATE)
    made.publish(-9.0, 0.0, updates=10 * LATE + 1)
    for i in range(1, 101):
        vector = made.publish(1.0, 0.0, updates=10 * LATE + 1 + 100 * i)
    assert vector[0] == pytest.approx(1.0, abs=0.01), "the mean of all that came since"


def test_updates_between_two_looks_count_all(stage: Any) -> None:
    """Whoever looks half as often gets about the same."""
    results = []
    for step in (100, 200):
        made = stage()
        made.publish(0.0, 0.0, updates=0)
        for updates in range(LATE, 2 * LATE, step):
            made.publish(0.0, 0.0, updates=updates)
        for updates in range(2 * LATE, 2 * LATE + 40_000, step):
            vector = made.publish(1.0, 0.0, updates=updates)
        results.append(vector[0])
    assert results[0] == pytest.approx(results[1], rel=0.01)
    assert 0.55 < results[0] < 0.68, "about 1 - 1/e, when as much was done as it covers"


@pytest.mark.parametrize(("average", "updates"), [(0.1, 1000), (0.0, LATE)])
def test_early_or_switched_off_it_is_the_newest(stage: Any, average: float, updates: int) -> None:
    made, draws = stage(average), np.random.default_rng(0)
    for i in range(20):
        policy = draws.normal(size=2).astype(np.float32).tolist()
        assert made.publish(*policy, updates=updates + 20 * i) == policy, "bit by bit"


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


def test_where_the_users_code_has_threads_nobody_helps() -> None:
    """They would be missing in a forked helper, which might wait for them for ever."""
    config = config_with(default_config(env="x"), {"evaluator.processes": 3})
    notes: list[str] = []
    ctx: Any = SimpleNamespace(config=config, note=notes.append)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert _num_processes(ctx, 3) == 1
    finally:
        over.set()
        thread.join()
    assert "threads" in notes[0]
