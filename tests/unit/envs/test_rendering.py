"""Views, films and the commands that show a policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.envs.rendering import NoPicture, _what_to_do, view_without_display
from spreeze.errors import UsageError
from spreeze.policy import Policy
from spreeze.roles import visualizer
from spreeze.settings.config import config_with, default_config
from spreeze.store.checkpoint import save_best
from spreeze.store.rundir import RunDir
from spreeze.store.video import VideoWriter, captioned, jpeg

SCRIPT = """
import os
from spreeze.envs.inspect import inspect_env
from spreeze.envs.rendering import NoPicture, view_without_display
spec = inspect_env("{env}", "{env}")
try:
    view = view_without_display("{env}", spec)
except NoPicture as problem:
    print("NONE", problem)
else:
    frame = view.frame()
    camera = view._env.unwrapped.mujoco_renderer.camera_id
    print("DRAWN", frame.shape, int(frame.std()), os.environ["MUJOCO_GL"], "camera", camera)
"""


def draw(env: str) -> str:
    """What a fresh process without a display says of an environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-c", SCRIPT.format(env=env)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_mujoco_is_drawn_without_a_display_or_the_way_to_it_is_said() -> None:
    words = draw("Swimmer-v5")
    if words.startswith("NONE"):
        assert "apt install" in words
        pytest.skip(words)
    assert "(300, 400, 3)" in words
    assert ") 0 " not in words, "it is not all of one colour"
    assert "camera -1" not in words, "the camera follows the robot"


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a view sets for its process is taken back."""
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT", "MUJOCO_GL"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def act(obs: Any) -> Any:
    return np.zeros((len(obs), 1), np.float32)


def test_a_view_plays_whole_episodes(no_display: None) -> None:
    view = view_without_display("Pendulum-v1", inspect_env("Pendulum-v1", "Pendulum-v1"))
    try:
        view.reset(3)
        first = view.frame()
        steps = 0
        while not view.ended:
            view.step(act)
            steps += 1
    finally:
        view.close()
    assert steps == 200
    assert view.total < 0
    assert first.dtype == np.uint8
    assert first.ndim == 3


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (fakes.ReachEnv, "does not take render_mode"),
        (lambda: gym.make_vec("Pendulum-v1", num_envs=2), "a vector environment"),
        (lambda: gym.make("Pendulum-v1"), "does not take render_mode"),
    ],
)
def test_what_cannot_be_drawn_says_why(no_display: None, target: Any, words: str) -> None:
    spec = inspect_env("Pendulum-v1", "Pendulum-v1")
    with pytest.raises(NoPicture, match=words):
        view_without_display(target, spec)


def test_a_render_that_gives_no_picture_is_refused(no_display: None) -> None:
    class Blind(fakes.BreaksWhenDrawn):
        def render(self) -> Any:
            return None

    with pytest.raises(NoPicture, match="instead of a picture"):
        view_without_display(Blind, inspect_env(Blind, "Blind"))


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("DependencyNotInstalled: pygame is not installed, run `pip install`", "spreeze[classic]"),
        ("ImportError: Cannot initialize a EGL device display.", "apt install libegl1"),
    ],
)
def test_problems_come_with_a_way_out(problem: str, advice: str) -> None:
    assert advice in _what_to_do(problem)


def test_a_film_gets_its_name_and_title_when_it_is_whole(tmp_path: Path) -> None:
    frame = np.random.default_rng(0).integers(0, 255, (65, 81, 3), np.uint8)
    film = VideoWriter(tmp_path / "a.mp4", 20.0)
    for _ in range(5):
        film.add(captioned(frame, "return 1.0"))
    assert not (tmp_path / "a.mp4").exists()
    film.close("Pendulum-v1: return -123.4")
    assert b"Pendulum-v1: return -123.4" in (tmp_path / "a.mp4").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    thrown_away = VideoWriter(tmp_path / "b.mp4", 20.0)
    thrown_away.add(frame)
    thrown_away.close(None)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    assert (captioned(frame, "x") != frame).any()
    assert len(jpeg(np.zeros((900, 1200, 3), np.uint8))) < 20_000


@pytest.mark.parametrize(("seconds", "films"), [(60.0, ["last.mp4"]), (0.0, [])])
def test_the_best_policy_is_filmed_at_the_end_if_there_is_time(
    seconds: float,
    films: list[str],
    no_display: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visualizer, "LAST_VIDEO_S", seconds)
    run, spec = RunDir(tmp_path), inspect_env("Pendulum-v1", "Pendulum-v1")
    run.live.mkdir()
    knobs = {"algo.hidden": (4,), "visualizer.frames_hz": 3.0, "visualizer.video_s": 1.0}
    config = config_with(default_config("sac", "Pendulum-v1"), knobs)
    policy = Policy(spec, config.hyper.policy_form(spec))
    data = {"config": {"policy": policy.describe()}}
    assert save_best(run.checkpoints, 12, {"policy": policy.named()}, data)
    ctx: Any = SimpleNamespace(
        run=run,
        spec=spec,
        config=config,
        counters={"frames": 0, "videos": 0},
        control=SimpleNamespace(evaluator={"best_return": -150.0}),
        seed=lambda: [0],
        now=lambda: 0.0,
    )
    view = view_without_display("Pendulum-v1", spec)
    try:
        visualizer.VideoRecorder(ctx, view).film_last()
    finally:
        view.close()
    assert [path.name for path in run.videos.glob("*")] == films
    assert ctx.counters["videos"] == len(films)
    for film in films:
        assert b"best policy, evaluated -150.0" in (run.videos / film).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--video", "a.avi"], "name it a.mp4"),
        (["--video", "/nowhere/a.mp4"], "there is no folder /nowhere"),
        ([], "Use --video FILE.mp4"),
        (["--episodes", "0", "--video", "a.mp4"], "from 1 to 1000"),
    ],
)
def test_play_refuses_what_cannot_work(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    from spreeze.cli.commands.play import main

    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(UsageError, match=words):
        main(arguments, 0.0)
