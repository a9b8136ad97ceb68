"""How far samplers may run ahead of the learner."""

from __future__ import annotations

import pytest

from spreeze.roles.pacing import NO_LIMIT, Pace

CHUNK, GROUP = 8, 128


def test_the_first_ratio_counts_from_the_warm_up() -> None:
    pace = Pace(steps=1000, updates=0, max_updates_per_step=1)
    assert pace.allowed_steps(0) == NO_LIMIT, "until there is a ratio"
    pace.set_ratios(0.03, 0.0, updates=0, steps=1500)
    assert [pace.allowed_steps(30), pace.allowed_steps(60)] == [2000, 3000]


def test_a_new_ratio_applies_from_then_on_and_stops_no_sampler() -> None:
    pace = Pace(steps=1000, updates=0, max_updates_per_step=1)
    pace.set_ratios(0.03, 0.0, updates=30_000, steps=1_000_000)
    assert pace.allowed_steps(30_000) == 1_001_000
    pace.set_ratios(0.05, 0.0, updates=30_001, steps=1_001_000)
    assert pace.allowed_steps(30_001) == 1_001_000, (
        "applied to all steps, samplers would wait for 20,000 updates"
    )
    assert pace.allowed_steps(30_101) == 1_003_000
    pace.set_ratios(0.03, 0.0, updates=30_101, steps=1_003_000)
    assert pace.allowed_steps(30_131) == 1_004_000, "and back"


@pytest.mark.parametrize("learner_first", [True, False])
@pytest.mark.parametrize(
    "changes", [{0: (0.2, 0.2)}, {40: (0.2, 0.2)}, {40: (0.2, 0.0), 41: (0.2, 0.2)}]
)
def test_neither_side_waits_for_the_other_after_a_change(
    changes: dict[int, tuple[float, float]], learner_first: bool
) -> None:
    """Samplers step in groups, so they are always a little beyond what is allowed."""
    pace, updates, steps = Pace(steps=1000, updates=0, max_updates_per_step=3), 0, 2080
    words, seen = (0.03, 0.0), []
    for turn in range(200):
        words = changes.get(turn, words)
        if not learner_first:
            steps += GROUP if steps < pace.allowed_steps(updates + CHUNK) else 0
        pace.set_ratios(*words, updates, steps)
        allowed = pace.allowed_steps(updates + CHUNK)
        updates += CHUNK if pace.may_update(updates, steps) else 0
        if learner_first:
            steps += GROUP if steps < allowed else 0
        seen.append((steps, updates))
    (steps_then, updates_then), (steps_now, updates_now) = seen[100], seen[-1]
    assert updates_now > updates_then
    ratio = (updates_now - updates_then) / (steps_now - steps_then)
    assert ratio == pytest.approx(0.2, rel=0.2)
