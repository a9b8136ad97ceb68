"""Rendering: a `View` is an environment with its picture.

Most training machines have no display, and a broken graphics driver kills the process that uses it.
`view_without_display` therefore tries each OpenGL backend in a throw-away process first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import select
import signal
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spreeze.envs.calls import EnvCall
from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.guard import OTHER, STEP, EnvGuard
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.observations import flattened
from spreeze.envs.step_result import StepResult
from spreeze.envs.suites import EXTRAS, advice
from spreeze.envs.targets import Adjusted, EnvTarget, make_env
from spreeze.faults import Doing
from spreeze.spec import EnvSpec, Floats

Frame = NDArray[np.uint8]

TRIAL_LIMIT_S = 60.0
"""How long a throw-away process may take for its first picture."""
WIDTH, HEIGHT = 400, 300
"""Size of MuJoCo's pictures: the time of software rendering grows with the pixels."""
SHORTEST_SIDE = 200
"""Pictures with a shorter side are enlarged: captions, and people, need some room."""
DEFAULT_HZ = 30.0
"""Env steps per second for an environment that does not declare `render_fps`."""


class NoPicture(RuntimeError):
    """The environment cannot be drawn here; the message says why and what to install."""


class View:
    """One environment and its picture, played episode by episode."""

    def __init__(
        self,
        target: EnvTarget,
        spec: EnvSpec,
        mode: str = "rgb_array",
        guard: EnvGuard | None = None,
        size: tuple[int, int] = (WIDTH, HEIGHT),
    ) -> None:
        """Make the environment with a render mode: `rgb_array` for frames, `human` for a window.

        MuJoCo draws frames of this size, other environments of their own.
        """
        self._guard = guard or EnvGuard()
        self._guard.begin(Doing.CONSTRUCT)

        def make() -> gym.Env[Any, Any]:
            env = _make_rendered(target, mode, size)
            _track_the_robot(env)
            return flattened(env)

        env = make()
        self._guard.doing[()] = OTHER
        self._stepper = LoopStepper([env], make, self._guard)
        self._outcome = StepResult(1, spec)
        self._seen = self._outcome.obs
        self.steps_hz = float(env.metadata.get("render_fps") or DEFAULT_HZ)
        """Env steps per second of simulated time."""
        self.total, self.ended = 0.0, True

    def take_calls(self, calls: Sequence[EnvCall]) -> None:
        """These are the newest calls into the environment."""
        self._stepper.take_calls(calls)

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self._stepper.reset_into(seed, self._outcome)
        self._seen = self._outcome.seen(restarted=True)
        self.total, self.ended = 0.0, False

    def step(self, act: Callable[[Floats], NDArray[Any]]) -> None:
        """Step once. After the end of an episode, `total` and `ended` keep their values until `reset`."""
        out = self._outcome
        self._stepper.step(act(self._seen), out)
        self._seen = out.seen()
        if out.valid[0]:
            self.total += float(out.reward[0])
        self.ended = bool(out.terminated[0] or out.truncated[0] or not out.valid[0])

    def frame(self) -> Frame:
        """The current picture."""
        self._guard.doing[()] = STEP
        rendered: Any = self._stepper.envs[0].render()
        self._guard.doing[()] = OTHER
        if isinstance(rendered, list) and rendered:
            rendered = rendered[-1]
        picture = np.asarray(rendered)
        if picture.ndim != 3 or picture.shape[2] < 3:
            raise NoPicture(
                f"render() returned {type(rendered).__name__} instead of a picture: the environment "
                "must support the render mode rgb_array"
            )
        return _enlarged(picture[:, :, :3].astype(np.uint8, copy=False))

    def close(self) -> None:
        """Close the environment."""
        self._stepper.close()


def _make_rendered(target: EnvTarget, mode: str, size: tuple[int, int]) -> gym.Env[Any, Any]:
    plain = target.target if isinstance(target, Adjusted) else target
    if isinstance(plain, EnvPoolTarget):
        raise NoPicture("EnvPool cannot draw its environments, and Gymnasium has none with this id")
    sized = _is_mujoco(plain) and mode != "human"
    arguments: dict[str, Any] = {"width": size[0], "height": size[1]} if sized else {}
    try:
        env = make_env(target, render_mode=mode, **arguments)
    except TypeError:
        if isinstance(plain, str) and ":" not in plain:
            raise
        env = make_env(target)  # a factory without the argument may set the mode itself
    if isinstance(env, VectorEnv):
        env.close()
        raise NoPicture("a vector environment cannot be drawn")
    if env.render_mode not in (mode, f"{mode}_list"):
        env.close()
        raise NoPicture(
            f"the environment does not take render_mode={mode!r}: add that argument to its class or function"
        )
    return env


