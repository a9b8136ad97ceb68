"""An environment that can be learned in seconds and fails on request, for tests of what a run survives."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

LIFETIME_S = 987_654
"""Programs that `children` and `daemons` start would end by themselves after this long."""


class EnvFault(StrEnum):
    """What `FaultEnv` does wrong."""

    NONE = "none"
    RAISE = "raise"
    SYS_EXIT = "sys_exit"
    """Raises SystemExit."""
    EXIT = "exit"
    """Ends the process at once, without cleanup."""
    SEGFAULT = "segfault"
    KILL = "kill"
    """Sends SIGKILL to its own process."""
    HANG = "hang"
    """Sleeps for `seconds`, an hour unless told."""
    HANG_GIL = "hang_gil"
    """The same inside C code that holds Python's global lock: no other thread runs."""
    SLOW = "slow"
    """Takes `seconds`, 10 ms unless told."""
    NAN = "nan"
    INF = "inf"
    HUGE = "huge"
    """1e30: a number that float32 holds, and whose square it does not."""
    BAD_SHAPE = "bad_shape"
    BAD_DTYPE = "bad_dtype"
    LEAK = "leak"
    """Keeps `num_bytes`, 1 MiB unless told."""
    LEAK_FILE = "leak_file"
    """Opens a file and keeps it open."""
    PRINT = "print"
    """Prints `num_bytes` to standard output, 1 MiB unless told."""
    CLOSE_STDOUT = "close_stdout"
    CHDIR = "chdir"
    """Changes the working directory to /."""
    SIGNALS = "signals"
    """Ignores SIGINT and SIGTERM from then on."""
    RESEED = "reseed"
    """Seeds the global random generators with 0."""
    CHILDREN = "children"
    """Starts a program, and does not end it when closed."""
    DAEMONS = "daemons"
    """The same in a session of its own, where signals to our process group do not reach it."""


_instances = count()


PICTURE = (16, 24)
"""Height and width of a picture as observation."""


