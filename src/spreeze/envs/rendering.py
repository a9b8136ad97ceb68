"""Views: an environment that can be looked at, and how to draw it on a machine without a display."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.observations import flattened
from spreeze.envs.stepping import LoopStepper, Outcome
from spreeze.envs.suites import EXTRAS, advice
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.spec import EnvSpec, Floats

Frame = NDArray[np.uint8]

TRY_LIMIT_S = 60.0
WIDTH, HEIGHT = 400, 300
"""Of what MuJoCo draws: software rendering takes its time by the pixel."""
SMOOTH_HZ = 30.0


class NoPicture(RuntimeError):
    """The environment cannot be drawn here; the message says why and what to install."""


class View:
    """One environment with its picture; plays episode after episode."""

    def __init__(self, target: EnvTarget, spec: EnvSpec, mode: str = "rgb_array") -> None:
        """Make the environment so that it draws: for us, or with mode `human` in a window."""
        env = _make_drawn(target, mode)
        _follow_the_robot(env)
        self._env = env
        self._stepper = LoopStepper([flattened(env)])
        self._outcome = Outcome(1, spec.obs_size)
        self.steps_hz = float(env.metadata.get("render_fps") or SMOOTH_HZ)
        """Env steps in a second of the simulated world."""
        self.total, self.ended = 0.0, True

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self._stepper.reset_into(seed, self._outcome)
        self.total, self.ended = 0.0, False

    def step(self, act: Callable[[Floats], Floats]) -> None:
        """One step. An ended episode stays as it is, in `total` and `ended`, until the next reset."""
        out = self._outcome
        self._stepper.step(act(out.obs), out)
        if out.valid[0]:
            self.total += float(out.reward[0])
        self.ended = bool(out.terminated[0] or out.truncated[0] or not out.valid[0])

    def frame(self) -> Frame:
        """The picture of this moment."""
        drawn: Any = self._env.render()
        if isinstance(drawn, list) and drawn:
            drawn = drawn[-1]
        picture = np.asarray(drawn)
        if picture.ndim != 3 or picture.shape[2] < 3:
            raise NoPicture(
                f"render() gave {type(drawn).__name__} instead of a picture: the environment must "
                "know the render mode rgb_array"
            )
        return picture[:, :, :3].astype(np.uint8, copy=False)

    def close(self) -> None:
        """Close the environment."""
        self._stepper.close()


def _make_drawn(target: EnvTarget, mode: str) -> gym.Env[Any, Any]:
    if isinstance(target, EnvPoolTarget):
        raise NoPicture("EnvPool's environments cannot be drawn, and Gymnasium has none of that id")
    size: dict[str, Any] = (
        {"width": WIDTH, "height": HEIGHT} if _is_mujoco(target) and mode != "human" else {}
    )
    try:
        env = make_env(target, render_mode=mode, **size)
    except TypeError:
        if isinstance(target, str) and ":" not in target:
            raise
        env = make_env(target)  # a class or factory without that argument may have set it itself
    if isinstance(env, VectorEnv):
        env.close()
        raise NoPicture("a vector environment is not drawn")
    if env.render_mode not in (mode, f"{mode}_list"):
        env.close()
        raise NoPicture(
            f"the environment does not take render_mode={mode!r}: give its class or factory that argument"
        )
    return env


def _follow_the_robot(env: gym.Env[Any, Any]) -> None:
    """Gymnasium's own camera stands still, and a good policy runs out of its picture."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None and getattr(renderer, "camera_id", 0) in (None, -1):
        with contextlib.suppress(KeyError):
            renderer.camera_id = renderer.model.camera("track").id


def _is_mujoco(target: EnvTarget) -> bool:
    spec = gym.registry.get(target) if isinstance(target, str) else None
    return str(getattr(spec, "entry_point", "")).startswith("gymnasium.envs.mujoco")


def view_without_display(target: EnvTarget, spec: EnvSpec) -> View:
    """A view that draws off screen, in this process; NoPicture if there is no way.

    Whether a way works is tried in a throw-away copy of this process: a broken driver ends the
    process that asks it.
    """
    os.environ["SDL_VIDEODRIVER"] = os.environ["SDL_AUDIODRIVER"] = "dummy"
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    ways = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else ["egl", "osmesa"]
    if len(ways) > 1 and os.environ.get("DISPLAY"):
        ways.append("glfw")
    view, problems = None, []
    for way in ways:
        os.environ["MUJOCO_GL"] = way  # read when the first picture is drawn
        try:
            if view is None:
                view = View(target, spec)
                view.reset(0)
        except NoPicture:
            raise
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            continue
        problem = _in_throw_away_process(view.frame)
        if not problem:
            return view
        problems.append(problem)
        if problem.startswith(NoPicture.__name__):
            break  # the same whatever draws
    if view is not None:
        view.close()
    raise NoPicture(_what_to_do(problems[0]))


def _in_throw_away_process(function: Callable[[], object]) -> str:
    """What went wrong in the function; empty if nothing did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = "?"
        try:
            function()
            words = ""
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, words.encode()[-4000:] + b"\0")
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read() if select.select([pipe], [], [], TRY_LIMIT_S)[0] else b"it hangs"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return answer.rstrip(b"\0").decode(errors="replace") if answer else "its process was ended"


def _what_to_do(problem: str) -> str:
    """The problem in one line, with the way out."""
    line = " ".join(problem.split())[:300]
    if line.startswith(NoPicture.__name__):
        return line.partition(": ")[2]
    for extra in ("classic", "mujoco"):
        if EXTRAS[extra] in line.lower() and "install" in line.lower():
            return f"{line}. {advice(extra)}"
    words = ("gl", "egl", "osmesa", "display", "context")
    if any(word in line.lower() for word in words):
        return f"no way to draw without a display ({line}). Debian: apt install libegl1 libgl1"
    return line


def needs_video_extra() -> str | None:
    """What to install before pictures can be stored; None if all is there."""
    try:
        importlib.import_module("PIL.Image")
        importlib.import_module("imageio_ffmpeg")
    except ImportError:
        return f"pictures need packages that are missing. {advice('video')}"
    return None
