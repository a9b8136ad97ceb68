"""Episodes of an evaluation, played by several processes at once."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fakes
from spreeze.envs.guard import EnvGuard
from spreeze.envs.inspect import inspect_env
from spreeze.errors import EnvBroken
from spreeze.faults import Doing
from spreeze.policy import Policy, PolicyForm
from spreeze.roles.evaluator.episodes import EpisodePool, Player, WorkerFailed, WorkerKilled

# In the test process torch has threads; an evaluator has none.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
FORM = PolicyForm(hidden=(256, 256))


class Trial:
    """A pool, a policy for it, and how often it has yielded."""

    def __init__(self, target: Any, num_episodes: int, num_processes: int) -> None:
        spec = inspect_env(target, "x")
        self.guard = EnvGuard()
        player = Player([target], spec, partial(Policy, spec, FORM), self.guard)
        self.pool = EpisodePool(player, num_episodes, num_processes)
        self.vector = Policy(spec, FORM).vector
        self.vector[:] = np.random.default_rng(0).normal(size=len(self.vector))
        self.yields = 0

    def play(self, seed: int = 5, meanwhile: Callable[[], bool] = lambda: False) -> Any:
        def count() -> Any:
            episodes = yield from self.pool.play(self.vector, seed, meanwhile)
            results.append([(episode.total, episode.length) for episode in episodes[0]])

        results: list[Any] = []
        for _ in count():
            self.yields += 1
        return results[0]


@pytest.fixture
def trial() -> Any:
    made: list[Trial] = []

    def make(target: Any, num_episodes: int = 5, num_processes: int = 1) -> Trial:
        made.append(Trial(target, num_episodes, num_processes))
        return made[-1]

    yield make
    for each in made:
        each.pool.close()


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1")


@pytest.mark.parametrize("num_processes", [2, 3, 9])
def test_any_number_of_processes_plays_the_same_episodes(trial: Any, num_processes: int) -> None:
    alone, together = trial(pendulum, 7), trial(pendulum, 7, num_processes)
    for seed in (5, 6):
        results = np.array(together.play(seed))
        np.testing.assert_allclose(results, alone.play(seed), rtol=1e-4)
        assert len(set(results[:, 0])) == 7, "seven different episodes"
    together.vector *= -1
    newest = np.array(together.play())
    assert not np.allclose(newest, alone.play(), rtol=1e-2), "each time with the newest policy"


def test_more_episodes_than_environments(trial: Any) -> None:
    results = [trial(pendulum, 25, num_processes).play() for num_processes in (1, 2)]
    np.testing.assert_allclose(*results, rtol=1e-4)


@pytest.mark.parametrize("num_processes", [1, 3])
def test_each_environment_has_its_own_episodes(num_processes: int) -> None:
    """In CountEnv every step pays 1; it ends after five."""
    spec = inspect_env(fakes.CountEnv, "x")
    targets = [fakes.CountEnv, lambda: gym.wrappers.TimeLimit(fakes.CountEnv(), 3)]
    pool = EpisodePool(
        Player(targets, spec, partial(Policy, spec, FORM), EnvGuard()), 4, num_processes
    )
    try:
        played = deque(_played(pool, Policy(spec, FORM).vector), maxlen=1).pop()
    finally:
        pool.close()
    assert [[episode.length for episode in episodes] for episodes in played] == [[5] * 4, [3] * 4]


def _played(pool: EpisodePool, vector: Any) -> Any:
    yield (yield from pool.play(vector, 0, lambda: False))


class Fragile(fakes.CountEnv):
    """Raises in the episode of one seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.broken = seed == 8
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.broken:
            raise RuntimeError("the arm fell off")
        return super().step(action)


