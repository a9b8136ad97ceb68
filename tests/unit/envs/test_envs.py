"""Environments become finished transitions: each stored row against the true one."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

import fakes
import spreeze
from spreeze.envs.inspect import inspect_env
from spreeze.envs.stepping import (
    LoopStepper,
    Outcome,
    VectorStepper,
    make_stepper,
    play_episodes,
)
from spreeze.envs.targets import make_env, picklable_target
from spreeze.envs.transitions import EnvGroup
from spreeze.errors import UsageError
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import RowFormat, row_layout
from spreeze.spec import EnvSpec

GAMMA = 0.9
NUM_ENVS, LENGTHS = 3, (4, 5, 7)
MODES = ["plain", "wrapped", *AutoresetMode]


def count_envs(terminate: bool) -> list[partial[fakes.CountEnv]]:
    return [
        partial(fakes.CountEnv, length, terminate, first_episode=1000 * i)
        for i, length in enumerate(LENGTHS)
    ]


def make_group(mode: Any, terminate: bool, n_step: int, **form: Any) -> tuple[EnvGroup, EnvSpec]:
    makers = count_envs(terminate)
    if mode == "plain":
        stepper: Any = LoopStepper([make() for make in makers])
    elif mode == "wrapped":
        stepper = LoopStepper([Autoreset(make()) for make in makers])
    else:
        stepper = VectorStepper(SyncVectorEnv(makers, autoreset_mode=mode))
    spec = inspect_env(makers[0], "CountEnv")
    return EnvGroup(stepper, spec, RowFormat(gamma=GAMMA, n_step=n_step, **form)), spec


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_true_in_every_autoreset_mode(mode: Any, terminate: bool, n_step: int) -> None:
    group, spec = make_group(mode, terminate, n_step)
    policy = Policy(spec, PolicyForm(hidden=(4,)))
    policy.seed(0)
    rows = np.zeros(NUM_ENVS, row_layout(spec).dtype)
    group.reset(seed=0)
    acted: dict[tuple[int, int], float] = {}  # (episode, step) -> action in [-1, 1]
    seen: Counter[tuple[int, int]] = Counter()
    num_steps = 60
    for _ in range(num_steps):
        actions = policy.act_randomly(NUM_ENVS)
        for obs, action in zip(group.obs, actions, strict=True):
            acted[int(obs[0]), int(obs[1])] = float(action[0])
        for row in rows[: group.step(actions, policy.to_env_action(actions), 7, rows)]:
            episode, step = int(row["obs"][0]), int(row["obs"][1])
            seen[episode, step] += 1
            length = LENGTHS[episode // 1000]
            covered = min(n_step, length - step)  # the window stops at the end of the episode
            rewards = [100.0 * episode + step + k for k in range(1, covered + 1)]
            ended = step + covered == length
            assert row["reward"] == pytest.approx(sum(GAMMA**k * r for k, r in enumerate(rewards)))
            assert row["discount"] == pytest.approx(0 if ended and terminate else GAMMA**covered)
            assert row["action"] == pytest.approx(acted[episode, step])
            last_action = policy.to_env_action(
                np.array([acted[episode, step + covered - 1]], np.float32)
            )
            assert row["next_obs"] == pytest.approx([episode, step + covered, last_action[0]])
            assert row["version"] == 7
    group.close()
    assert set(seen.values()) == {1}, "no step is stored twice"
    for i, length in enumerate(LENGTHS):
        # Without a gap: every step of every finished episode is there.
        episodes = sorted({episode for episode, _ in seen if episode // 1000 == i})
        assert episodes == list(range(episodes[0], episodes[0] + len(episodes)))
        assert len(episodes) >= num_steps // (length + 1) - 1
        for episode in episodes[:-1]:
            assert [step for e, step in sorted(seen) if e == episode] == list(range(length))


@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_segments_hold_every_step_once_and_say_where_episodes_end(
    mode: Any, terminate: bool
) -> None:
    form = RowFormat(gamma=GAMMA, segment=3, past_return=True)
    group, spec = make_group(mode, terminate, 1, segment=3, past_return=True)
    rows = np.zeros(NUM_ENVS, row_layout(spec, form).dtype)
    group.reset(seed=0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    steps: dict[int, list[dict[str, Any]]] = {i: [] for i in range(NUM_ENVS)}
    for t in range(60):
        log_prob = np.full(NUM_ENVS, -0.1 * t, np.float32)
        for row in rows[: group.step(actions, actions, t, rows, log_prob)].copy():
            obs, after = row["obs"].reshape(3, 3), row["next_obs"].reshape(3, 3)
            assert row["version"] == pytest.approx(-10 * row["log_prob"][0]), (
                "that of the first step"
            )
            for k in range(3):
                step = {
                    name: row[name][k] for name in ("reward", "discount", "ended", "past_return")
                }
                steps[int(obs[k, 0]) // 1000].append(step | {"obs": obs[k], "next_obs": after[k]})
    group.close()
    for i, length in enumerate(LENGTHS):
        assert len(steps[i]) >= 45
        for n, step in enumerate(steps[i]):  # without gaps, so the place says what it must be
            episode, at = int(steps[i][0]["obs"][0]) + n // length, n % length
            assert list(step["obs"][:2]) == [episode, at]
            assert list(step["next_obs"][:2]) == [episode, at + 1]
            assert step["reward"] == 100.0 * episode + at + 1
            assert step["ended"] == (at + 1 == length)
            assert step["discount"] == pytest.approx(0 if step["ended"] and terminate else GAMMA)
            past = [100.0 * episode + k + 1 for k in range(at + 1)]
            total = sum(GAMMA ** (at - k) * r for k, r in enumerate(past))
            assert step["past_return"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_return_so_far_is_that_of_the_first_step(n_step: int) -> None:
    form = RowFormat(gamma=GAMMA, n_step=n_step, past_return=True)
    group, spec = make_group("plain", True, n_step, past_return=True)
    rows = np.zeros(NUM_ENVS, row_layout(spec, form).dtype)
    group.reset(seed=0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    for _ in range(30):
        for row in rows[: group.step(actions, actions, 0, rows)]:
            episode, at = int(row["obs"][0]), int(row["obs"][1])
            total = sum(GAMMA ** (at - k) * (100.0 * episode + k + 1) for k in range(at + 1))
            assert row["past_return"] == pytest.approx(total, rel=1e-5)
    group.close()


@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("form", [{"n_step": 1}, {"n_step": 3}, {"n_step": 1, "segment": 3}])
@pytest.mark.parametrize("mode", MODES)
def test_rows_pay_for_a_termination_and_episodes_do_not(
    mode: Any, form: dict[str, int], terminate: bool
) -> None:
    def played(cost: float) -> tuple[dict[str, Any], list[tuple[float, int]]]:
        made: dict[str, Any] = {**form, "past_return": True, "termination_cost": cost}
        group, spec = make_group(mode, terminate, **made)
        rows = np.zeros(NUM_ENVS, row_layout(spec, RowFormat(**made)).dtype)
        actions, log_prob = np.zeros((NUM_ENVS, 1), np.float32), np.zeros(NUM_ENVS, np.float32)
        group.reset(seed=0)
        names = ("obs", "reward", "discount", "past_return")
        stored: dict[str, list[Any]] = {name: [] for name in names}
        for _ in range(40):
            num = group.step(actions, actions, 0, rows, log_prob)
            for name in names:
                stored[name].append(rows[name][:num].ravel().copy())
        group.close()
        return {name: np.concatenate(stored[name]) for name in names}, group.finished

    free, paid = played(0.0), played(50.0)
    assert paid[1] == free[1] != [], "returns are the environment's own"
    step = free[0]["obs"].reshape(-1, 3)[:, 1]
    length = np.array(LENGTHS)[free[0]["obs"].reshape(-1, 3)[:, 0].astype(int) // 1000]
    to_the_end = length - step - 1
    within = terminate & (to_the_end < form["n_step"])
    assert within.any() == terminate
    lost = np.where(within, 50.0 * GAMMA**to_the_end, 0)
    assert free[0]["reward"] - paid[0]["reward"] == pytest.approx(lost, abs=0.02)
    last = terminate & (to_the_end == 0)
    past = free[0]["past_return"] - paid[0]["past_return"]
    assert past == pytest.approx(np.where(last, 50.0, 0), abs=0.02)
    assert (paid[0]["discount"] == free[0]["discount"]).all()


def test_a_segment_does_not_reach_over_a_step_that_is_not_finite() -> None:
    spec = inspect_env(partial(fakes.FaultEnv, "nan", at=50), "FaultEnv")
    form = RowFormat(gamma=GAMMA, segment=4)
    group = EnvGroup(LoopStepper([fakes.FaultEnv("nan", at=7)]), spec, form)
    rows = np.zeros(1, row_layout(spec, form).dtype)
    group.reset(seed=0)
    actions, log_prob = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    stored = []
    for _ in range(13):
        stored += [rows[0].copy() for _ in range(group.step(actions, actions, 0, rows, log_prob))]
    group.close()
    second = stored[1]
    assert [int(o) for o in second["obs"].reshape(4, 3)[:, 0]] == [1, 1, 2, 2]
    assert list(second["ended"]) == [0, 1, 0, 0], "cut before the broken step"
    assert second["discount"] == pytest.approx([GAMMA] * 4), "but not terminated"
    assert np.isfinite(second["next_obs"]).all()


@pytest.mark.parametrize("vector", [False, True])
def test_choices_reach_the_environment_as_it_counts_them(vector: bool) -> None:
    taken: list[int] = []

    class Choosing(fakes.SpaceEnv):
        def __init__(self) -> None:
            super().__init__(action=Discrete(3, start=5))

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            taken.append(int(action))
            return super().step(action)

    spec = inspect_env(Choosing, "Choosing")
    taken.clear()
    assert (spec.num_actions, spec.first_action, spec.action_size) == (3, 5, 1)
    stepper: Any = (
        VectorStepper(SyncVectorEnv([Choosing] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
        if vector
        else make_stepper(Choosing, 2)
    )
    group = EnvGroup(stepper, spec)
    policy = Policy(spec, PolicyForm(hidden=(4,), head="values"))
    group.reset(seed=0)
    rows = np.zeros(2, row_layout(spec).dtype)
    stored = []
    for _ in range(20):
        actions = policy.act_randomly(2)
        group.step(actions, policy.to_env_action(actions), 0, rows)
        stored += rows["action"].tolist()
    group.close()
    assert [5 + index for index in stored] == taken
    assert set(taken) == {5, 6, 7}


def test_returns_and_lengths_of_finished_episodes() -> None:
    group, spec = make_group("plain", True, 1)
    rows = np.zeros(NUM_ENVS, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    for _ in range(4):
        group.step(actions, actions, 0, rows)
    first = 1  # the episode of the only environment that has ended by now
    assert group.finished == [(sum(100.0 * first + k for k in (1, 2, 3, 4)), 4)]
    group.close()


def test_a_step_that_is_not_finite_is_dropped_and_its_episode_cut() -> None:
    spec = inspect_env(partial(fakes.FaultEnv, "nan", at=50), "FaultEnv")
    group = EnvGroup(
        LoopStepper([fakes.FaultEnv("nan", at=8)]), spec, RowFormat(gamma=GAMMA, n_step=3)
    )
    rows = np.zeros(1, row_layout(spec).dtype)
    group.reset(seed=0)
    stored = []
    actions = np.zeros((1, 1), np.float32)
    for _ in range(30):
        stored += [rows[0].copy() for _ in range(group.step(actions, actions, 0, rows))]
    group.close()
    assert group.num_rejected == 1
    assert all(
        np.isfinite(np.hstack([row["obs"], row["reward"], row["next_obs"]])).all() for row in stored
    )
    broken = [row for row in stored if row["obs"][0] == 1]
    assert [int(row["obs"][1]) for row in broken] == list(range(7)), "steps before it are kept"
    # The last one covers a single step: it must not reach over the gap.
    assert broken[-1]["discount"] == pytest.approx(GAMMA)
    assert broken[-1]["next_obs"][1] == 7


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_observations_of_any_number_type_are_taken(dtype: Any) -> None:
    space = Box(0, 100, (2, 3), dtype)
    spec = inspect_env(partial(fakes.SpaceEnv, obs=space), "SpaceEnv")
    assert spec.obs_shape == (2, 3)
    stepper = make_stepper(partial(fakes.SpaceEnv, obs=space), 2)
    group = EnvGroup(stepper, spec, RowFormat(gamma=GAMMA))
    group.reset(seed=0)
    rows = np.zeros(2, row_layout(spec).dtype)
    actions = np.zeros((2, 1), np.float32)
    assert group.step(actions, actions, 0, rows) == 2
    assert rows["next_obs"].shape == (2, 6)


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"obs": gym.spaces.Text(3)}, "what can be trained on is Box, Discrete"),
        ({"obs": Box(0, 255, (8, 8, 3), np.uint8)}, "images"),
        ({"obs": Box(-1, 1, (0,))}, "empty"),
        ({"action": MultiBinary(3)}, "only Box and Discrete actions"),
        ({"action": Box(-np.inf, np.inf, (2,))}, "without bounds on both sides"),
        ({"action": Box(0, np.inf, (2,))}, "without bounds on both sides"),
        ({"action": Box(0, 3, (2,), np.int64)}, "not continuous"),
        ({"action": Box(1, 1, (2,))}, "low must be below high"),
    ],
)
def test_spaces_that_cannot_be_trained_on_are_refused_by_name(spaces: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        inspect_env(partial(fakes.SpaceEnv, **spaces), "MyEnv")
    assert "MyEnv" in str(caught.value)


class LyingEnv(fakes.ReachEnv):
    """Promises finite observations of shape (1,) and gives what it was told to."""

    def __init__(self, obs: Any) -> None:
        super().__init__()
        self.lie = np.array(obs)

    def reset(self, **_: Any) -> Any:
        return self.lie, {}


@pytest.mark.parametrize(
    ("obs", "message"), [([np.nan], "nan as observation 0"), ([1.0, 2.0], r"shape \(2,\)")]
)
@pytest.mark.filterwarnings("ignore")  # Gymnasium's own checker warns of the same
def test_observations_that_break_their_promise_are_refused(obs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspect_env(partial(LyingEnv, obs), "LyingEnv")


def test_actions_are_scaled_to_the_real_bounds() -> None:
    spec = inspect_env(fakes.CountEnv, "CountEnv")
    policy = Policy(spec, PolicyForm(hidden=(4,)))
    scaled = policy.to_env_action(np.array([[-1.0], [0.0], [1.0]], np.float32))
    assert scaled.ravel().tolist() == [-2.0, 2.0, 6.0]


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


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: Any, **__: Any) -> Any:
        raise gym.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`")

    monkeypatch.setattr(gym, "make", make)
    with pytest.raises(UsageError, match=r'pip install "spreeze\[mujoco\]"'):
        inspect_env("Ant-v5", "Ant-v5")


def test_an_id_registered_by_the_user_reaches_other_processes() -> None:
    gym.register("Mine-v0", entry_point=fakes.ReachEnv)
    try:
        maker = picklable_target("Mine-v0")
    finally:
        del gym.registry["Mine-v0"]
    assert callable(maker)
    assert inspect_env(maker, "Mine-v0").obs_shape == (1,)
    assert picklable_target("Pendulum-v1") == "Pendulum-v1"


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_plays_whole_episodes_once_each(mode: Any) -> None:
    group, spec = make_group(mode, True, 1)
    stepper = group._stepper
    player = play_episodes(
        stepper, spec, lambda obs: np.zeros((NUM_ENVS, 1), np.float32), 5, seed=0
    )
    try:
        while True:
            next(player)
    except StopIteration as end:
        results = end.value
    stepper.close()
    assert [length for _, length in results] == [*LENGTHS, *LENGTHS[:2]]
    for (total, length), i in zip(results, (0, 1, 2, 0, 1), strict=True):
        episode = round((total / length - (length + 1) / 2) / 100)
        assert episode // 1000 == i
        assert total == 100 * episode * length + length * (length + 1) / 2


def played(stepper: Any, spec: Any, num: int) -> list[tuple[float, int]]:
    still = np.zeros((stepper.num_envs, 1), np.float32)
    player = play_episodes(stepper, spec, lambda _: still, num, seed=0)
    try:
        while True:
            next(player)
    except StopIteration as end:
        stepper.close()
        return list(end.value)


def test_an_episode_that_is_not_finite_has_no_return() -> None:
    spec = inspect_env(fakes.CountEnv, "CountEnv")
    sound, broken = played(LoopStepper([fakes.CountEnv(), fakes.FaultEnv("nan", at=3)]), spec, 2)
    assert np.isfinite(sound[0])
    assert np.isnan(broken[0])
    assert broken[1] == 2, "the steps before it"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_what_comes_after_an_observation_that_is_not_finite_is_no_transition(
    mode: Any, bad: float
) -> None:
    class Glitch(gym.vector.SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, *rest = super().step(actions)
            self.num_steps = getattr(self, "num_steps", 0) + 1
            if self.num_steps == 3:
                obs = obs.copy()
                obs[1] = bad
            return obs, *rest

    env = Glitch([lambda: fakes.CountEnv(length=50)] * 2, autoreset_mode=mode)
    spec = inspect_env(lambda: fakes.CountEnv(length=50), "CountEnv")
    group = EnvGroup(VectorStepper(env), spec)
    rows = np.zeros(2, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((2, 1), np.float32)
    kept = []
    for _ in range(6):
        num = group.step(actions, actions, 0, rows)
        kept.append(num)
        steps = rows["next_obs"][:num, 1] - rows["obs"][:num, 1]
        assert (steps == 1).all(), "each leads from a step to the next one"
    group.close()
    assert kept == [2, 2, 1, 1, 2, 2]
    assert group.num_rejected == 1


def test_a_time_limit_of_the_users_own_is_not_stepped_past() -> None:
    class Paying(gym.wrappers.TimeLimit):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, 100.0 if truncated else float(reward), terminated, truncated, info

    spec = inspect_env(fakes.CountEnv, "CountEnv")
    (total, length), *_ = played(LoopStepper([Paying(fakes.CountEnv(length=50), 3)]), spec, 1)
    assert length == 3
    assert total > 100


@pytest.mark.parametrize("wrapped", [False, True])
def test_stepping_past_the_standard_wrappers_changes_nothing(wrapped: bool) -> None:
    """Time limits hold, and what a user put around the environment is stepped through."""

    def make() -> gym.Env[Any, Any]:
        env: Any = gym.make("Pendulum-v1", disable_env_checker=True)
        return gym.wrappers.TransformReward(env, lambda r: r + 100) if wrapped else env

    stepper, plain = LoopStepper([make()]), make()
    past_wrappers = stepper._steps[0].__self__ is stepper.envs[0].unwrapped
    assert past_wrappers is not wrapped
    out = Outcome(1, 3)
    stepper.reset_into(3, out)
    expected, _ = plain.reset(seed=3)
    rng = np.random.default_rng(0)
    for i in range(450):
        np.testing.assert_array_equal(out.obs[0], expected)
        action = rng.uniform(-2, 2, (1, 1)).astype(np.float32)
        stepper.step(action, out)
        expected, reward, terminated, truncated, _ = plain.step(action[0])
        np.testing.assert_array_equal(out.next_obs[0], expected)
        assert out.reward[0] == np.float32(reward)
        assert (out.terminated[0], out.truncated[0]) == (terminated, truncated)
        assert truncated == (i % 200 == 199)
        assert out.any_done_or_invalid == truncated
        if truncated:
            expected, _ = plain.reset()


def test_an_episode_cut_for_bad_numbers_begins_its_time_limit_anew() -> None:
    env = gym.wrappers.TimeLimit(fakes.FaultEnv("nan", at=3), 5)
    stepper, out = LoopStepper([env]), Outcome(1, 3)
    stepper.reset_into(0, out)
    cut = []
    for _ in range(12):
        stepper.step(np.zeros((1, 1), np.float32), out)
        cut.append((bool(out.valid[0]), bool(out.truncated[0])))
    first = cut.index((False, False))
    after = [truncated for _, truncated in cut[first + 1 :]]
    assert after.index(True) == 4, cut


@pytest.mark.parametrize("made", [True, False])
def test_what_is_no_recipe_for_an_environment_is_refused(made: bool, tmp_path: Path) -> None:
    what: Any = fakes.CountEnv() if made else 123
    with pytest.raises(UsageError, match="made already" if made else "123 is no env"):
        spreeze.train(what, runs=str(tmp_path))
    assert not list(tmp_path.iterdir())
