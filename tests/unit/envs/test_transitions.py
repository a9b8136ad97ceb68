"""Steps become finished rows: every stored row is compared with the true one."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import fakes
from counting import GAMMA, LENGTHS, MODES, NUM_ENVS, count_group
from spreeze.envs.group import EnvGroup
from spreeze.envs.inspect import inspect_env
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import RowFormat, row_layout


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.fault("F37")
def test_every_row_is_true_in_every_autoreset_mode(mode: Any, terminate: bool, n_step: int) -> None:
    group, spec = count_group(mode, terminate, n_step=n_step)
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
        # No gaps: every step of every finished episode is stored.
        episodes = sorted({episode for episode, _ in seen if episode // 1000 == i})
        assert episodes == list(range(episodes[0], episodes[0] + len(episodes)))
        assert len(episodes) >= num_steps // (length + 1) - 1
        for episode in episodes[:-1]:
            assert [step for e, step in sorted(seen) if e == episode] == list(range(length))


@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.fault("F37")
def test_segments_hold_every_step_once_and_mark_the_ends_of_episodes(
    mode: Any, terminate: bool
) -> None:
    form = {"segment": 3, "past_return": True}
    group, spec = count_group(mode, terminate, **form)
    rows = np.zeros(NUM_ENVS, row_layout(spec, RowFormat(**form)).dtype)  # type: ignore[arg-type]
    group.reset(seed=0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    steps: dict[int, list[dict[str, Any]]] = {i: [] for i in range(NUM_ENVS)}
    for t in range(60):
        log_prob = np.full(NUM_ENVS, -0.1 * t, np.float32)
        for row in rows[: group.step(actions, actions, t, rows, log_prob)].copy():
            obs, after = row["obs"].reshape(3, 3), row["next_obs"].reshape(3, 3)
            first_version = -10 * row["log_prob"][0]
            assert row["version"] == pytest.approx(first_version), "the version of the first step"
            for k in range(3):
                step = {
                    name: row[name][k] for name in ("reward", "discount", "ended", "past_return")
                }
                steps[int(obs[k, 0]) // 1000].append(step | {"obs": obs[k], "next_obs": after[k]})
    group.close()
    for i, length in enumerate(LENGTHS):
        assert len(steps[i]) >= 45
        for n, step in enumerate(steps[i]):  # there are no gaps, so the position tells the content
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
def test_past_return_belongs_to_the_first_step_of_a_row(n_step: int) -> None:
    form = RowFormat(gamma=GAMMA, n_step=n_step, past_return=True)
    group, spec = count_group("plain", True, n_step=n_step, past_return=True)
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
def test_rows_pay_the_termination_cost_and_episode_returns_do_not(
    mode: Any, form: dict[str, int], terminate: bool
) -> None:
    def play(cost: float) -> tuple[dict[str, Any], list[tuple[float, int]]]:
        made: dict[str, Any] = {**form, "past_return": True, "termination_cost": cost}
        group, spec = count_group(mode, terminate, **made)
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

    free, paid = play(0.0), play(50.0)
    assert paid[1] == free[1] != [], "episode returns are the environment's own"
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


@pytest.mark.fault("F37")
@pytest.mark.fault("F43")
def test_a_segment_does_not_span_a_step_that_is_not_finite() -> None:
    spec = inspect_env(partial(fakes.FaultEnv, "nan", at=50), "FaultEnv")
    form = RowFormat(gamma=GAMMA, segment=4)
    group = EnvGroup(LoopStepper([fakes.FaultEnv("nan", at=7)], fakes.CountEnv), spec, form)
    rows = np.zeros(1, row_layout(spec, form).dtype)
    group.reset(seed=0)
    actions, log_prob = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    stored = []
    for _ in range(13):
        stored += [rows[0].copy() for _ in range(group.step(actions, actions, 0, rows, log_prob))]
    group.close()
    second = stored[1]
    assert [int(o) for o in second["obs"].reshape(4, 3)[:, 0]] == [1, 1, 2, 2]
    assert list(second["ended"]) == [0, 1, 0, 0], "the episode ends before the broken step"
    assert second["discount"] == pytest.approx([GAMMA] * 4), "but is not terminated"
    assert np.isfinite(second["next_obs"]).all()


@pytest.mark.fault("F40")
@pytest.mark.parametrize("form", [{}, {"n_step": 3}, {"segment": 4}])
def test_a_version_may_need_more_than_the_bits_of_its_field(form: dict[str, int]) -> None:
    group, spec = count_group("plain", terminate=True, **form)
    rows = np.zeros(NUM_ENVS, row_layout(spec, RowFormat(gamma=GAMMA, **form)).dtype)
    group.reset(0)
    actions = np.zeros((NUM_ENVS, 1), np.float32)
    for _ in range(4):
        num = group.step(actions, actions, 2**32 + 7, rows, np.zeros(NUM_ENVS, np.float32))
    assert rows["version"][:num].tolist() == [7] * NUM_ENVS
    group.close()


@pytest.mark.fault("F43")
def test_a_step_that_is_not_finite_is_dropped_and_its_episode_cut() -> None:
    spec = inspect_env(partial(fakes.FaultEnv, "nan", at=50), "FaultEnv")
    group = EnvGroup(
        LoopStepper([fakes.FaultEnv("nan", at=8)], fakes.CountEnv),
        spec,
        RowFormat(gamma=GAMMA, n_step=3),
    )
    rows = np.zeros(1, row_layout(spec).dtype)
    group.reset(seed=0)
    stored = []
    actions = np.zeros((1, 1), np.float32)
    for _ in range(30):
        stored += [rows[0].copy() for _ in range(group.step(actions, actions, 0, rows))]
    group.close()
    assert group.guard.rejected == 1
    assert all(
        np.isfinite(np.hstack([row["obs"], row["reward"], row["next_obs"]])).all() for row in stored
    )
    broken = [row for row in stored if row["obs"][0] == 1]
    assert [int(row["obs"][1]) for row in broken] == list(range(7)), "earlier steps are kept"
    # The last row covers a single step: it must not span the gap.
    assert broken[-1]["discount"] == pytest.approx(GAMMA)
    assert broken[-1]["next_obs"][1] == 7


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_step_after_an_observation_that_is_not_finite_is_dropped_too(
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
    group = EnvGroup(VectorStepper(env, lambda: env), spec)
    rows = np.zeros(2, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((2, 1), np.float32)
    kept = []
    for _ in range(6):
        num = group.step(actions, actions, 0, rows)
        kept.append(num)
        steps = rows["next_obs"][:num, 1] - rows["obs"][:num, 1]
        assert (steps == 1).all(), "each row leads from one step to the next"
    group.close()
    assert kept == [2, 2, 1, 1, 2, 2]
    assert group.guard.rejected == 1
