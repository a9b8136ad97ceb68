"""What environments say in `info` at the ends of episodes becomes numbers by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import fakes
from spreeze.envs.episodes import (
    MAX_NAMES,
    MAX_SAID,
    Episode,
    InfoNames,
    eval_metrics,
    info_of_env,
    mean_info,
    numbers_in,
    rollout_metrics,
)
from spreeze.envs.group import EnvGroup
from spreeze.envs.inspect import inspect_env
from spreeze.envs.stepping import make_stepper, play_to_end
from spreeze.rows import row_layout


class Talking(fakes.CountEnv):
    """Says which episode it is, at each step, and success at the end of every second one."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        info: dict[str, Any] = {"step": self.step_index, "metrics": {"episode": self.episode}}
        if self.step_index == self.length:
            info["is_success"] = self.episode % 2 == 0
        return (*result, info)  # type: ignore[return-value]


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("terminate", [True, False])
def test_numbers_at_the_ends_of_episodes(mode: AutoresetMode | None, terminate: bool) -> None:
    def talking() -> Talking:
        return Talking(terminate=terminate)

    target: Any = talking
    if mode is not None:
        target = lambda: SyncVectorEnv([talking] * 2, autoreset_mode=mode)  # noqa: E731
    spec = inspect_env(target, "x")
    group = EnvGroup(make_stepper(target, 2), spec)
    group.reset(seed=0)
    rows, actions = np.zeros(2, row_layout(spec).dtype), np.zeros((2, 1), np.float32)
    while len(group.finished) < 6:
        group.step(actions, actions, 0, rows)
    group.close()
    episodes, _ = group.take_finished()
    assert [episode.info for episode in episodes] == [
        {"step": 5, "episode": episode, "is_success": episode % 2 == 0}
        for episode in (1, 1, 2, 2, 3, 3)
    ]


def test_evaluations_see_them_too() -> None:
    spec = inspect_env(Talking, "x")
    stepper = make_stepper(Talking, 2)
    act = lambda _: np.zeros((2, 1), np.float32)  # noqa: E731
    episodes = play_to_end(stepper, spec, act, 3, seed=0)
    stepper.close()
    assert [episode.info["step"] for episode in episodes] == [5, 5, 5]


def test_only_single_finite_numbers_with_usable_names_count() -> None:
    info: Any = {
        "yes": True,
        "np": np.float32(0.5),
        "zero-d": np.array(2),
        "text": "no",
        "array": np.zeros(3),
        "nan": float("nan"),
        "huge": 10**400,
        "its sum is infinite": 1e308,
        "_hidden": 1,
        "TimeLimit.truncated": True,
        3: 3,
        "x" * 61: 1,
        "new\nline": 1,
        "other": {"nested": 1},
        "metrics": {"nested": np.int64(4)},
    }
    assert numbers_in(info) == {"yes": 1.0, "np": 0.5, "zero-d": 2.0, "nested": 4.0}
    assert len(numbers_in({str(i): i for i in range(MAX_SAID + 1)})) == MAX_SAID
    for nothing in (None, {}, [1], "text", 3):
        assert numbers_in(nothing) == {}


def test_the_first_names_of_a_run_are_recorded_and_the_others_counted() -> None:
    names = InfoNames()
    first = {str(i): 1.0 for i in range(MAX_NAMES - 1)}
    assert names.keep([Episode(0.0, 1, first)])[0].info == first
    second, third = names.keep([Episode(2.0, 1, {"a": 1, "b": 2, "3": 3}), Episode(0, 1, {"b": 4})])
    assert second == Episode(2.0, 1, {"a": 1, "3": 3})
    assert third.info == {}
    assert names.left_out == {"b"}


def test_a_number_that_only_some_environments_give() -> None:
    info = {"a": np.array([1.0, 2.0]), "_a": np.array([True, False]), "bare": np.array([5, 6])}
    assert info_of_env(info, 0, 2) == {"a": 1.0, "bare": 5}
    assert info_of_env(info, 1, 2) == {"bare": 6}


def test_means_are_over_the_episodes_that_have_the_number() -> None:
    said = [{"a": 1.0}, {"a": 2.0, "is_success": 1.0}, {}, {"is_success": 0.0}]
    means = mean_info(Episode(0.0, 1, info) for info in said)
    assert means == {"a": 1.5, "is_success": 0.5}
    assert eval_metrics(means) == {"eval/info/a": 1.5, "eval/success_rate": 0.5}
    assert rollout_metrics(means) == {
        "rollout/info/a": 1.5,
        "rollout/success_rate": 0.5,
        "rollout/is_success": 0.5,
    }
