"""Diagnosis: what is named as the cause when a run does not learn, and when nothing is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spreeze.run.diagnosis import LONG_EPISODE, PATIENCE_S, Cause, Diagnosis, LearningWatch
from spreeze.run.wording import describe_diagnosis
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control, control_blocks

HEALTHY = {
    "looked_s": 1.0,
    "reward_low": -1.0,
    "reward_high": 2.0,
    "saturated": 0.3,
    "obs_size": 3.0,
    "obs_ratio": 5.0,
    "terminated": 0.0,
    "q_mean": 30.0,
}
BEGAN_S = 2.0


class Stage:
    """A run of two samplers with four environments each; the test says what has been seen of it."""

    def __init__(self, algo: str = "sac", **knobs: Any) -> None:
        given = {"sampler.processes": 2, "sampler.envs_per_process": 4, "algo.lr": 1e-3}
        self.config = config_with(default_config(algo, env="x"), given | knobs)
        self.arena = Arena.create(control_blocks(2))
        self.control = Control(self.arena)
        self.watch = LearningWatch(self.config)
        self.control.learner["first_update_s"] = BEGAN_S
        self.control.samplers["episodes"], self.control.samplers["length_mean"] = 5, 200
        self.control.samplers["env_steps"] = 10_000
        self.see(**HEALTHY)

    def see(self, **words: float) -> None:
        for name, value in words.items():
            self.control.learner[name] = value

    def found(self, *evaluations: float, seconds: float = PATIENCE_S) -> Diagnosis | None:
        for mean in evaluations:
            self.watch.evaluated(mean)
        return self.watch.diagnose(self.control, BEGAN_S + seconds)


@pytest.fixture
def stage() -> Iterator[Any]:
    made: list[Stage] = []

    def make(*args: Any, **knobs: Any) -> Stage:
        made.append(Stage(*args, **knobs))
        return made[-1]

    yield make
    for each in made:
        each.arena.close()


@pytest.mark.parametrize(
    "returns",
    [(-1200, -1100), (10, 20), (0, 5), (-10, 0.5), (-50, 40, 30), (-21, -20, -21, -15, 17)],
)
def test_nothing_is_said_of_a_run_that_learns(stage: Any, returns: tuple[float, ...]) -> None:
    made = stage()
    made.see(obs_ratio=1e6, saturated=1.0, q_mean=1e9)
    assert made.found(*returns, seconds=1e4) is None


def test_nothing_is_said_before_there_was_time_to_learn(stage: Any) -> None:
    made = stage()
    made.see(reward_low=0, reward_high=0)
    assert made.found(0, 0, 0, seconds=PATIENCE_S - 0.1) is None
    assert made.found() is not None
    made.control.learner["first_update_s"] = 0
    assert made.found() is None


@pytest.mark.parametrize(
    ("words", "cause", "flags"),
    [
        ({"reward_low": 0, "reward_high": 0}, Cause.EQUAL_REWARDS, "--algo.lasting-noise always"),
        ({"q_mean": -5e4}, Cause.CRITIC_DIVERGES, "--algo.lr 0.0001"),
        ({"obs_ratio": 2e4}, Cause.MIXED_OBSERVATIONS, "--algo.normalise-obs"),
        ({"obs_size": 300}, Cause.LARGE_OBSERVATIONS, "--algo.normalise-obs"),
        ({"saturated": 0.99}, Cause.SATURATED_ACTIONS, "--algo.normalise-reward"),
        ({}, Cause.STILL_RANDOM, "--algo.lasting-noise always"),
    ],
)
def test_the_cause_is_named_with_a_flag(
    stage: Any, words: dict[str, float], cause: Cause, flags: str
) -> None:
    made = stage()
    made.see(**words)
    found = made.found(-100, -110, -99)
    assert found is not None
    assert (found.cause, found.flags) == (cause, flags)
    assert flags in describe_diagnosis(found)


def test_actions_that_noise_has_chosen_do_not_hide_the_policys(stage: Any) -> None:
    """Where noise lasts, it alone acts in half of the environments."""
    made = stage()
    made.see(saturated=0.48)
    assert made.found(5, 5).cause is Cause.STILL_RANDOM
    made.control.samplers["noise_lasts"] = 1
    assert made.found().cause is Cause.SATURATED_ACTIONS
    always = stage(**{"algo.lasting_noise": "always"})
    always.see(saturated=0.48)
    assert always.found(5, 5).cause is Cause.SATURATED_ACTIONS


def test_flags_that_are_given_already_are_not_advised(stage: Any) -> None:
    made = stage("fastsac")
    made.see(obs_ratio=2e4, q_mean=1e6, saturated=0.99)
    assert made.found(5, 5).flags == "--algo.lr 0.0001"
    made = stage(**{"algo.lasting_noise": "always"})
    assert made.found(5, 5).flags == "--algo.noise-colour 2"
    assert stage("dqn").found(5, 5).flags == "--algo.epsilon 0.8"
    assert stage("ppo").found(5, 5).flags == "--algo.entropy 0.05"


def test_a_policy_that_only_avoids_costs_has_found_no_reward(stage: Any) -> None:
    made = stage()
    made.see(reward_low=-0.1, reward_high=0)
    assert made.found(-15, -1, -0.001).cause is Cause.DOES_NOTHING
    made.see(reward_high=100)
    assert made.found() is None, "it has found one"
    made.see(reward_high=0, terminated=1e-4)
    assert made.found() is None, "it reaches something"
    solved = stage()
    solved.see(reward_low=-16, reward_high=0)
    assert solved.found(-1200, -150) is None, "a task whose best return is a small cost"


def test_episodes_that_never_end_are_the_first_thing_to_say(stage: Any) -> None:
    made = stage()
    made.control.samplers["episodes"] = 0
    made.control.samplers["env_steps"] = 4 * LONG_EPISODE
    assert made.found() is None, "they may be long"
    made.control.samplers["env_steps"] += 4
    found = made.found()
    assert found.cause is Cause.NO_EPISODE_ENDS
    assert found.flags == "--env.max-episode-steps 1000"


def test_without_a_look_at_the_replay_nothing_is_named(stage: Any) -> None:
    made = stage()
    made.see(looked_s=0, reward_low=0, reward_high=0)
    assert made.found(0, 0) is None
