"""Episodes of an evaluation, played by several processes side by side."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fakes
from spreeze.envs.targets import inspect_env
from spreeze.policy import Policy, PolicyForm
from spreeze.roles.crew import Crew, HelperFailed, HelperKilled

# Here torch has threads; an evaluator has none.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
FORM = PolicyForm(hidden=(8,))


class Trial:
    """A crew, a policy for it, and how often it yielded."""

    def __init__(self, target: Any, num_episodes: int, num_processes: int) -> None:
        spec = inspect_env(target, "x")
        self.crew = Crew(target, spec, FORM, num_episodes, num_processes)
        self.vector = Policy(spec, FORM).vector
        self.vector[:] = np.random.default_rng(0).normal(size=len(self.vector))
        self.yields = 0

    def play(self, seed: int = 5, meanwhile: Callable[[], bool] = lambda: False) -> Any:
        player = self.crew.play(self.vector, seed, meanwhile)
        try:
            while True:
                next(player)
                self.yields += 1
        except StopIteration as end:
            return end.value


@pytest.fixture
def trial() -> Any:
    made: list[Trial] = []

    def make(target: Any, num_episodes: int = 5, num_processes: int = 1) -> Trial:
        made.append(Trial(target, num_episodes, num_processes))
        return made[-1]

    yield make
    for each in made:
        each.crew.close()


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1")


@pytest.mark.parametrize("num_processes", [2, 3, 9])
def test_it_is_the_same_episodes_however_many_play(trial: Any, num_processes: int) -> None:
    alone, together = trial(pendulum), trial(pendulum, num_processes=num_processes)
    for seed in (5, 6):
        results = together.play(seed)
        assert results == alone.play(seed)
        assert len({episode for episode, _ in results}) == 5, "five different ones"
    together.vector *= -1
    assert together.play() != alone.play(), "each time with the newest policy"


def test_more_episodes_than_environments(trial: Any) -> None:
    assert trial(pendulum, 25, 2).play() == trial(pendulum, 25, 1).play()


class Fragile(fakes.CountEnv):
    """Breaks in the episode of one seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.broken = seed == 8
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.broken:
            raise RuntimeError("the arm fell off")
        return super().step(action)


def test_what_an_environment_raises_in_a_helper_is_said(trial: Any) -> None:
    made = trial(Fragile, num_processes=2)  # episodes 5, 6, 7 here, and 8, 9 there
    with pytest.raises(HelperFailed, match=r"in step\n(.*\n)*RuntimeError: the arm fell off"):
        made.play()


def test_a_helper_that_is_killed_is_said(trial: Any) -> None:
    made = trial(pendulum, num_processes=3)
    os.kill(made.crew._helpers[1].pid, signal.SIGKILL)
    made.crew._helpers[1].join()
    with pytest.raises(HelperKilled):
        made.play()


class Sleeper(fakes.CountEnv):
    """Sleeps where it is not at home."""

    home, sleep_s = os.getpid(), 0.1

    def step(self, action: Any) -> Any:
        if os.getpid() != self.home:
            time.sleep(self.sleep_s)
        return super().step(action)


def test_waiting_for_a_helper_does_not_look_alive(trial: Any) -> None:
    """But the end of the run is seen."""
    made = trial(Sleeper, num_episodes=2, num_processes=2)
    looks: list[bool] = []

    def meanwhile() -> bool:
        looks.append(True)
        return len(looks) > 20

    made.play()
    assert made.yields == 5 + 1, "steps of its own episode, and the answer"
    made.play(meanwhile=meanwhile)
    assert made.yields > 20


def test_a_helper_that_plays_on_does_look_alive(
    trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.roles.crew.SIGN_OF_LIFE_S", 0.15)
    made = trial(Sleeper, num_episodes=2, num_processes=2)
    made.play()
    assert made.yields > 5 + 1, "it was heard of on the way, too"
