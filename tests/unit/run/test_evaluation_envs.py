"""The environments of evaluations: which there are, and what is refused before the run."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.errors import UsageError
from spreeze.run.evaluation_envs import evaluation_envs, tried_out
from spreeze.settings.build import build_config
from spreeze.settings.config import Config


def config_of(env: str = "Pendulum-v1", **knobs: Any) -> Config:
    return build_config(env, {name.replace("__", "."): value for name, value in knobs.items()})


def made(config: Config, env: EnvTarget | None = None) -> dict[str, Any]:
    """The environments by name."""
    envs = evaluation_envs(config, config.env if env is None else env)
    return {env.name: make_env(env.target) for env in envs}


def gravity(env: Any) -> float:
    return float(env.unwrapped.g)


def test_without_a_name_the_environment_that_is_trained_on_is_evaluated() -> None:
    assert made(config_of(env__kwargs={"g": 5.0})) == {}


def test_arguments_alone_are_for_the_environment_that_is_trained_on() -> None:
    config = config_of(evaluator__kwargs={"g": 7.0}, env__kwargs={"g": 5.0})
    (env,) = made(config).values()
    assert gravity(env) == 7.0


def test_several_arguments_are_several_environments_that_names_tell_apart() -> None:
    config = config_of(evaluator__kwargs=[{"g": 7.0}, {"g": 9.0}], env__max_episode_steps=20)
    envs = made(config)
    assert {name: gravity(env) for name, env in envs.items()} == {
        "Pendulum-v1,g=7.0": 7.0,
        "Pendulum-v1,g=9.0": 9.0,
    }
    for env in envs.values():
        assert isinstance(env, gym.wrappers.TimeLimit)
        assert env._max_episode_steps == 20, "the limit of the environment that is trained on"


def test_the_environment_that_is_trained_on_keeps_its_arguments_beside_others() -> None:
    names = ["Pendulum-v1", "fakes:ReachEnv"]
    envs = made(config_of(evaluator__env=names, env__kwargs={"g": 5.0}))
    assert gravity(envs["Pendulum-v1"]) == 5.0
    assert isinstance(envs["fakes:ReachEnv"].unwrapped, fakes.ReachEnv)


def test_a_class_is_evaluated_with_other_arguments() -> None:
    class Sized(fakes.ReachEnv):
        def __init__(self, size: int = 1) -> None:
            super().__init__()
            self.size = size

    (env,) = made(config_of("Sized", evaluator__kwargs={"size": 3}), Sized).values()
    assert env.unwrapped.size == 3


@pytest.mark.parametrize(
    ("knobs", "parts"),
    [
        ({"evaluator__env": "Pendulum-v9"}, ["Pendulum-v9", "Did you mean Pendulum-v1"]),
        (
            {"evaluator__env": "MountainCarContinuous-v0"},
            ["--evaluator.env MountainCarContinuous-v0", "observations are (2,)", "(3,)"],
        ),
        (
            {"evaluator__kwargs": {"gravity": 3}},
            ["Pendulum-v1 does not take --evaluator.kwargs", "gravity"],
        ),
    ],
)
def test_an_environment_that_cannot_be_evaluated_is_refused(
    knobs: dict[str, Any], parts: list[str]
) -> None:
    config = config_of(**knobs)
    spec = inspect_env("Pendulum-v1", "Pendulum-v1")
    with pytest.raises(UsageError) as refused:
        tried_out(evaluation_envs(config, "Pendulum-v1"), spec, config, None)
    (problem,) = refused.value.problems
    assert all(part in problem for part in parts), problem


def test_other_actions_are_refused_and_all_problems_named_at_once() -> None:
    class Wide(fakes.ReachEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Box(-3.0, 3.0, self.action_space.shape)

    spec = inspect_env(Wide, "Wide")
    config = config_of("Wide", evaluator__env=["fakes:ReachEnv", "Pendulum-v9"])
    with pytest.raises(UsageError) as refused:
        tried_out(evaluation_envs(config, Wide), spec, config, None)
    first, second = refused.value.problems
    assert "from -1 to 1, those of Wide (1,) from -3 to 3" in first
    assert "Pendulum-v9" in second