@dataclass(kw_only=True, eq=False)
class FaultEnv(gym.Env[Any, Any]):
    """A point on a line that moves to its goal. Without arguments nothing is wrong with it.

    The observation is [position, goal, goal - position], the reward minus the distance. An episode terminates at the
    goal and is truncated after `length` steps.
    """

    fault: str = EnvFault.NONE
    """One of `EnvFault`."""
    where: Literal["construct", "reset", "step"] = "step"
    part: Literal["obs", "reward", "terminated"] = "obs"
    """What is wrong for nan, inf, huge, bad_shape and bad_dtype; a reset has only the observation."""
    at: int | None = None
    """It happens at this call of this instance, counted from 1 ..."""
    probability: float | None = None
    """... or at each call with this probability; at every call if neither is given."""
    seed: int = 0
    """For `probability`. Each instance in a process draws its own numbers."""
    role: str = ""
    """Only in processes with this in their title, such as "sampler-0"; anywhere if empty."""
    once: str | None = None
    """A file that marks that it has happened: then it happens in no process again."""
    seconds: float | None = None
    num_bytes: int = 2**20
    length: int = 20
    pixels: bool = False
    """Observations are small pictures of the point and its goal."""
    render_mode: str | None = None

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __post_init__(self) -> None:
        """Make the spaces; the fault may happen here."""
        self.observation_space = (
            Box(0, 255, (*PICTURE, 1), np.uint8)
            if self.pixels
            else Box(-4.0, 4.0, (3,), np.float32)
        )
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.fault = EnvFault(self.fault)
        self._title = Path("/proc/self/cmdline").read_bytes().decode(errors="replace")
        self._random = np.random.default_rng([self.seed, next(_instances)])
        self._calls = 0
        self._kept: list[Any] = []
        self._position = self._goal = 0.0
        self._steps = 0
        if self._due("construct"):
            self._act()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the fault may happen here."""
        super().reset(seed=seed)
        self._position, self._goal = (float(x) for x in self.np_random.uniform(-1, 1, 2))
        self._steps = 0
        obs: Any = self._obs()
        if self._due("reset"):
            self._act()
            obs = self._spoil(obs)
        return obs, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        """Move the point; the fault may happen here."""
        self._position = float(np.clip(self._position + 0.3 * float(action[0]), -2, 2))
        self._steps += 1
        distance = abs(self._goal - self._position)
        result: dict[str, Any] = {
            "obs": self._obs(),
            "reward": -distance,
            "terminated": distance < 0.05,
        }
        if self._due("step"):
            self._act()
            result[self.part] = self._spoil(result[self.part])
        return *result.values(), self._steps >= self.length, {}

    def render(self) -> Any:
        """A dark picture with the point and its goal."""
        picture = np.zeros((64, 64, 3), np.uint8)
        for place, color in ((self._goal, 1), (self._position, 0)):
            column = int(np.clip(15 * (place + 2), 0, 61))
            picture[30:34, column : column + 3, color] = 255
        return picture

    def _obs(self) -> NDArray[Any]:
        if self.pixels:
            picture = np.zeros((*PICTURE, 1), np.uint8)
            for row, place in enumerate((self._goal, self._position)):
                column = int(np.clip((place + 2) / 4 * PICTURE[1], 0, PICTURE[1] - 1))
                picture[6 * row + 3 : 6 * row + 6, column] = 255
            return picture
        return np.array([self._position, self._goal, self._goal - self._position], dtype=np.float32)

    def _due(self, where: str) -> bool:
        """Whether the fault happens at this call."""
        if self.fault == EnvFault.NONE or where != self.where:
            return False
        self._calls += 1
        due = self._calls == self.at if self.at is not None else True
        if self.probability is not None:
            due = due and self._random.random() < self.probability
        if not due or self.role not in self._title:
            return False
        if self.once is not None:
            try:
                Path(self.once).touch(exist_ok=False)
            except FileExistsError:
                return False
        return True

    def _spoil(self, value: Any) -> Any:
        """The value as this fault returns it."""
        array = np.asarray(value, np.float32)  # a picture of floats is bad, too
        bad: dict[str, Callable[[], Any]] = {
            EnvFault.NAN: lambda: array * np.nan,
            EnvFault.INF: lambda: array + np.inf,
            EnvFault.HUGE: lambda: array + np.float32(1e30),
            EnvFault.BAD_SHAPE: lambda: array[:1] if array.ndim else np.zeros(2, array.dtype),
            EnvFault.BAD_DTYPE: lambda: array.astype(str),
        }
        return bad[self.fault]() if self.fault in bad else value

    def _act(self) -> None:
        """Do what this fault does, apart from the values it returns."""
        long_s, short_s = self.seconds or 3600.0, self.seconds or 0.01
        acts: dict[str, Callable[[], object]] = {
            EnvFault.RAISE: _raise,
            EnvFault.SYS_EXIT: lambda: sys.exit("the environment has had enough"),
            EnvFault.EXIT: lambda: os._exit(7),
            EnvFault.SEGFAULT: lambda: ctypes.string_at(0),
            EnvFault.KILL: lambda: os.kill(os.getpid(), signal.SIGKILL),
            EnvFault.HANG: lambda: time.sleep(long_s),
            EnvFault.HANG_GIL: lambda: _sleep_in_c(long_s),
            EnvFault.SLOW: lambda: time.sleep(short_s),
            EnvFault.LEAK: lambda: self._kept.append(b"x" * self.num_bytes),
            EnvFault.LEAK_FILE: lambda: self._kept.append(os.open(os.devnull, os.O_RDONLY)),
            EnvFault.PRINT: lambda: sys.stdout.write(
                "noise of an environment\n" * (self.num_bytes // 24)
            ),
            EnvFault.CLOSE_STDOUT: _close_stdout,
            EnvFault.CHDIR: lambda: os.chdir("/"),
            EnvFault.SIGNALS: _ignore_signals,
            EnvFault.RESEED: _reseed,
            EnvFault.CHILDREN: lambda: _start_program(own_session=False),
            EnvFault.DAEMONS: lambda: _start_program(own_session=True),
        }
        if self.fault in acts:
            acts[self.fault]()


def _raise() -> None:
    raise RuntimeError("the arm fell off")


def _sleep_in_c(seconds: float) -> None:
    library = ctypes.PyDLL(None)  # unlike CDLL, it keeps the global lock during a call
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        library.sleep(ctypes.c_uint(max(1, round(end_s - time.monotonic()))))


def _close_stdout() -> None:
    sys.stdout.close()
    with contextlib.suppress(OSError):  # another environment of this process has closed it
        os.close(1)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _reseed() -> None:
    random.seed(0)
    np.random.seed(0)


def _start_program(own_session: bool) -> None:
    program = [sys.executable, "-P", "-c", f"import time; time.sleep({LIFETIME_S})"]
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    os.posix_spawn(sys.executable, program, os.environ, file_actions=silent, setsid=own_session)
