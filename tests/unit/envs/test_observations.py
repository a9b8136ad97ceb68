"""Dict, Tuple and discrete observations: flattened as Gymnasium does it, in training and in deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

import fakes
import spreeze
from spreeze.envs.group import EnvGroup
from spreeze.envs.inspect import inspect_env
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.observations import parts_of
from spreeze.envs.stepping import make_stepper
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.errors import UsageError
from spreeze.policy import Policy, PolicyForm
from spreeze.policy.load import load_policy
from spreeze.rows import RowFormat, row_layout
from spreeze.spec import EnvSpec, flatten_obs
from spreeze.store.checkpoint import save_best

SPACES = {
    "unsorted keys": Dict({"velocity": Box(-1, 1, (2,)), "angle": Box(-9, 9, (3,), np.float64)}),
    "nested": Dict(
        {
            "robot": Dict({"joints": Box(-1, 1, (2, 3)), "height": Box(0, 1, (), np.float64)}),
            "goal": Tuple((Box(-1, 1, (1,)), Discrete(3))),
        }
    ),
    "choices": Dict(
        {
            "gear": Discrete(4, start=-1),
            "lights": MultiBinary((2, 2)),
            "cards": MultiDiscrete([2, 3]),
            "table": MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, 3]]),
            "count": Box(0, 9, (2,), np.int64),
            "nothing": Box(-1, 1, (0,)),
        }
    ),
    "tuple": Tuple((Box(-1, 1, (2,)), Dict({"b": Box(-1, 1, (1,)), "a": Discrete(2)}))),
    "choice": Discrete(4, start=2),
    "several": MultiDiscrete([2, 3], start=[1, 0]),
    "switches": MultiBinary(5),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


@each_space
def test_the_flat_order_is_that_of_gymnasium(space: Any) -> None:
    space.seed(0)
    parts = parts_of(space)
    for _ in range(20):
        obs = space.sample()
        np.testing.assert_array_equal(
            flatten_obs(parts, obs), np.asarray(flatten(space, obs), np.float32)
        )


@each_space
def test_a_batch_is_flattened_like_its_members(space: Any) -> None:
    batched = batch_space(space, 5)
    batched.seed(0)
    batch = batched.sample()
    flat = flatten_obs(parts_of(space), batch)
    singles = list(gym.vector.utils.iterate(batched, batch))
    expected = [np.asarray(flatten(space, single), np.float32) for single in singles]
    np.testing.assert_array_equal(flat, expected)


@each_space
def test_a_policy_takes_the_observation_as_the_environment_returns_it(
    space: Any, tmp_path: Path
) -> None:
    spec = inspect_env(lambda: fakes.SpaceEnv(obs=space), "Parts-v0")
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    policy = Policy(spec, PolicyForm(hidden=(8,)))
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size)
    data = {"config": {"policy": policy.describe()}}
    assert save_best(tmp_path, 1, {"policy": policy.named()}, data)
    loaded = load_policy(tmp_path / "best")
    space.seed(1)
    obs = space.sample()
    raw, _ = loaded.predict(obs, deterministic=True)
    flat, _ = loaded.predict(flatten_obs(spec.obs_parts, obs), deterministic=True)
    assert raw.shape == (1,)
    np.testing.assert_array_equal(raw, flat)
    batch, _ = loaded.predict(batch_space(space, 4).sample(), deterministic=True)
    assert batch.shape == (4, 1)


def test_an_observation_that_does_not_fit_is_refused_by_name() -> None:
    space = Dict({"arm": Box(-1, 1, (2,)), "gear": Discrete(3)})
    policy = Policy(
        inspect_env(lambda: fakes.SpaceEnv(obs=space), "Arm-v0"), PolicyForm(hidden=(4,))
    )
    with pytest.raises(ValueError, match="Arm-v0 has no key 'gear'"):
        policy.predict({"arm": np.zeros(2)})
    with pytest.raises(ValueError, match=r"arm has shape \(3,\)"):
        policy.predict({"arm": np.zeros(3), "gear": 0})
    with pytest.raises(ValueError, match="gear is 3, which is not a value of its discrete space"):
        policy.predict({"arm": np.zeros(2), "gear": 3})


def test_a_checkpoint_without_obs_parts_still_loads() -> None:
    spec = EnvSpec(
        id="x", obs_shape=(2,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,)
    )
    old = spec.to_json()
    del old["obs_parts"]
    assert EnvSpec.from_json(old) == spec


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Dict({"camera": Box(0, 1, (64, 64, 3))}), "'camera', of shape .* looks like an image"),
        (Dict({"a": Dict({"words": gym.spaces.Text(5)})}), r"a\.words is Text"),
        (Dict({"none": Box(-1, 1, (0,))}), "empty"),
    ],
)
def test_members_that_cannot_be_flattened_are_refused_by_name(space: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspect_env(lambda: fakes.SpaceEnv(obs=space), "MyEnv")


class PartsEnv(fakes.CountEnv):
    """CountEnv with a nested Dict observation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        number = Box(-np.inf, np.inf, (), np.float64)
        inner = Dict({"step": number, "action": number})
        self.observation_space = Dict({"now": inner, "episode": number})  # type: ignore[assignment]

    @staticmethod
    def apart(obs: Any) -> Any:
        return {"now": {"step": obs[1], "action": obs[2]}, "episode": obs[0]}

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self.apart(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self.apart(obs), *rest


@pytest.mark.parametrize("mode", ["plain", *AutoresetMode])
def test_rows_are_true_for_nested_observations_in_every_autoreset_mode(mode: Any) -> None:
    spec = inspect_env(PartsEnv, "PartsEnv")
    assert [part.path for part in spec.obs_parts] == [
        ("episode",),
        ("now", "action"),
        ("now", "step"),
    ]
    makers = [lambda: PartsEnv(3), lambda: PartsEnv(4, False)]
    stepper: Any
    if mode == "plain":
        stepper = make_stepper(PartsEnv, 2)
        assert isinstance(stepper, LoopStepper)
    else:
        vector = SyncVectorEnv(makers, autoreset_mode=mode)
        stepper = VectorStepper(vector, lambda: vector)
    group = EnvGroup(stepper, spec, RowFormat(gamma=0.9))
    rows = np.zeros(2, row_layout(spec).dtype)
    group.reset(0)
    seen = 0
    for t in range(20):
        actions = np.full((2, 1), t / 20, np.float32)
        kept = group.step(actions, actions, 0, rows)
        seen += kept
        for row in rows[:kept]:
            episode, _, step = row["obs"]
            assert row["next_obs"].tolist() == pytest.approx([episode, t / 20, step + 1])
            assert row["reward"] == 100 * episode + step + 1
    group.close()
    assert seen > 25


def test_a_run_on_a_dict_environment_trains_a_policy_for_it(runs: str) -> None:
    knobs = {"algo.hidden": (8, 8), "learner.batch_size": 16, "replay.capacity": 1000}
    run = spreeze.train(PartsEnv, runs=runs, serial=True, steps="2000", **knobs)
    policy = spreeze.load(run.path)
    action, _ = policy.predict(PartsEnv.apart([1.0, 2.0, 0.5]), deterministic=True)
    assert policy.spec.action_low[0] <= action[0] <= policy.spec.action_high[0]
