"""Symptoms: what the replay says about a run that does not learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cases
from spreeze.learning.replay import Replay
from spreeze.learning.symptoms import Symptoms, find_symptoms


def symptoms(algo: str = "sac", kind: str = "Box", num: int = 600, **columns: Any) -> Symptoms:
    """Of random rows in which these columns have these values."""
    algorithm = cases.built(algo, kind)
    rows = cases.random_rows(algorithm, num)
    rows["discount"] = 0.99
    for name, value in columns.items():
        rows[name] = value
    replay = Replay(cases.layout_of(algorithm), 2 * num, torch.device("cpu"))
    replay.insert(rows)
    return find_symptoms(replay, algorithm.spec)


def test_rewards_are_those_of_all_rows() -> None:
    rewards = np.zeros(600, np.float32)
    assert symptoms(reward=rewards)[:2] == (0, 0)
    rewards[[7, 391]] = -2, 5  # two rows of hundreds
    assert symptoms(reward=rewards)[:2] == (-2, 5)


def test_a_return_that_a_time_limit_cut_short_is_no_other_reward() -> None:
    rewards, discounts = np.full(600, -3.0), np.full(600, 0.99**3)
    rewards[100], discounts[100] = -1.0, 0.99  # one step instead of three
    found = symptoms("dqn", "Discrete", reward=rewards, discount=discounts)
    assert (found.reward_low, found.reward_high) == (-3, -3)
    discounts[100] = 0  # it ended there: that can be learned from
    found = symptoms("dqn", "Discrete", reward=rewards, discount=discounts)
    assert (found.reward_low, found.reward_high) == (-3, -1)


def test_ends_of_episodes_are_counted() -> None:
    discounts = np.full(600, 0.99)
    assert symptoms(discount=discounts).terminated == 0
    discounts[:6] = 0
    assert symptoms(discount=discounts).terminated == pytest.approx(0.01)


def test_actions_at_their_bounds_are_counted() -> None:
    actions = np.zeros((600, 2), np.float32)
    actions[:150] = 1.0
    actions[150:300, 0] = -1.0
    assert symptoms(action=actions).saturated == pytest.approx(0.375)
    assert symptoms("dqn", "Discrete").saturated == 0, "an index has no bounds"


def test_an_observation_of_another_scale_is_seen_and_a_constant_one_is_not() -> None:
    obs = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    obs[:, 3] = 7.0
    assert symptoms(obs=obs).obs_ratio == pytest.approx(1, abs=0.2)
    obs[:, 2] *= 1000
    assert symptoms(obs=obs).obs_ratio == pytest.approx(1000, rel=0.2)
    assert symptoms(obs=obs).obs_size == pytest.approx(1000, rel=0.2)
    assert symptoms(obs=np.zeros((600, 4))).obs_ratio == 1
    assert symptoms(obs=np.full((600, 4), -300)).obs_size == 300


@pytest.mark.parametrize(("algo", "kind"), cases.CASES)
def test_every_kind_of_row_can_be_looked_at(algo: str, kind: str) -> None:
    found = symptoms(algo, kind, num=40)
    assert all(np.isfinite(found))
    assert found.reward_low < found.reward_high
