"""Views: environments with their picture, on a machine without a display."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fakes
from spreeze.envs import rendering
from spreeze.envs.inspect import inspect_env
from spreeze.envs.rendering import (
    NoPicture,
    Trial,
    Verdict,
    View,
    explain,
    try_in_child,
    view_without_display,
)
from spreeze.testing import Catch

# Children that are forked here only draw, and leave by os._exit: threads of other tests do not matter.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

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
    camera = view._stepper.envs[0].unwrapped.mujoco_renderer.camera_id
    print("DRAWN", frame.shape, int(frame.std()), os.environ["MUJOCO_GL"], "camera", camera)
"""


def draw(env: str) -> str:
    """What a fresh process without a display prints about an environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-c", SCRIPT.format(env=env)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_small_pictures_are_enlarged_without_blur() -> None:
    view = View(Catch, inspect_env(Catch, "Catch"))
    view.reset(0)
    picture, small = view.frame(), Catch().reset(seed=0)[0]
    view.close()
    assert picture.shape == (252, 252, 3)
    np.testing.assert_array_equal(picture[1::3, 1::3, :1], small)


def test_mujoco_is_drawn_without_a_display_or_the_message_says_what_to_install() -> None:
    printed = draw("Swimmer-v5")
    if printed.startswith("NONE"):
        assert "apt install" in printed
        pytest.skip(printed)
    assert "(300, 400, 3)" in printed
    assert ") 0 " not in printed, "the picture has more than one colour"
    assert "camera -1" not in printed, "the camera follows the robot"


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the environment variables that a view sets."""
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
def test_the_reason_why_nothing_can_be_drawn(no_display: None, target: Any, words: str) -> None:
    spec = inspect_env("Pendulum-v1", "Pendulum-v1")
    with pytest.raises(NoPicture, match=words):
        view_without_display(target, spec)


def test_render_must_return_a_picture(no_display: None) -> None:
    class Blind(fakes.BreaksWhenDrawn):
        def render(self) -> Any:
            return None

    with pytest.raises(NoPicture, match="instead of a picture"):
        view_without_display(Blind, inspect_env(Blind, "Blind"))


def test_a_picture_is_tried_in_a_child_and_the_result_is_data() -> None:
    def no_picture() -> None:
        raise NoPicture("a vector environment cannot be drawn")

    def broken() -> None:
        raise RuntimeError("no such device")

    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert try_in_child(lambda: None) == Trial(Verdict.DRAWN)
    expected = Trial(Verdict.NO_PICTURE, "a vector environment cannot be drawn")
    assert try_in_child(no_picture) == expected
    assert try_in_child(broken) == Trial(Verdict.FAILED, "RuntimeError: no such device")
    assert try_in_child(killed) == Trial(Verdict.FAILED, "its process was killed")


def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "TRIAL_LIMIT_S", 0.1)
    trial = try_in_child(lambda: time.sleep(100))
    assert trial.verdict is Verdict.FAILED
    assert "no picture in" in trial.problem


@pytest.mark.parametrize(
    ("trial", "advice"),
    [
        (
            Trial(Verdict.FAILED, "DependencyNotInstalled: pygame is not installed, run `pip`"),
            "spreeze[classic]",
        ),
        (
            Trial(Verdict.FAILED, "ImportError: Cannot initialize a EGL device display."),
            "apt install libegl1",
        ),
        (Trial(Verdict.NO_PICTURE, "it draws on a display only"), "it draws on a display only"),
    ],
)
def test_problems_come_with_advice(trial: Trial, advice: str) -> None:
    explained = explain(trial)
    assert advice in explained
    assert ("apt install" in explained) == ("EGL" in trial.problem)
