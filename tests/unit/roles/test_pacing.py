"""How far samplers may run ahead of the learner."""

from __future__ import annotations

from spreeze.roles.pacing import NO_LIMIT, Pace


def test_the_first_ratio_counts_from_the_warm_up() -> None:
    budget = Pace(steps=1000, updates=0, max_updates_per_step=1)
    assert budget.allowed_steps(0, 0.0, steps=10) == NO_LIMIT, "until the warm-up is done"
    assert budget.allowed_steps(30, 0.03, steps=1500) == 2000
    assert budget.allowed_steps(60, 0.03, steps=2000) == 3000


def test_a_new_ratio_applies_from_then_on_and_stops_no_sampler() -> None:
    budget = Pace(steps=1000, updates=0, max_updates_per_step=1)
    assert budget.allowed_steps(30_000, 0.03, steps=1_000_000) == 1_001_000
    first = budget.allowed_steps(30_001, 0.05, steps=1_001_000)
    assert first == 1_001_000, "applied to all steps, samplers would wait for 20,000 updates"
    assert budget.allowed_steps(30_101, 0.05, steps=first) == first + 2000
    assert budget.allowed_steps(30_101, 0.03, steps=1_003_000) == 1_003_000, "and back"
    assert budget.allowed_steps(30_131, 0.03, steps=1_003_000) == 1_004_000
