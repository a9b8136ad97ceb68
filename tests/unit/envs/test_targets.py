"""What a user may name as an environment."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import fakes
import spreeze
from spreeze.envs.inspect import inspect_env
from spreeze.envs.targets import Adjusted, make_env, picklable_target
from spreeze.errors import UsageError


def test_environments_by_id_module_and_class() -> None:
    assert inspect_env("Pendulum-v1", "Pendulum-v1").max_episode_steps == 200
    assert inspect_env("gymnasium.envs.classic_control:Pendulum-v1", "x").obs_shape == (3,)
    assert inspect_env("fakes:ReachEnv", "x").obs_shape == (1,)
    assert isinstance(make_env(fakes.ReachEnv), fakes.ReachEnv)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Pendulum-v7", "Did you mean Pendulum-v1"),
        ("Pendulun-v1", "Did you mean .*Pendulum-v1"),
        ("no_such_module:Env", "no module 'no_such_module'"),
        ("fakes:ReechEnv", "Did you mean fakes:ReachEnv"),
    ],
)
def test_unknown_environments_are_refused_with_the_nearest_name(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspect_env(name, name)


def test_an_id_registered_by_the_user_reaches_other_processes() -> None:
    gym.register("Mine-v0", entry_point=fakes.ReachEnv)
    try:
        maker = picklable_target("Mine-v0")
    finally:
        del gym.registry["Mine-v0"]
    assert callable(maker)
    assert inspect_env(maker, "Mine-v0").obs_shape == (1,)
    assert picklable_target("Pendulum-v1") == "Pendulum-v1"


@pytest.mark.fault("F16")
def test_what_cannot_be_sent_to_a_sampler_is_refused_with_a_way_out(tmp_path: Path) -> None:
    lock = threading.Lock()

    def one_robot() -> Any:
        with lock:
            return fakes.ReachEnv()

    with pytest.raises(UsageError, match=r"env one_robot: .*cannot pickle .*lock.* use --serial"):
        spreeze.train(one_robot, runs=str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert spreeze.train(one_robot, runs=str(tmp_path), serial=True, steps="200").summary


@pytest.mark.parametrize("made", [True, False])
def test_targets_that_cannot_make_an_environment_are_refused(made: bool, tmp_path: Path) -> None:
    what: Any = fakes.CountEnv() if made else 123
    message = "is an environment object" if made else "123 is not an environment"
    with pytest.raises(UsageError, match=message):
        spreeze.train(what, runs=str(tmp_path))
    assert not list(tmp_path.iterdir())


def steps_of_an_episode(env: Any) -> int:
    """Steps until an episode is truncated; it must not end otherwise."""
    env.reset(seed=0)
    for step in range(1, 1000):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        if truncated:
            return step
    raise AssertionError("it does not end")


@pytest.mark.parametrize("target", ["Pendulum-v1", partial(fakes.CountEnv, 10**6, False)])
@pytest.mark.parametrize("steps", [7, 300])
def test_a_time_limit_replaces_the_one_of_the_registration(target: Any, steps: int) -> None:
    limited = Adjusted(target, max_episode_steps=steps)
    assert steps_of_an_episode(make_env(limited)) == steps
    assert steps_of_an_episode(limited()) == steps
    assert inspect_env(limited, "x").max_episode_steps == steps


def test_a_time_limit_reaches_other_processes_and_is_refused_for_vector_environments() -> None:
    gym.register("OwnLimited-v0", fakes.ReachEnv)
    try:
        sent = picklable_target(Adjusted("OwnLimited-v0", max_episode_steps=5))
        assert isinstance(sent, Adjusted)
        assert callable(sent.target)
    finally:
        del gym.registry["OwnLimited-v0"]
    with pytest.raises(UsageError, match="a vector environment ends its own episodes"):
        make_env(Adjusted(lambda: gym.make_vec("Pendulum-v1", 2), max_episode_steps=5))
