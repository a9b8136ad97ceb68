"""Atari with ale-py: the frames and scores of its games, what training learns from them, and a run from start to video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import spreeze
from pages import python_blocks, run_block
from spreeze.cli.commands import play
from spreeze.envs.atari import AtariGame, AtariGames, Protocol
from spreeze.envs.group import make_group
from spreeze.envs.inspect import inspect_env
from spreeze.envs.rendering import View
from spreeze.envs.stepping import make_stepper, play_to_end
from spreeze.envs.targets import adjusted, make_env, picklable_target
from spreeze.errors import UsageError
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import RowFormat, row_layout
from spreeze.settings.auto.images import with_stack

ale_py = pytest.importorskip("ale_py", reason='needs pip install "spreeze[atari]"')

SHOOTER = "ALE/SpaceInvaders-v5"
"""Each hit is worth 5 points or more, and a game has three lives."""


def test_the_protocol_is_what_the_ids_are_registered_with() -> None:
    standard = Protocol()
    registered = dict(gym.spec("ALE/Pong-v5").kwargs)
    assert registered.pop("game") == "pong"
    frames = registered.pop("max_num_frames_per_episode")
    assert frames == standard.frameskip * standard.max_episode_steps
    assert registered == {name: getattr(standard, name) for name in registered}


def test_one_game_and_many_see_the_same_frames_and_raw_scores() -> None:
    one, many = AtariGame(SHOOTER, "rgb_array"), AtariGames(SHOOTER, 1)
    rng = np.random.default_rng(0)
    games, gains = 0, set()
    for seed in (3, None):
        first, _ = one.reset(seed=seed)
        if seed is not None:  # later the games start again by themselves
            assert np.array_equal(first, many.reset(seed=seed)[0][0])
        lost = 0
        for _ in range(5000):
            action = rng.integers(0, 6, 1)
            frame, reward, terminated, truncated, _ = one.step(action[0])
            obs, rewards, ended, cut, info = many.step(action)
            assert (reward, terminated, truncated) == (rewards[0], ended[0], cut[0])
            assert np.array_equal(frame, info["final_obs"][0] if ended[0] else obs[0])
            gains.add(reward)
            lost += int(many.rules._lost[0])
            if terminated:
                break
        assert lost == 2, "two lives are lost before the game is"
        games += 1
    assert games == 2
    assert max(gains) >= 5, "scores are raw"


def test_pictures_show_the_game_that_the_policy_sees() -> None:
    game = AtariGame("ALE/Seaquest-v5", "rgb_array")
    obs, _ = game.reset(seed=0)
    rng = np.random.default_rng(0)
    for t in range(400):
        picture = game.render()
        assert picture.shape == (420, 320, 3)
        grey = game._picture @ [0.299, 0.587, 0.114]
        # The same rows on average: 5 rows of the screen are 2 of the frame.
        screen_rows, seen_rows = grey.reshape(42, 5, -1), obs[0].astype(float).reshape(42, 2, -1)
        assert np.allclose(screen_rows.mean((1, 2)), seen_rows.mean((1, 2)), atol=1.5), t
        obs, _, terminated, _, _ = game.step(rng.integers(0, 18))
        if terminated:
            obs, _ = game.reset()


def test_rows_have_lives_and_clipped_rewards_and_episodes_have_whole_games() -> None:
    spec = with_stack(inspect_env(SHOOTER, SHOOTER), "auto")
    assert spec.images[0].shape == (1, 84, 84)
    assert (spec.num_actions, spec.max_episode_steps, spec.vector_envs) == (6, 27_000, None)
    form = RowFormat(gamma=0.9)
    layout, num_envs = row_layout(spec, form), 2
    group = make_group(SHOOTER, spec, num_envs, form)
    raw, policy = make_stepper(SHOOTER, num_envs), Policy(spec, PolicyForm(hidden=(4,)))
    policy.seed(0)
    group.reset(7)
    rows = np.zeros(num_envs, layout.dtype)
    rewards: list[float] = []
    deaths, scores, totals = 0, np.zeros(num_envs), []
    out = group._outcome.__class__(num_envs, spec)
    raw.reset_into(7, out)
    while len(totals) < 3:
        actions = policy.act_randomly(num_envs)
        env_actions = policy.to_env_action(actions)
        for row in rows[: group.step(actions, env_actions, 0, rows)]:
            rewards += row["reward"].tolist()
            deaths += int((row["discount"] == 0).sum())
        raw.step(env_actions, out)
        scores += out.reward
        for i in np.flatnonzero(out.terminated):
            totals.append(scores[i])
            scores[i] = 0
    assert set(rewards) == {0, 1}
    assert [episode.total for episode in group.finished] == totals
    assert deaths > len(totals), "each life ends a return"
    for stepper in (group, raw):
        stepper.close()


def test_evaluations_play_whole_games_for_raw_scores() -> None:
    spec = with_stack(inspect_env(SHOOTER, SHOOTER), "auto")
    stepper = make_stepper(SHOOTER, 2)
    lost = np.zeros(2)

    def fire(seen: Any) -> Any:
        lost[:] += stepper.rules._lost  # type: ignore[union-attr]
        return np.ones(len(seen), np.int64)

    played = play_to_end(stepper, spec, fire, 2, 0)
    assert lost.min() >= 2, "two lives are lost before a game is"
    assert min(episode.total for episode in played) >= 5
    assert all(episode.total % 5 == 0 for episode in played)
    stepper.close()


def test_arguments_reach_the_games() -> None:
    target = adjusted(
        "ALE/Pong-v5", {"grayscale": False, "img_height": 96, "full_action_space": True}, 50
    )
    spec = inspect_env(target, "ALE/Pong-v5")
    assert (spec.images[0].shape, spec.num_actions) == ((96, 84, 3), 18)
    assert spec.max_episode_steps == 50
    stepper = make_stepper(target, 3)
    assert stepper.num_envs == 3
    stepper.close()


def test_an_id_is_the_same_before_and_after_ale_py_is_imported() -> None:
    assert "ALE/Pong-v5" in gym.registry
    assert picklable_target("ALE/Pong-v5") == "ALE/Pong-v5"
    with make_env("ale_py:ALE/Pong-v5") as env:
        assert isinstance(env, AtariGame)


def test_an_unknown_game_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"not registered.*ALE/Pong-v5"):
        inspect_env("ALE/Pogn-v5", "ALE/Pogn-v5")


def test_a_users_own_wrapper_is_taken_as_it_is() -> None:
    spec = inspect_env(lambda: gym.make("ALE/Pong-v5", obs_type="ram"), "mine")
    assert (spec.obs_shape, spec.images) == ((128,), ())


def test_a_window_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    spec = with_stack(inspect_env("ALE/Pong-v5", "ALE/Pong-v5"), "auto")
    view = View("ALE/Pong-v5", spec, "human")
    view.reset(0)
    view.step(lambda seen: np.zeros(1, np.int64))
    assert view.steps_hz == 15
    view.close()


def test_a_run_learns_and_its_policy_is_evaluated_loaded_and_shown(
    runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs: dict[str, Any] = {
        "algo.hidden": (16,),
        "learner.batch_size": 8,
        "learner.warmup_rows": 200,
        "replay.capacity": 2000,
        "sampler.envs_per_process": 2,
        "evaluator.episodes": 1,
        "evaluator.every_steps": 300,
        "env.max_episode_steps": 100,
    }
    run = spreeze.train("ALE/Pong-v5", steps=600, serial=True, runs=runs, **knobs)
    assert "Atari: 4 frames per step, 25% sticky actions" in "".join(capsys.readouterr())
    assert run.summary["updates"] > 0
    assert (run.path / "checkpoints" / "last").exists()
    assert -21 <= run.summary["best_return"] <= 0
    assert len(spreeze.evaluate(run.path, episodes=1).returns) == 1
    video = tmp_path / "pong.mp4"
    assert play.main([str(run.path), "--video", str(video), "--seconds", "1"], 0.0) == 0
    assert video.stat().st_size > 1000

    page, names = "guides/atari.md", {"spreeze": spreeze}
    monkeypatch.setattr(spreeze, "train", lambda *_, **__: run)
    for block in python_blocks(page):
        run_block(block, page, names)
    assert names["state"] is not None
    names["make_ram"]().close()
