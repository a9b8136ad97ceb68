"""Stepping: whole episodes, time limits, and the wrappers that are bypassed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fakes
from counting import LENGTHS, MODES, NUM_ENVS, count_stepper
from spreeze.envs.episodes import Episode
from spreeze.envs.inspect import inspect_env
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.step_result import StepResult
from spreeze.envs.stepping import Stepper, play_episodes, play_to_end
from spreeze.spec import EnvSpec

LINE = EnvSpec(id="line", obs_shape=(3,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,))


def play(stepper: Stepper, num_episodes: int) -> list[Episode]:
    """Play whole episodes of CountEnv with actions of zero."""
    spec = inspect_env(fakes.CountEnv, "CountEnv")
    still = np.zeros((stepper.num_envs, 1), np.float32)
    try:
        return play_to_end(stepper, spec, lambda _: still, num_episodes, seed=0)
    finally:
        stepper.close()


@pytest.mark.parametrize("mode", MODES)
def test_each_environment_plays_one_whole_episode_per_round(mode: Any) -> None:
    episodes = play(count_stepper(mode, terminate=True), 5)
    assert [episode.length for episode in episodes] == [*LENGTHS, *LENGTHS[:2]]
    for (total, length, _), i in zip(episodes, (0, 1, 2, 0, 1), strict=True):
        episode = round((total / length - (length + 1) / 2) / 100)
        assert episode // 1000 == i
        assert total == 100 * episode * length + length * (length + 1) / 2


def test_finished_episodes_are_known_after_each_round() -> None:
    stepper = count_stepper("plain", terminate=True)
    spec = inspect_env(fakes.CountEnv, "CountEnv")
    still = np.zeros((NUM_ENVS, 1), np.float32)
    player = play_episodes(stepper, spec, lambda _: still, 4, seed=0)
    finished = [len(episodes) for episodes in player]
    stepper.close()
    longest = max(LENGTHS)
    assert finished == [0] * (longest - 1) + [NUM_ENVS] * longest + [4]


def test_an_episode_that_is_not_finite_has_no_return() -> None:
    sound, broken = play(
        LoopStepper([fakes.CountEnv(), fakes.FaultEnv("nan", at=3)], fakes.CountEnv), 2
    )
    assert np.isfinite(sound[0])
    assert np.isnan(broken[0])
    assert broken[1] == 2, "the steps before the broken one"


def test_a_subclass_of_time_limit_is_not_bypassed() -> None:
    class Paying(gym.wrappers.TimeLimit):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, 100.0 if truncated else float(reward), terminated, truncated, info

    ((total, length, _),) = play(
        LoopStepper([Paying(fakes.CountEnv(length=50), 3)], fakes.CountEnv), 1
    )
    assert length == 3
    assert total > 100


@pytest.mark.parametrize("wrapped", [False, True])
def test_bypassing_the_standard_wrappers_changes_nothing(wrapped: bool) -> None:
    """Time limits hold, and the user's own wrappers are not bypassed."""

    def make() -> gym.Env[Any, Any]:
        env: Any = gym.make("Pendulum-v1", disable_env_checker=True)
        return gym.wrappers.TransformReward(env, lambda r: r + 100) if wrapped else env

    stepper, plain = LoopStepper([make()], make), make()
    bypassed = stepper._steps[0].__self__ is stepper.envs[0].unwrapped
    assert bypassed is not wrapped
    out = StepResult(1, LINE)
    stepper.reset_into(3, out)
    expected, _ = plain.reset(seed=3)
    rng = np.random.default_rng(0)
    for i in range(450):
        np.testing.assert_array_equal(out.obs[0], expected)
        action = rng.uniform(-2, 2, (1, 1)).astype(np.float32)
        stepper.step(action, out)
        expected, reward, terminated, truncated, _ = plain.step(action[0])
        np.testing.assert_array_equal(out.next_obs[0], expected)
        assert out.reward[0] == np.float32(reward)
        assert (out.terminated[0], out.truncated[0]) == (terminated, truncated)
        assert truncated == (i % 200 == 199)
        assert out.any_done_or_invalid == truncated
        if truncated:
            expected, _ = plain.reset()


def test_the_time_limit_restarts_after_an_episode_that_was_cut_for_bad_numbers() -> None:
    env = gym.wrappers.TimeLimit(fakes.FaultEnv("nan", at=3), 5)
    stepper, out = LoopStepper([env], fakes.CountEnv), StepResult(1, LINE)
    stepper.reset_into(0, out)
    cut = []
    for _ in range(12):
        stepper.step(np.zeros((1, 1), np.float32), out)
        cut.append((bool(out.valid[0]), bool(out.truncated[0])))
    first = cut.index((False, False))
    after = [truncated for _, truncated in cut[first + 1 :]]
    assert after.index(True) == 4, cut
