"""The user's wrappers: rows store what the outermost one returns, and actions have its bounds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import (
    ClipAction,
    DelayObservation,
    FrameStackObservation,
    NormalizeObservation,
    RescaleAction,
    TimeLimit,
    TransformObservation,
)
from numpy.typing import NDArray

import fakes
from spreeze.envs.group import make_group
from spreeze.envs.inspect import inspect_env
from spreeze.envs.targets import EnvTarget
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import RowFormat, row_layout
from spreeze.spec import EnvSpec


def sample(target: EnvTarget, num_steps: int) -> tuple[NDArray[np.void], EnvSpec]:
    """Rows of one environment that always gets its largest action."""
    spec = inspect_env(target, "wrapped")
    group = make_group(target, spec, 1, RowFormat(gamma=0.9))
    policy = Policy(spec, PolicyForm(hidden=(4,)))
    rows = np.zeros((num_steps, 1), row_layout(spec).dtype)
    group.reset(0)
    actions = np.ones((1, spec.action_size), np.float32)
    for t in range(num_steps):
        assert group.step(actions, policy.to_env_action(actions), 0, rows[t]) == 1
    group.close()
    return rows[:, 0], spec


def doubled(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    space = Box(-np.inf, np.inf, (3,), np.float64)
    return TransformObservation(env, lambda obs: 2 * obs, space)


def test_the_transformed_observation_is_stored() -> None:
    rows, _ = sample(lambda: doubled(fakes.CountEnv()), 4)
    assert rows["obs"].tolist() == [[2, 0, 0], [2, 2, 12], [2, 4, 12], [2, 6, 12]]
    assert rows["next_obs"][:3].tolist() == rows["obs"][1:].tolist()


@pytest.mark.parametrize(
    ("wrap", "bounds", "reaches"),
    [
        (lambda env: env, (-2, 6), 6),
        (lambda env: RescaleAction(env, np.float32(-1), np.float32(1)), (-1, 1), 6),
        (lambda env: RescaleAction(env, np.float32(0), np.float32(10)), (0, 10), 6),
        (ClipAction, (-2, 6), 6),
        (lambda env: TimeLimit(ClipAction(env), 9), (-2, 6), 6),
        (lambda env: ClipAction(RescaleAction(env, np.float32(-3), np.float32(3))), (-3, 3), 6),
    ],
)
def test_actions_have_the_bounds_of_the_outermost_wrapper(
    wrap: Any, bounds: tuple[float, float], reaches: float
) -> None:
    rows, spec = sample(lambda: wrap(fakes.CountEnv()), 2)
    assert (spec.action_low, spec.action_high) == ((bounds[0],), (bounds[1],))
    assert rows["action"].tolist() == [1, 1], "stored actions are in [-1, 1] for any bounds"
    assert rows["next_obs"][0][2] == reaches, "the environment gets its own largest action"


def test_a_vector_environment_that_clips_actions_has_the_bounds_it_clips_to() -> None:
    def make() -> Any:
        return gym.wrappers.vector.ClipAction(gym.make_vec("Pendulum-v1", num_envs=2))

    assert inspect_env(make, "clipped").action_high == (2,)


def test_a_time_limit_truncates() -> None:
    rows, _ = sample(lambda: TimeLimit(fakes.CountEnv(length=5), 3), 6)
    assert rows["obs"][:, 1].tolist() == [0, 1, 2, 0, 1, 2]
    assert rows["discount"].tolist() == pytest.approx([0.9] * 6)
    assert rows["next_obs"][2].tolist() == [1, 3, 6], "the true last observation"


def test_stacked_frames_are_a_matrix() -> None:
    rows, spec = sample(lambda: FrameStackObservation(fakes.CountEnv(), 2), 3)
    assert spec.obs_shape == (2, 3)
    assert rows["obs"][2].tolist() == [1, 1, 6, 1, 2, 6]
    assert rows["next_obs"][2].tolist() == [1, 2, 6, 1, 3, 6]


def test_normalised_observations_are_stored_as_the_policy_sees_them() -> None:
    rows, _ = sample(lambda: NormalizeObservation(gym.make("Pendulum-v1")), 50)
    np.testing.assert_array_equal(rows["obs"][1:], rows["next_obs"][:-1])
    assert np.abs(rows["obs"]).max() < 10


def test_nested_wrappers() -> None:
    def make() -> gym.Env[Any, Any]:
        delayed = DelayObservation(doubled(fakes.CountEnv(length=4)), 1)
        return RescaleAction(delayed, np.float32(-1), np.float32(1))

    rows, spec = sample(make, 8)
    assert spec.action_low == (-1,)
    assert rows["next_obs"][2].tolist() == [2, 4, 12]
    assert rows["discount"][3] == 0


def test_wrapped_environments_from_a_function_in_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "__init__.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Registered-v0', entry_point='robots.arm:make_env', max_episode_steps=7)\n"
    )
    (tmp_path / "robots" / "arm.py").write_text(
        "import fakes, numpy as np\n"
        "from gymnasium.wrappers import RescaleAction\n"
        "def make_env(): return RescaleAction(fakes.CountEnv(9), np.float32(-1), np.float32(1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        rows, spec = sample("robots.arm:make_env", 3)
        assert spec.action_high == (1,)
        assert rows["next_obs"][:, 2].tolist() == [6, 6, 6]
        rows, spec = sample("robots:Registered-v0", 8)
        assert spec.max_episode_steps == 7
        assert rows["obs"][:, 1].tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    finally:
        gym.registry.pop("Registered-v0", None)
        for name in ("robots", "robots.arm"):
            sys.modules.pop(name, None)
