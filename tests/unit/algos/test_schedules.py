"""Schedules: from the value of a knob to its end."""

from __future__ import annotations

import pytest

from spreeze.algos import ALGORITHMS
from spreeze.algos.ppo import PPOConfig
from spreeze.algos.sac import SACConfig
from spreeze.algos.schedules import scheduled


@pytest.mark.parametrize(
    ("schedule", "values"),
    [("constant", (2, 2, 2)), ("linear", (2, 1.5, 0)), ("cosine", (2, 1.7071, 0))],
)
def test_a_schedule_begins_with_the_knob_and_ends_with_its_end(
    schedule: str, values: tuple[float, ...]
) -> None:
    for share, value in zip((0, 0.25, 1), values, strict=True):
        assert scheduled(schedule, 2, 0, share) == pytest.approx(value, abs=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_schedules_its_learning_rate(name: str) -> None:
    config = ALGORITHMS[name].config(
        **{"lr": 1e-3, "lr_schedule": "linear", "lr_end": 1e-4},
        **({} if name == "ppo" else {"tau": 0.01}),
    )
    assert config.schedules() == ["lr"]
    assert [config.lr_at(share) for share in (0, 1)] == pytest.approx([1e-3, 1e-4])
    assert (config.entropy_shift_at(0.5), config.exploration_at(0.5)) == (0, 1)


def test_the_entropy_is_scheduled_from_its_knob() -> None:
    soft = SACConfig(target_entropy_per_action=-1, target_entropy_schedule="linear")
    assert [soft.entropy_shift_at(share) for share in (0, 0.5, 1)] == [0, -0.5, -1]
    ppo = PPOConfig(entropy=0.04, entropy_schedule="cosine", entropy_end=0.0)
    assert [ppo.entropy_shift_at(share) for share in (0, 1)] == pytest.approx([0, -0.04])
