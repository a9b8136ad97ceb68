"""EnvPool in a sampler: its rows are true transitions, equal to those of the same task in Gymnasium."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from spreeze.envs.atari import AtariGames, Protocol
from spreeze.envs.envpool import EnvPoolTarget, _options
from spreeze.envs.group import make_group
from spreeze.envs.inspect import evaluation_env, inspect_env
from spreeze.envs.stepping import make_stepper, play_to_end
from spreeze.errors import UsageError
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import RowFormat, row_layout
from spreeze.spec import EnvSpec

pytest.importorskip("envpool", reason='needs pip install "spreeze[envpool]"')
pytestmark = pytest.mark.filterwarnings("ignore")  # EnvPool rounds the bounds of its spaces

GAMMA, NUM_ENVS = 0.9, 3
Rows = list[NDArray[np.void]]


def sample(
    env_id: str, num_steps: int, seed: int = 0, n_step: int = 1
) -> tuple[list[Rows], list[tuple[float, int]], EnvSpec]:
    """Act at random; returns the rows of each environment in order, finished episodes, and the spec."""
    spec = inspect_env(EnvPoolTarget(env_id), env_id)
    group = make_group(EnvPoolTarget(env_id), spec, NUM_ENVS, RowFormat(gamma=GAMMA, n_step=n_step))
    policy = Policy(spec, PolicyForm(hidden=(4,)))
    policy.seed(0)
    rows = np.zeros(NUM_ENVS, row_layout(spec).dtype)
    stored: list[Rows] = [[] for _ in range(NUM_ENVS)]
    group.reset(seed)
    for _ in range(num_steps):
        actions = policy.act_randomly(NUM_ENVS)
        kept = group.step(actions, policy.to_env_action(actions), 0, rows)
        for i, row in zip(np.flatnonzero(group._outcome.valid), rows[:kept], strict=True):
            stored[i].append(row.copy())
    group.close()
    return stored, group.finished, spec


@pytest.mark.parametrize(
    ("env_id", "num_steps", "ends"),
    [
        ("Pendulum-v1", 450, "truncated"),
        ("HalfCheetah-v5", 2050, "truncated"),
        ("BipedalWalker-v3", 2000, "terminated"),
        ("LunarLanderContinuous-v3", 700, "terminated"),
    ],
)
def test_rows_are_whole_episodes_without_the_fake_steps_of_auto_reset(
    env_id: str, num_steps: int, ends: str
) -> None:
    stored, finished, spec = sample(env_id, num_steps)
    limit = gym.spec(env_id).max_episode_steps
    assert spec.max_episode_steps == limit
    episodes: list[tuple[float, int]] = []
    breaks = 0
    for rows in stored:
        begin = 0
        for t, row in enumerate(rows):
            ended = row["discount"] == 0 or t + 1 - begin == limit
            assert row["discount"] == np.float32(0 if row["discount"] == 0 else GAMMA)
            if row["discount"] == 0:
                # Only a true termination of these tasks is worth a hundred points.
                assert abs(row["reward"]) > 50
            if t + 1 < len(rows):
                follows = np.array_equal(rows[t + 1]["obs"], row["next_obs"])
                assert follows != ended, "rows are connected within an episode, and only there"
            if ended:
                total = sum(float(r["reward"]) for r in rows[begin : t + 1])
                episodes.append((total, t + 1 - begin))
                breaks += t + 1 < len(rows)
                begin = t + 1
    assert len(episodes) >= 2 * NUM_ENVS
    for (total, length), (true_total, true_length) in zip(
        sorted(episodes), sorted(episode[:2] for episode in finished), strict=True
    ):
        assert length == true_length
        assert total == pytest.approx(true_total, abs=1e-3)
    if ends == "truncated":
        assert {length for _, length in episodes} == {limit}
        assert all(row["discount"] > 0 for rows in stored for row in rows)
    else:
        assert any(row["discount"] == 0 for rows in stored for row in rows)
    # One fake step per episode that was followed by another; the last one may have just ended.
    fakes = NUM_ENVS * num_steps - sum(map(len, stored))
    assert breaks <= fakes <= len(episodes)


def cheetah_from(env: Any, obs: NDArray[Any]) -> None:
    """Set the state: the observation is the state without the position on the track."""
    env.set_state(np.concatenate([[0.0], obs[:8]]), obs[8:])


def pendulum_from(env: Any, obs: NDArray[Any]) -> None:
    env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
    env.last_u = None


def cart_from(env: Any, obs: NDArray[Any]) -> None:
    env.state = obs


@pytest.mark.parametrize(
    ("env_id", "set_state", "tolerance"),
    [
        ("HalfCheetah-v5", cheetah_from, 1e-3),
        ("Pendulum-v1", pendulum_from, 1e-5),
        ("CartPole-v1", cart_from, 1e-5),
    ],
)
def test_a_step_has_the_same_result_as_in_gymnasium(
    env_id: str, set_state: Callable[[Any, Any], None], tolerance: float
) -> None:
    stored, _, spec = sample(env_id, 100)
    head: Any = "values" if spec.discrete else "tanh_gaussian"
    policy = Policy(spec, PolicyForm(hidden=(4,), head=head))
    env = gym.make(env_id)
    for row in [row for rows in stored for row in rows]:
        env.reset()
        set_state(env.unwrapped, row["obs"].astype(np.float64))
        action = policy.to_env_action(row["action"].reshape(1, -1))[0]
        next_obs, reward, *_ = env.step(action)
        if env_id == "Pendulum-v1" and abs(next_obs[2]) == 8:
            continue  # EnvPool's pendulum does not stop accelerating at its maximum speed
        np.testing.assert_allclose(row["next_obs"], next_obs, atol=tolerance)
        assert row["reward"] == pytest.approx(float(reward), abs=tolerance)
    env.close()


def first_obs(env_id: str, seed: int) -> NDArray[Any]:
    spec = inspect_env(EnvPoolTarget(env_id), env_id)
    group = make_group(EnvPoolTarget(env_id), spec, NUM_ENVS)
    group.reset(seed)
    obs = group.obs.copy()
    group.close()
    return obs


def test_seeds_repeat_and_give_different_environments() -> None:
    once, again, other = (first_obs("HalfCheetah-v5", seed) for seed in (5, 5, 2**31 + 77))
    np.testing.assert_array_equal(once, again)
    assert len(np.unique(np.vstack([once, other]), axis=0)) == 2 * NUM_ENVS


def num_threads_of_pool(num_envs: int) -> int:
    """Threads that a pool adds to this process."""
    before = len(os.listdir("/proc/self/task"))
    env = EnvPoolTarget("HalfCheetah-v5")(num_envs)
    env.reset(seed=0)
    added = len(os.listdir("/proc/self/task")) - before
    env.close()
    return added


def test_a_pool_steps_all_its_environments_in_one_thread() -> None:
    assert num_threads_of_pool(8) == num_threads_of_pool(1)


def test_n_step_rows_do_not_span_a_reset() -> None:
    spec = inspect_env(EnvPoolTarget("Pendulum-v1"), "Pendulum-v1")
    group = make_group(
        EnvPoolTarget("Pendulum-v1"), spec, NUM_ENVS, RowFormat(gamma=GAMMA, n_step=3)
    )
    rows = np.zeros(NUM_ENVS, row_layout(spec).dtype)
    group.reset(0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    discounts: list[float] = []
    for _ in range(405):
        kept = group.step(actions, actions, 0, rows)
        discounts += rows["discount"][:kept].tolist()
    group.close()
    short = [d for d in discounts if d != pytest.approx(GAMMA**3)]
    # The last two steps of each of two episodes cover two steps and one.
    expected = sorted([GAMMA, GAMMA**2] * 2 * NUM_ENVS)
    assert sorted(short) == pytest.approx(expected)


def test_evaluation_uses_gymnasium_where_it_has_the_task() -> None:
    for env_id, there in (("HalfCheetah-v5", True), ("CheetahRun-v1", False)):
        spec = inspect_env(EnvPoolTarget(env_id), env_id)
        assert spec.vector_envs is None, "EnvPool makes as many environments as it is asked for"
        assert evaluation_env(EnvPoolTarget(env_id), spec) == (
            env_id if there else EnvPoolTarget(env_id)
        )
    assert evaluation_env("Pendulum-v1", spec) == "Pendulum-v1"


def test_a_pool_plays_whole_episodes_too() -> None:
    spec = inspect_env(EnvPoolTarget("Pendulum-v1"), "Pendulum-v1")
    stepper = make_stepper(EnvPoolTarget("Pendulum-v1"), 2)
    episodes = play_to_end(stepper, spec, lambda obs: np.zeros((2, 1), np.float32), 3, seed=0)
    stepper.close()
    assert [episode.length for episode in episodes] == [200, 200, 200]
    assert len({episode.total for episode in episodes}) == 3


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("HalfCheeta-v5", "EnvPool has no environment 'HalfCheeta-v5'. The nearest is HalfCheetah"),
        ("dm_control/cheetah-run-v0", "The nearest is CheetahRun-v1"),
        ("fakes:ReachEnv", "not your own environments"),
        (lambda: None, "not your own environments"),
    ],
)
def test_environments_that_envpool_does_not_have_are_refused_by_name(
    target: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        inspect_env(EnvPoolTarget(target), str(target))


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "ALE/SpaceInvaders-v5"])
def test_atari_games_have_the_frames_of_ale_py(env_id: str) -> None:
    pytest.importorskip("ale_py")
    import envpool

    # EnvPool begins with one step without action where ale-py begins with none or one, as the seed says.
    theirs = envpool.make(
        env_id.removeprefix("ALE/"),
        env_type="gymnasium",
        num_envs=1,
        seed=1,
        **_options(Protocol(repeat_action_probability=0.0, noop_max=1)),
    )
    ours = AtariGames(env_id, 1, repeat_action_probability=0.0, noop_max=2)
    frame = theirs.reset()[0]
    seed = next(seed for seed in range(20) if np.array_equal(ours.reset(seed=seed)[0], frame))
    ours.reset(seed=seed)
    rng = np.random.default_rng(0)
    rewards = 0.0
    for t in range(200):
        action = rng.integers(0, ours.single_action_space.n, 1)
        frame, reward, *_ = theirs.step(action.astype(np.int32))
        obs, gain, *_ = ours.step(action)
        assert np.array_equal(obs, frame), t
        assert gain[0] == reward[0]
        rewards += abs(reward[0])
    assert rewards > 0


def test_atari_games_are_trained_on_by_the_standard_protocol() -> None:
    env_id, form = "ALE/SpaceInvaders-v5", RowFormat(gamma=GAMMA)
    spec = inspect_env(EnvPoolTarget(env_id), env_id)
    assert (spec.images[0].shape, spec.max_episode_steps) == ((1, 84, 84), 27_000)
    group = make_group(EnvPoolTarget(env_id), spec, NUM_ENVS, form)
    policy = Policy(spec, PolicyForm(hidden=(4,)))
    rows = np.zeros(NUM_ENVS, row_layout(spec, form).dtype)
    rewards: list[float] = []
    group.reset(0)
    deaths = 0
    while len(group.finished) < 3:
        actions = policy.act_randomly(NUM_ENVS)
        for row in rows[: group.step(actions, policy.to_env_action(actions), 0, rows)]:
            rewards += row["reward"].tolist()
            deaths += int((row["discount"] == 0).sum())
    group.close()
    assert set(rewards) == {0, 1}
    assert deaths > len(group.finished), "each life ends a return"
    assert max(episode.total for episode in group.finished) >= 5
    assert not any(episode.info for episode in group.finished)