def _track_the_robot(env: gym.Env[Any, Any]) -> None:
    """Use MuJoCo's tracking camera: Gymnasium's default stands still, and a good policy runs out of the picture."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None and getattr(renderer, "camera_id", 0) in (None, -1):
        with contextlib.suppress(KeyError):
            renderer.camera_id = renderer.model.camera("track").id


def _is_mujoco(target: EnvTarget) -> bool:
    spec = gym.registry.get(target) if isinstance(target, str) else None
    return str(getattr(spec, "entry_point", "")).startswith("gymnasium.envs.mujoco")


class Verdict(IntEnum):
    """Whether a picture could be drawn."""

    DRAWN = 0
    NO_PICTURE = 1
    """The environment itself cannot be drawn; another backend would not help."""
    FAILED = 2
    """Drawing failed; another backend may work."""


class Trial(NamedTuple):
    """The result of an attempt to draw."""

    verdict: Verdict
    problem: str = ""

    @staticmethod
    def failed(error: BaseException) -> Trial:
        """An attempt that ended with this error."""
        if isinstance(error, NoPicture):
            return Trial(Verdict.NO_PICTURE, str(error))
        return Trial(Verdict.FAILED, f"{type(error).__name__}: {error}")


def draw_off_screen() -> list[str]:
    """Let libraries draw without a display, from their import on; returns the OpenGL backends to try, the first one set."""
    os.environ["SDL_VIDEODRIVER"] = os.environ["SDL_AUDIODRIVER"] = "dummy"
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    if given := os.environ.get("MUJOCO_GL"):
        return [given]
    os.environ["MUJOCO_GL"] = "egl"
    return ["egl", "osmesa", *(["glfw"] if os.environ.get("DISPLAY") else [])]


def view_without_display(
    target: EnvTarget,
    spec: EnvSpec,
    guard: EnvGuard | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    backends: Sequence[str] = (),
) -> View:
    """A view that draws off screen in this process; NoPicture if no OpenGL backend works.

    `backends` come from `draw_off_screen`, if that was called before.
    """
    backends = backends or draw_off_screen()
    view: View | None = None
    trials: list[Trial] = []
    for backend in backends:
        os.environ["MUJOCO_GL"] = backend  # read when the first picture is drawn
        try:
            if view is None:
                view = View(target, spec, guard=guard, size=size)
                view.reset(0)
        except NoPicture:
            raise
        except Exception as error:
            trials.append(Trial.failed(error))
            continue
        trials.append(try_in_child(view.frame))
        if trials[-1].verdict is Verdict.DRAWN:
            return view
        if trials[-1].verdict is Verdict.NO_PICTURE:
            break
    if view is not None:
        view.close()
    raise NoPicture(explain(trials[0]))


def try_in_child(draw: Callable[[], object]) -> Trial:
    """Call `draw` in a throw-away copy of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        trial = Trial(Verdict.FAILED, "?")
        try:
            draw()
            trial = Trial(Verdict.DRAWN)
        except BaseException as error:
            trial = Trial.failed(error)
        finally:
            os.write(writing, bytes([trial.verdict]) + trial.problem.encode()[-4000:])
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        in_time = bool(select.select([pipe], [], [], TRIAL_LIMIT_S)[0])
        answer = pipe.read() if in_time else b""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not answer:
        problem = "its process was killed" if in_time else f"no picture in {TRIAL_LIMIT_S:.0f} s"
        return Trial(Verdict.FAILED, problem)
    return Trial(Verdict(answer[0]), answer[1:].decode(errors="replace"))


def explain(trial: Trial) -> str:
    """The problem in one line, with what to do about it."""
    line = " ".join(trial.problem.split())[:300]
    if trial.verdict is Verdict.NO_PICTURE:
        return line
    # The errors come from other packages, so only their text tells the cause.
    lower = line.lower()
    for extra in ("classic", "mujoco"):
        if EXTRAS[extra] in lower and "install" in lower:
            return f"{line}. {advice(extra)}"
    if re.search(r"\b(gl\b|egl|glfw|glad|opengl|osmesa|display|context)", lower):
        return f"no way to draw without a display ({line}). Debian: apt install libegl1 libgl1"
    return line


def needs_video_extra() -> str | None:
    """What to install before pictures can be stored; None if nothing is missing."""
    try:
        importlib.import_module("PIL.Image")
        importlib.import_module("imageio_ffmpeg")
    except ImportError:
        return f"pictures need packages that are missing. {advice('video')}"
    return None


def _enlarged(picture: Frame) -> Frame:
    """A small picture, such as that of a game, with each pixel as a square of several."""
    factor = -(-SHORTEST_SIDE // max(min(picture.shape[:2]), 1))
    if factor == 1:
        return picture
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