@pytest.mark.fault("F42")
def test_an_episode_in_which_an_environment_raises_is_broken_and_counted(trial: Any) -> None:
    made = trial(Fragile, num_processes=2)  # episodes 5, 6, 7 here, and 8, 9 there
    broken = [bool(np.isnan(total)) for total, _ in made.play()]
    assert broken == [False, False, False, True, False]
    assert made.guard.errors == 1
    assert not any(np.isnan(total) for total, _ in made.play(seed=20)), "it was made again"
    assert made.guard.errors == 1


class Hopeless(fakes.CountEnv):
    """Raises in every step, in other processes than this one."""

    home = os.getpid()

    def step(self, action: Any) -> Any:
        if os.getpid() != self.home:
            raise RuntimeError("the arm fell off")
        return super().step(action)


@pytest.mark.fault("F42")
def test_a_worker_whose_environments_are_given_up_says_so_with_their_traceback(trial: Any) -> None:
    made = trial(Hopeless, num_processes=2)
    with pytest.raises(EnvBroken, match=r"in step\n(.*\n)*RuntimeError: the arm fell off"):
        [made.play(seed) for seed in range(10)]
    assert made.guard.errors >= 5


@pytest.mark.fault("F10")
def test_a_killed_worker_is_noticed(trial: Any) -> None:
    made = trial(pendulum, num_processes=2)
    worker = made.pool._workers[0].process
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with pytest.raises(WorkerKilled):
        made.play()


class Sleeper(fakes.CountEnv):
    """Sleeps in each step, in other processes than this one."""

    home, sleep_s = os.getpid(), 0.1

    def step(self, action: Any) -> Any:
        if os.getpid() != self.home:
            time.sleep(self.sleep_s)
        return super().step(action)


@pytest.mark.fault("F05")
def test_waiting_yields_only_when_a_worker_moves_and_shows_what_it_does(trial: Any) -> None:
    """A worker takes 0.1 s per step, and is asked every 5 ms."""
    made = trial(Sleeper, num_episodes=4, num_processes=2)
    made.play()
    before, seen = made.yields, set()

    def watch() -> bool:
        seen.add(int(made.guard.doing))
        return False

    made.play(meanwhile=watch)
    more = made.yields - before - (5 + 1)  # the steps of this process, and the answer
    resets, steps = 2, 5
    assert 0 < more <= resets + steps
    assert Doing.STEP in seen


def test_the_end_of_the_run_is_noticed_while_a_worker_plays(trial: Any) -> None:
    made = trial(Sleeper, num_episodes=4, num_processes=2)
    made.play(meanwhile=lambda: True)
    assert made.yields > 1 + 5 + 1 + 3, "ready, the steps of this process, the answer, and waiting"


class Parent(fakes.CountEnv):
    """Starts a child process, and leaves a file when it is closed."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes
        self.child = get_context("fork").Process(target=time.sleep, args=(100,))
        self.child.start()

    def close(self) -> None:
        self.child.kill()
        self.child.join()
        (self.notes / str(os.getpid())).touch()


@pytest.mark.parametrize("playing", [True, False])
def test_environments_in_workers_may_have_children_and_are_closed(
    tmp_path: Path, playing: bool
) -> None:
    spec = inspect_env(fakes.CountEnv, "x")
    pool = EpisodePool(
        Player([lambda: Parent(tmp_path)], spec, partial(Policy, spec, FORM), EnvGuard()), 4, 2
    )
    player = pool.play(Policy(spec, FORM).vector, 0, lambda: False)
    for _ in range(3 if playing else 0):
        next(player)
    player.close()
    pool.close()
    assert len(list(tmp_path.iterdir())) == 2, "here and in the worker"


def test_an_error_while_a_worker_makes_its_environments_is_raised_here(trial: Any) -> None:
    """The traceback is long, and the worker has not waited for a policy."""
    home = os.getpid()

    def here_only() -> gym.Env[Any, Any]:
        if os.getpid() != home:
            raise RuntimeError("x" * 400_000 + "no licence left")
        return fakes.CountEnv()

    made = trial(here_only, num_processes=2)
    with pytest.raises(WorkerFailed, match="no licence left"):
        made.play()
