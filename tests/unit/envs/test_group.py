"""A group of environments: what reaches them, and what it counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import fakes
from counting import NUM_ENVS, count_group
from spreeze.envs.group import EnvGroup, make_group
from spreeze.envs.inspect import inspect_env
from spreeze.envs.stepping import make_stepper
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import row_layout


def test_returns_and_lengths_of_finished_episodes() -> None:
    group, spec = count_group("plain", True)
    rows = np.zeros(NUM_ENVS, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    for _ in range(4):
        group.step(actions, actions, 0, rows)
    first = 1  # the episode of the only environment whose episode has ended by now
    assert group.finished == [(sum(100.0 * first + k for k in (1, 2, 3, 4)), 4, {})]
    group.close()


@pytest.mark.parametrize("vector", [False, True])
def test_discrete_actions_reach_the_environment_with_its_own_numbers(vector: bool) -> None:
    taken: list[int] = []

    class Choosing(fakes.SpaceEnv):
        def __init__(self) -> None:
            super().__init__(action=Discrete(3, start=5))

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            taken.append(int(action))
            return super().step(action)

    spec = inspect_env(Choosing, "Choosing")
    taken.clear()
    assert (spec.num_actions, spec.first_action, spec.action_size) == (3, 5, 1)

    def pair() -> SyncVectorEnv:
        return SyncVectorEnv([Choosing] * 2, autoreset_mode=AutoresetMode.SAME_STEP)

    stepper: Any = VectorStepper(pair(), pair) if vector else make_stepper(Choosing, 2)
    group = EnvGroup(stepper, spec)
    policy = Policy(spec, PolicyForm(hidden=(4,), head="values"))
    group.reset(seed=0)
    rows = np.zeros(2, row_layout(spec).dtype)
    stored = []
    for _ in range(20):
        actions = policy.act_randomly(2)
        group.step(actions, policy.to_env_action(actions), 0, rows)
        stored += rows["action"].tolist()
    group.close()
    assert [5 + index for index in stored] == taken
    assert set(taken) == {5, 6, 7}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_observations_may_have_any_number_type(dtype: Any) -> None:
    target = partial(fakes.SpaceEnv, obs=Box(0, 100, (2, 3), dtype))
    spec = inspect_env(target, "SpaceEnv")
    assert spec.obs_shape == (2, 3)
    group = make_group(target, spec, 2)
    group.reset(seed=0)
    before = group.obs.copy()
    rows = np.zeros(2, row_layout(spec).dtype)
    actions = np.zeros((2, 1), np.float32)
    assert group.step(actions, actions, 0, rows) == 2
    group.close()
    np.testing.assert_array_equal(rows["obs"], before)
    assert rows["next_obs"].shape == (2, 6)
