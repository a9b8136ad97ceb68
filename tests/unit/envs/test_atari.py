"""Atari without ale-py: which ids are its games, the protocol, and what training makes of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spreeze.envs.atari import Protocol, TrainingRules, is_atari, protocol_of
from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.step_result import StepResult
from spreeze.envs.targets import adjusted, atari_protocol, takes_num_envs
from spreeze.errors import UsageError
from spreeze.spec import EnvSpec

SPEC = EnvSpec(id="x", obs_shape=(1,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,))


def step(rules: TrainingRules, lives: list[int], rewards: list[float], done: list[bool]) -> Any:
    out = StepResult(len(lives), SPEC)
    out.reward[:], out.terminated[:] = rewards, done
    out.any_done_or_invalid = any(done)
    rules.count(np.array(lives), np.array(done))
    rules.apply(out)
    return out


def test_training_clips_rewards_and_ends_returns_where_a_life_is_lost() -> None:
    rules = TrainingRules(Protocol(), 3)
    rules.restart(np.array([3, 3, 1]))
    out = step(rules, [3, 3, 1], [200, -7, 0], [False] * 3)
    assert out.reward.tolist() == [1, -1, 0]
    assert not out.terminated.any()
    assert not out.any_done_or_invalid
    # The last life of the third game: it has ended, and the next one has three lives again.
    out = step(rules, [3, 2, 3], [0, 0, 0], [False, False, True])
    assert out.terminated.tolist() == [False, True, True]
    assert out.any_done_or_invalid
    out = step(rules, [4, 2, 3], [0, 0, 0], [False] * 3)  # an extra life
    assert not out.terminated.any()


def test_a_step_that_is_no_transition_ends_nothing() -> None:
    rules = TrainingRules(Protocol(), 1)
    rules.restart(np.array([3]))
    out = StepResult(1, SPEC)
    out.valid[:] = False
    rules.count(np.array([2]), np.array([False]))
    rules.apply(out)
    assert not out.terminated.any()


def test_both_rules_can_be_switched_off() -> None:
    rules = TrainingRules(Protocol(episodic_life=False, reward_clipping=False), 1)
    rules.restart(np.array([3]))
    out = step(rules, [2], [200], [False])
    assert out.reward.tolist() == [200]
    assert not out.terminated.any()


def test_only_ids_of_ale_are_its_games() -> None:
    assert is_atari("ALE/Pong-v5")
    assert is_atari("ale_py:ALE/Pong-v5")
    for other in ("Pong-v4", "PongNoFrameskip-v4", "ALE/Pong-v5 (lambda)", "Mine/Pong-v5", list):
        assert not is_atari(other)
    assert takes_num_envs("ALE/Pong-v5")
    assert takes_num_envs(adjusted("ALE/Pong-v5", {"frameskip": 3}, 10))
    assert takes_num_envs(EnvPoolTarget("Pendulum-v1"))
    assert not takes_num_envs("Pendulum-v1")


def test_the_protocol_is_told_with_the_users_arguments() -> None:
    for target in ("ALE/Pong-v5", EnvPoolTarget("ALE/Pong-v5")):
        said = str(atari_protocol(target))
        for fact in ("4 frames", "25% sticky", "minimal", "84 x 84", "lost life", "-1..1", "raw"):
            assert fact in said
    arguments = {"full_action_space": True, "episodic_life": False, "reward_clipping": False}
    said = str(atari_protocol(adjusted("ALE/Pong-v5", arguments, None)))
    assert "all actions" in said
    assert "lost life" not in said
    assert "clipped" not in said
    assert atari_protocol("Pendulum-v1") is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"frame_skip": 4}, "Did you mean frameskip"),
        ({"obs_type": "ram"}, "gymnasium.make"),
        ({"frameskip": 0}, "frameskip is 0"),
        ({"frameskip": True}, "frameskip is True"),
        ({"grayscale": 1}, "grayscale is 1"),
        ({"repeat_action_probability": 25}, "repeat_action_probability is 25"),
        ({"noop_max": -1}, "noop_max is -1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        protocol_of("ALE/Pong-v5", options)
    protocol_of("ALE/Pong-v5", {"noop_max": 0, "repeat_action_probability": 0})
