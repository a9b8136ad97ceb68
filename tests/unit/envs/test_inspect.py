"""Inspection: what cannot be trained on is refused before a run starts."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.envs.targets import Adjusted, adjusted, make_env, target_name
from spreeze.envs.traps import describe_trap
from spreeze.errors import UsageError
from spreeze.policy import Policy, PolicyForm
from spreeze.spec import Trap
from spreeze.testing import FaultEnv


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"obs": gym.spaces.Text(3)}, "supported are Box, Discrete"),
        ({"obs": Box(0, 255, (4, 8, 8, 3), np.uint8)}, "Frames are stacked by --env.stack"),
        ({"obs": Box(0, 255, (64, 8, 64), np.uint8)}, r"An image has the shape \(height"),
        ({"obs": Box(0, 1, (3, 64, 64))}, "looks like an image of type float32.*np.uint8"),
        ({"obs": Box(0, 255, (32, 32), np.int64)}, "looks like an image.*FlattenObservation"),
        ({"obs": gym.spaces.Tuple([Box(0, 1, (64, 64))])}, "observation 0, .* looks like an image"),
        ({"obs": Box(-1, 1, (2, 2, 2))}, "too many dimensions"),
        ({"obs": Box(-1, 1, (0,))}, "empty"),
        ({"action": MultiBinary(3)}, r"the 8 combinations: .*\(2, 2, 2\)"),
        ({"action": MultiDiscrete([9] * 9)}, "387,420,489 combinations, too many"),
        ({"action": gym.spaces.Text(3)}, "only Box and Discrete actions"),
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


def test_bytes_in_one_dimension_are_numbers() -> None:
    memory = partial(fakes.SpaceEnv, obs=Box(0, 255, (128,), np.uint8))
    assert inspect_env(memory, "Memory").obs_shape == (128,)


class TupleActions(fakes.SpaceEnv):
    """Refuses actions outside its space."""

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(action)


@pytest.mark.parametrize(
    "space",
    [MultiDiscrete([2, 3]), MultiDiscrete([2, 3], start=[1, -4]), MultiDiscrete([[2], [3]])],
)
def test_the_advice_for_several_discrete_actions_works(space: Any) -> None:
    make = partial(TupleActions, action=space)
    with pytest.raises(UsageError) as caught:
        inspect_env(make, "MyEnv")
    advice = str(caught.value).partition("combinations: ")[2].removesuffix(".")
    env = eval(advice, {"gymnasium": gym, "numpy": np, "env": make()})
    assert inspect_env(lambda: env, "MyEnv").num_actions == 6


class PettingZooEnv:
    possible_agents = ("red", "blue")

    def close(self) -> None:
        pass


class RLlibEnv(gym.Env[Any, Any]):
    """Without spaces until it is reset, as they may be."""

    def get_agent_ids(self) -> set[str]:
        return {"red", "blue"}


@pytest.mark.parametrize("env", [PettingZooEnv, RLlibEnv])
@pytest.mark.parametrize("max_episode_steps", [None, 100])
def test_an_environment_with_several_agents_is_refused_as_such(
    env: Any, max_episode_steps: int | None
) -> None:
    with pytest.raises(UsageError, match="MyEnv: it has several agents"):
        inspect_env(adjusted(env, {}, max_episode_steps), "MyEnv")


def test_modules_are_refused_and_those_of_pettingzoo_as_several_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chess_like.py").write_text("def raw_env(): ...\ndef env(): ...\n")
    (tmp_path / "games.py").write_text("import json\nimport chess_like\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="games:chess_like: it has several agents"):
        inspect_env("games:chess_like", "games:chess_like")
    with pytest.raises(UsageError, match="games:json: this is a module"):
        inspect_env("games:json", "games:json")
    module: Any = import_module("chess_like")
    for given in (module, PettingZooEnv()):
        with pytest.raises(UsageError, match="it has several agents"):
            target_name(given)


class Silent(fakes.CountEnv):
    """Rewards nothing, says which actions are allowed, and names a goal."""

    def __init__(self) -> None:
        super().__init__(50, terminate=False)
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: Any = gym.spaces.Dict({key: Box(-1, 1, (1,)) for key in keys})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return self.observe(), {"action_mask": [1]}

    def step(self, action: Any) -> Any:
        _, _, terminated, truncated, _ = super().step(action)
        return self.observe(), 0.0, terminated, truncated, {}

    def observe(self) -> Any:
        return {key: np.zeros(1, np.float32) for key in self.observation_space}


def test_what_training_disregards_is_noticed() -> None:
    traps = inspect_env(Silent, "Silent").traps
    assert set(traps) == {Trap.ACTION_MASK, Trap.GOALS, Trap.NO_REWARD}
    assert inspect_env("Pendulum-v1", "Pendulum-v1").traps == ()


class Masked(fakes.CountEnv):
    """Says which actions are allowed as sb3-contrib asks for it."""

    def action_masks(self) -> Any:
        return [True]


def test_action_masks_are_noticed_in_each_form() -> None:
    masked = gym.spaces.Dict({"observation": Box(-1, 1, (2,)), "action_mask": MultiBinary(2)})
    assert Trap.ACTION_MASK in inspect_env(partial(fakes.SpaceEnv, obs=masked), "x").traps
    wrapped = inspect_env(lambda: gym.wrappers.TimeLimit(Masked(), 9), "x")
    assert wrapped.traps == (Trap.ACTION_MASK,)


def test_a_slow_environment_without_rewards_is_noticed() -> None:
    """A hundred steps of it take longer than what is usually spent on random actions."""
    slow = partial(FaultEnv, fault="slow", seconds=0.002)
    assert inspect_env(slow, "x").traps == ()
    assert inspect_env(lambda: TransformReward(slow(), lambda _: 0.0), "x").traps == (
        Trap.NO_REWARD,
    )


@pytest.mark.parametrize("trap", Trap)
def test_each_trap_is_told_in_one_line(trap: Trap) -> None:
    assert 40 < len(f"Note: {describe_trap(trap)}") <= 110


def test_arguments_of_an_environment() -> None:
    spec = inspect_env(Adjusted("Pendulum-v1", {"g": 5.0}, 30), "Pendulum-v1")
    assert spec.max_episode_steps == 30
    env = make_env(Adjusted("Pendulum-v1", {"g": 5.0}))
    assert env.unwrapped.g == 5.0  # type: ignore[union-attr]


@pytest.mark.parametrize("target", ["Pendulum-v1", fakes.ReachEnv])
def test_arguments_that_an_environment_does_not_take_are_refused(target: Any) -> None:
    with pytest.raises(UsageError, match=r"does not take --env\.kwargs: .*gravity"):
        inspect_env(Adjusted(target, {"gravity": 5.0}), "x")


def test_a_lambda_is_named_after_what_it_makes() -> None:
    assert inspect_env(lambda: gym.make("Pendulum-v1"), "lambda").id == "Pendulum-v1 (lambda)"
    assert inspect_env(lambda: fakes.CountEnv(9), "lambda").id == "CountEnv (lambda)"
