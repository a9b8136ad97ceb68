"""Calls into environments: when they are made, who gets them, and what happens if they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

import fakes
from spreeze.envs.calls import EnvCall, find_members
from spreeze.envs.group import EnvGroup, make_group
from spreeze.envs.inspect import inspect_env
from spreeze.errors import EnvBroken
from spreeze.rows import row_layout

STEPS = 5
"""Of an episode."""


class Told(fakes.CountEnv):
    """Remembers what it was told, and in which step of which episode."""

    goal: Any = 1

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, int, int]] = []

    def set_difficulty(self, value: Any) -> None:
        self.told.append((value, self.episode, self.step_index))

    def fail(self) -> None:
        raise RuntimeError("it cannot be set")


def call(number: int, *arguments: Any, name: str = "set_difficulty", **more: bool) -> EnvCall:
    return EnvCall(number, name, list(arguments), more.get("attribute", False), "now" in more)


class Driven:
    """A group of two environments."""

    def __init__(self, target: Any) -> None:
        self.spec = inspect_env(Told, "Told")
        self.group: EnvGroup = make_group(target, self.spec, 2)
        self.envs = getattr(self.group._stepper, "envs", None)
        self.group.reset(seed=0)

    def step(self, num: int) -> None:
        rows, actions = np.zeros(2, row_layout(self.spec).dtype), np.zeros((2, 1), np.float32)
        for _ in range(num):
            self.group.step(actions, actions, 0, rows)

    @property
    def told(self) -> list[list[tuple[Any, int, int]]]:
        return [env.unwrapped.told for env in self.group._stepper.envs]  # type: ignore[union-attr]


@pytest.fixture
def drive() -> Any:
    made: list[Driven] = []

    def make(target: Any = Told) -> Driven:
        made.append(Driven(target))
        return made[-1]

    yield make
    for each in made:
        each.group.close()


def test_a_call_is_made_once_before_the_next_reset(drive: Callable[..., Driven]) -> None:
    made = drive()
    made.step(2)
    made.group.take_calls([call(1, 0.5)])
    made.step(2 * STEPS)
    # CountEnv counts the episode in reset, so the call came at the end of the first one.
    assert made.told == [[(0.5, 1, STEPS)]] * 2


def test_a_call_that_is_urgent_is_made_within_the_episode(drive: Callable[..., Driven]) -> None:
    made = drive()
    made.step(2)
    made.group.take_calls([call(1, 0.5), call(2, 9, name="goal", attribute=True, now=True)])
    assert [env.goal for env in made.envs] == [9, 9]
    assert made.told == [[], []]
    made.group.take_calls(
        [call(2, 9, name="goal", attribute=True, now=True), call(3, 0.7, now=True)]
    )
    made.step(2 * STEPS)
    assert made.told == [[(0.7, 1, 2)]] * 2, "the newer call replaces the one that waited"


def test_an_environment_that_is_made_again_gets_the_newest_calls(
    drive: Callable[..., Driven],
) -> None:
    made = drive()
    made.group.take_calls([call(1, 0.5)])
    made.step(STEPS)
    made.group._stepper._remake(0)  # type: ignore[call-arg, union-attr]
    made.step(2 * STEPS)
    assert [len(told) for told in made.told] == [1, 1]


def test_a_call_reaches_the_environment_inside_wrappers(drive: Callable[..., Driven]) -> None:
    made = drive(lambda: TimeLimit(Told(), 3))
    made.group.take_calls([call(1, [1, 2]), call(2, None, name="goal", attribute=True)])
    made.step(3)
    assert made.told == [[([1, 2], 1, 3)]] * 2
    assert [env.unwrapped.goal for env in made.envs] == [None, None]


def test_a_call_that_raises_gives_the_environment_up_with_its_traceback(
    drive: Callable[..., Driven],
) -> None:
    made = drive()
    made.group.take_calls([call(1, name="fail")])
    with pytest.raises(EnvBroken, match=r"def fail|it cannot be set"):
        made.step(STEPS)


class OwnVector(VectorEnv[Any, Any, Any]):
    """A vector environment without `call`: it is told as a whole."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    goal = 1

    def __init__(self) -> None:
        self.inner = SyncVectorEnv([Told, Told], autoreset_mode=AutoresetMode.SAME_STEP)
        self.num_envs = 2
        for name in ("single_observation_space", "single_action_space", "action_space"):
            setattr(self, name, getattr(self.inner, name))
        self.observation_space = self.inner.observation_space

    def set_difficulty(self, value: Any) -> None:
        self.difficulty = value

    def reset(self, **arguments: Any) -> Any:
        return self.inner.reset(**arguments)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


def test_vector_environments_are_told_at_once(drive: Callable[..., Driven]) -> None:
    calls = [call(1, 0.5), call(2, [3, 4], name="goal", attribute=True)]
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        made = drive(lambda kind=kind: kind([Told, Told]))
        made.group.take_calls(calls)
        env = made.group._stepper.env  # type: ignore[union-attr]
        assert env.get_attr("told") == (([(0.5, 1, 0)],) * 2)
        assert env.get_attr("goal") == ([3, 4], [3, 4])
    made = drive(OwnVector)
    made.group.take_calls(calls)
    env = made.group._stepper.env  # type: ignore[union-attr]
    assert (env.difficulty, env.goal) == (0.5, [3, 4])


@pytest.mark.parametrize(
    "target",
    [
        Told,
        lambda: TimeLimit(Told(), 3),
        lambda: SyncVectorEnv([Told] * 2),
        lambda: AsyncVectorEnv([Told] * 2),
        OwnVector,
    ],
)
def test_the_names_of_an_environment_are_found(target: Any) -> None:
    members = find_members(target)
    assert "set_difficulty" in members.methods
    assert "goal" in members.attributes
    assert "_np_random" not in members.attributes
