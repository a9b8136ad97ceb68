"""The trial of noise that lasts: it goes on only where the first returns are flat, until it costs returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cases
from spreeze.envs.episodes import Episode
from spreeze.policy import Policy, PolicyForm
from spreeze.roles.noise_trial import NoiseTrial, Phase

ENVS = 8
HALF = [1, 3, 5, 7]


class Trial:
    """A trial in eight environments."""

    def __init__(self, when: Any = "flat", num_envs: int = ENVS, restarted: bool = False) -> None:
        self.policy = Policy(cases.BOX, PolicyForm(hidden=(4,)))
        self.num_envs = num_envs
        self.trial = NoiseTrial(self.policy, num_envs, when, 1.0, restarted)
        self.rng = np.random.default_rng(0)

    @property
    def lasting(self) -> list[int]:
        """The environments whose noise lasts, judged by the actions of the policy."""
        obs = np.zeros((self.num_envs, 4), np.float32)
        self.policy.seed(0)
        actions = np.array([self.policy.act(obs, explore=True).copy() for _ in range(1024)])
        x = np.arctanh(np.clip(actions, -0.9999, 0.9999))
        product = (x[1:] * x[:-1]).mean((0, 2)) / (x * x).mean((0, 2))
        return np.flatnonzero(product > 0.4).tolist()

    def play(self, white: float, coloured: float, rounds: int = 1, spread: float = 0.0) -> bool:
        """An episode ends in each environment, so many times; whether the phase changed."""
        changed = False
        for _ in range(rounds):
            totals = [
                (coloured if env % 2 else white) + spread * self.rng.normal()
                for env in range(self.num_envs)
            ]
            changed |= self.trial.judge(
                [Episode(total, 10, {}) for total in totals], range(self.num_envs)
            )
        return changed


def test_noise_lasts_from_the_start_only_where_it_always_does() -> None:
    assert Trial().lasting == []
    assert Trial("always").lasting == HALF
    assert Trial("never").lasting == []


@pytest.mark.parametrize("kwargs", [{"when": "never"}, {"restarted": True}, {"num_envs": 1}])
def test_flat_returns_change_nothing_without_a_trial(kwargs: dict[str, Any]) -> None:
    made = Trial(**kwargs)
    made.play(0, 0, rounds=20)
    assert made.lasting == []


@pytest.mark.parametrize(
    ("mean", "spread", "flat"),
    [(0, 0, True), (-33.5, 0.4, True), (-200, 0, True), (-150, 60, False), (2, 4, False)],
)
def test_it_goes_on_only_where_the_first_returns_are_flat(
    mean: float, spread: float, flat: bool
) -> None:
    made = Trial()
    assert made.play(mean, mean, spread=spread)
    assert made.trial.phase is (Phase.LASTING if flat else Phase.OVER)
    assert made.lasting == (HALF if flat else [])


def test_a_rare_success_among_the_first_episodes_does_not_hide_that_rewards_are_rare() -> None:
    made = Trial(num_envs=16)
    returns = [0.0] * 16
    returns[4] = 900.0
    assert made.trial.judge([Episode(total, 10, {}) for total in returns], range(16))
    assert made.trial.phase is Phase.LASTING


def test_a_few_episodes_are_awaited() -> None:
    made = Trial()
    assert not made.trial.judge([Episode(0, 10, {})] * 3, [0, 2, 1])
    assert made.trial.phase is Phase.FIRST_EPISODES
    assert made.trial.judge([Episode(0, 10, {})], [5])


@pytest.mark.parametrize(
    ("white", "coloured"), [(0, 0), (0, 40), (-0.01, -5), (94, 80), (-200, -200)]
)
def test_it_goes_on_while_it_costs_little(white: float, coloured: float) -> None:
    made = Trial()
    made.play(-33.0, -33.0)
    assert not made.play(white, coloured, rounds=20, spread=1.0)
    assert made.lasting == HALF


@pytest.mark.parametrize(("white", "coloured"), [(94, 30), (0, -20), (-100, -150)])
def test_it_ends_for_good_where_returns_are_clearly_lower(white: float, coloured: float) -> None:
    made = Trial()
    made.play(-33.0, -33.0)
    assert made.play(white, coloured, rounds=20, spread=1.0)
    assert made.lasting == []
    assert not made.play(white, white + 1000, rounds=20), "it is over"
    assert made.lasting == []


def test_returns_that_differ_by_chance_are_no_proof() -> None:
    made = Trial()
    made.play(-33.0, -33.0)
    assert not made.play(100, 60, rounds=2, spread=300)


def test_always_is_always() -> None:
    made = Trial("always")
    assert not made.play(100, -100, rounds=20)
    assert made.lasting == HALF
