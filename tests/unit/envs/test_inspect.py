"""Inspection: what cannot be trained on is refused before a run starts."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiBinary
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.errors import UsageError
from spreeze.policy import Policy, PolicyForm
from spreeze.testing import FaultEnv


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"obs": gym.spaces.Text(3)}, "supported are Box, Discrete"),
        ({"obs": Box(0, 255, (8, 8, 3), np.uint8)}, "images"),
        ({"obs": Box(-1, 1, (0,))}, "empty"),
        ({"action": MultiBinary(3)}, "only Box and Discrete actions"),
        ({"action": Box(-np.inf, np.inf, (2,))}, "without bounds on both sides"),
        ({"action": Box(0, np.inf, (2,))}, "without bounds on both sides"),
        ({"action": Box(0, 3, (2,), np.int64)}, "not continuous"),
        ({"action": Box(1, 1, (2,))}, "low must be below high"),
    ],
)
def test_spaces_that_cannot_be_trained_on_are_refused_by_name(spaces: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        inspect_env(partial(fakes.SpaceEnv, **spaces), "MyEnv")
    assert "MyEnv" in str(caught.value)


class LyingEnv(fakes.ReachEnv):
    """Declares finite observations of shape (1,) and returns what it was given."""

    def __init__(self, obs: Any) -> None:
        super().__init__()
        self.lie = np.array(obs)

    def reset(self, **_: Any) -> Any:
        return self.lie, {}


@pytest.mark.parametrize(
    ("obs", "message"),
    [([np.nan], "reset returned nan as observation 0"), ([1.0, 2.0], r"of shape \(2,\)")],
)
@pytest.mark.filterwarnings("ignore")  # Gymnasium's own checker warns of the same
def test_observations_that_do_not_fit_their_space_are_refused(obs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspect_env(partial(LyingEnv, obs), "LyingEnv")


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_whose_episodes_end_at_once_is_tried_out(mode: AutoresetMode) -> None:
    """Without auto-reset, a step after the end of an episode would raise."""
    makers = [partial(fakes.CountEnv, length=length) for length in (2, 3)]
    spec = inspect_env(partial(SyncVectorEnv, makers, autoreset_mode=mode), "MyEnv")
    assert spec.vector_envs == 2


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: Any, **__: Any) -> Any:
        raise gym.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`")

    monkeypatch.setattr(gym, "make", make)
    with pytest.raises(UsageError, match=r'pip install "spreeze\[mujoco\]"'):
        inspect_env("Ant-v5", "Ant-v5")


def test_actions_are_scaled_to_the_bounds_that_were_found() -> None:
    spec = inspect_env(fakes.CountEnv, "CountEnv")
    policy = Policy(spec, PolicyForm(hidden=(4,)))
    scaled = policy.to_env_action(np.array([[-1.0], [0.0], [1.0]], np.float32))
    assert scaled.ravel().tolist() == [-2.0, 2.0, 6.0]


@pytest.mark.fault("F50")
def test_the_time_to_make_and_to_reset_an_environment_is_measured() -> None:
    slow = inspect_env(partial(FaultEnv, fault="slow", where="construct", seconds=0.3), "x")
    assert slow.construct_s is not None
    assert slow.construct_s >= 0.3
    slow = inspect_env(partial(FaultEnv, fault="slow", where="reset", at=1, seconds=0.3), "x")
    assert slow.reset_s is not None
    assert slow.reset_s >= 0.3, "the slowest one"
    assert slow.construct_s is not None
    assert slow.construct_s < 0.3


@pytest.mark.fault("F44")
def test_a_reward_that_is_not_a_single_number_is_refused() -> None:
    with pytest.raises(UsageError, match="it must be a single number"):
        inspect_env(partial(FaultEnv, fault="bad_shape", part="reward"), "x")


@pytest.mark.parametrize(
    ("length", "terminate", "steps"), [(5, True, 5), (5, False, None), (4000, True, None)]
)
def test_it_is_found_out_whether_random_actions_end_episodes(
    length: int, terminate: bool, steps: float | None
) -> None:
    spec = inspect_env(partial(fakes.CountEnv, length, terminate), "count")
    assert spec.random_episode == (None if steps is None else pytest.approx(steps, rel=0.2))
