"""Environments with known answers or known faults, for all tests."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import setproctitle
from gymnasium.spaces import Box, Discrete

from spreeze import testing
from spreeze.errors import EnvBroken


class CountEnv(gym.Env[Any, Any]):
    """Observation [episode, step, last action]; reward = 100 * episode + step. Every number of a
    transition can be recomputed from its first observation, so any mix-up is visible."""

    def __init__(self, length: int = 5, terminate: bool = True, first_episode: int = 0) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(np.array([-2.0], np.float32), np.array([6.0], np.float32))
        self.length, self.terminate = length, terminate
        self.episode, self.step_index = first_episode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.step_index = 0
        return np.array([self.episode, 0.0, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_index += 1
        obs = np.array([self.episode, self.step_index, float(action[0])])
        over = self.step_index >= self.length
        reward = 100.0 * self.episode + self.step_index
        return obs, reward, over and self.terminate, over and not self.terminate, {}


class ReachEnv(gym.Env[Any, Any]):
    """Known answer: one step with reward -(action - observation / 2)^2; the best return is 0."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, -float((action[0] - self.obs[0] / 2) ** 2), True, False, {}


class HugeEnv(ReachEnv):
    """Rewards as large as the limit allows, of either sign at random."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 9e7 * float(self.np_random.choice([-1, 1])), False, False, {}


class NoiseEnv(gym.Env[Any, Any]):
    """Episodes of 20 steps whose rewards are drawn by chance: there is nothing to learn."""

    scale: ClassVar[list[float]] = [1.0, 1.0, 1.0]
    size = 1.0

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps_left = 20
        return self.seen(), {}

    def seen(self) -> Any:
        return (self.np_random.normal(size=3) * self.scale).astype(np.float32)

    def reward(self, action: float) -> float:
        return self.size * float(self.np_random.choice([-1, 1]))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        return self.seen(), self.reward(float(action[0])), False, self.steps_left == 0, {}


class ScaledEnv(NoiseEnv):
    """One number of the observation is thousands of times as large as the others."""

    scale: ClassVar[list[float]] = [1.0, 5000.0, 1.0]


class PushEnv(NoiseEnv):
    """Pushes in one direction pay so much that nothing else counts, and yet little more than none."""

    size = 1e4

    def reward(self, action: float) -> float:
        return self.size * (10 + action)


class FlatEnv(NoiseEnv):
    """Every reward is zero."""

    size = 0.0


class CostEnv(NoiseEnv):
    """The only reward is the cost of acting, as in a task whose goal has not been found."""

    def reward(self, action: float) -> float:
        return -(action**2)


class ChoiceEnv(ReachEnv):
    """Known answer: action i is right, with reward 1, in the i-th third of the observation's range."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(3)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = int((self.obs[0] + 1) * 1.4999)
        return self.obs, float(action == right), True, False, {}


class Recorded(ReachEnv):
    """Records its rewards under the seed it was first reset with; they tell which actions were taken."""

    seen: ClassVar[dict[int, list[float]]] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.rewards = self.seen[seed] = []
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.rewards.append(result[1])
        return result


class FaultEnv(CountEnv):
    """Does something bad at one of its steps; `fault` says what."""

    def __init__(self, fault: str, at: int = 50) -> None:
        super().__init__(length=10)
        self.fault, self.at, self.total = fault, at, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.total == self.at:
            if self.fault == "raise":
                raise RuntimeError("the arm fell off")
            if self.fault == "nan":
                obs = obs * np.nan
            if self.fault == "print":
                print("noise on standard output", flush=True)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exit":
                sys.exit("enough")
        if self.fault == "nan reward" and self.step_index == 8:
            reward = float("nan")
        if self.fault == "slow":
            time.sleep(0.01)
        return obs, reward, terminated, truncated, info


def raising_env() -> gym.Env[Any, Any]:
    """Works when it is tried out, raises later."""
    return FaultEnv("raise")


def nan_env() -> gym.Env[Any, Any]:
    """Returns NaN once."""
    return FaultEnv("nan")


def printing_env() -> gym.Env[Any, Any]:
    """Prints in the middle of a step."""
    return FaultEnv("print")


def killing_env() -> gym.Env[Any, Any]:
    """Kills its own process, as a crash in native code would."""
    return FaultEnv("kill", at=400)


def exiting_env() -> gym.Env[Any, Any]:
    """Calls sys.exit in a step."""
    return FaultEnv("exit")


class BreakingEnv(CountEnv):
    """Reward -1 for ten steps; every third episode breaks after two."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        if self.episode % 3 == 0 and self.step_index == 3:
            obs = obs * np.nan
        return obs, -1.0, *rest  # type: ignore[return-value]


def breaking_env() -> gym.Env[Any, Any]:
    """Breaks in some episodes."""
    return BreakingEnv(length=10)


def nan_reward_env() -> gym.Env[Any, Any]:
    """Returns a reward of NaN in the eighth step of every episode."""
    return FaultEnv("nan reward", at=-1)


class OddError(Exception):
    """Cannot be pickled: its arguments are not those of its base class."""

    def __init__(self, joint: str, angle: float) -> None:
        super().__init__(f"{joint} cannot turn to {angle}")


def odd_error_env() -> gym.Env[Any, Any]:
    """Cannot be made, and raises an exception that cannot be pickled."""
    raise OddError("elbow", 400.0)


class ParentEnv(ReachEnv):
    """Starts another program, as simulators do, and raises when it is closed."""

    seconds = "987654"

    def __init__(self) -> None:
        super().__init__()
        self.program = subprocess.Popen(["sleep", self.seconds])

    def close(self) -> None:
        raise RuntimeError("does not want to be closed")


class UnclosableEnv(ParentEnv):
    """Its programs are not those of tests that run at the same time."""

    seconds = "987653"


class DetachedEnv(ReachEnv):
    """Starts another program in a session of its own and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.program = subprocess.Popen(["sleep", "987654"], start_new_session=True)


def slow_env() -> gym.Env[Any, Any]:
    """Takes ten milliseconds per step, as a real robot may."""
    return FaultEnv("slow")


class WideEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Has the shapes of `cases.BOX`, so that runs and tests of the compiled update share one compilation."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return np.append(obs, 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action[:1])
        return np.append(obs, action[1]), *rest


def wide_env(slow: bool = False) -> gym.Env[Any, Any]:
    return WideEnv(slow_env() if slow else CountEnv())


class StallEnv(CountEnv):
    """Takes 2 ms per step; in sampler 0, step `stall_at` takes a minute."""

    def __init__(self, stall_at: int) -> None:
        super().__init__(length=10)
        self.stall_at = stall_at if "sampler-0" in setproctitle.getproctitle() else -1
        self.total = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        time.sleep(60 if self.total == self.stall_at else 0.002)
        return super().step(action)


class HangEnv(CountEnv):
    """Hangs in its 100th step: in sampler 0 inside C code that holds the interpreter's lock, in sampler 1 in Python."""

    total = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        if self.total == 100 and "sampler-0" in setproctitle.getproctitle():
            ctypes.PyDLL(None).sleep(3600)
        if self.total == 100 and "sampler-1" in setproctitle.getproctitle():
            time.sleep(3600)
        return super().step(action)


def hangs_elsewhere(render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Hangs once in a step of the evaluator, and once in a step of the visualizer."""
    for role in ("evaluator-0", "visualizer-0"):
        if role in setproctitle.getproctitle():
            return testing.FaultEnv(
                fault="hang", at=30, once=f"hung-{role}", render_mode=render_mode
            )
    return testing.FaultEnv(render_mode=render_mode)


class SlowToMake(CountEnv):
    """Takes as long to make as it is told, and leaves its pid in a file."""

    def __init__(self, seconds: float = 600.0) -> None:
        super().__init__(length=10)
        Path("pid").write_text(str(os.getpid()))
        time.sleep(seconds)


def broken_in_one_sampler() -> gym.Env[Any, Any]:
    """Cannot be used by sampler 1."""
    if "sampler-1" in setproctitle.getproctitle():
        raise EnvBroken("three robots in a row fell over", "Traceback of the robot")
    return CountEnv()


def broken_env() -> gym.Env[Any, Any]:
    """Cannot be made."""
    raise ValueError("no robot is connected")


class SpaceEnv(ReachEnv):
    """Has the spaces it is given, for what must be refused."""

    def __init__(
        self, obs: gym.Space[Any] | None = None, action: gym.Space[Any] | None = None
    ) -> None:
        super().__init__()
        self.observation_space = self.observation_space if obs is None else obs
        self.action_space = self.action_space if action is None else action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super(ReachEnv, self).reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, True, False, {}


def camera_env() -> gym.Env[Any, Any]:
    """Observations with an image of floats among them."""
    return SpaceEnv(obs=gym.spaces.Dict({"camera": Box(0, 1, (64, 64, 3))}))


def open_ended_env() -> gym.Env[Any, Any]:
    """Actions without an upper bound."""
    return SpaceEnv(action=Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)))


class BreaksWhenDrawn(ReachEnv):
    """Draws once, when it is tried out, and raises from then on."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        if self.drawn > 1:
            raise RuntimeError("the camera fell off")
        return np.zeros((64, 64, 3), np.uint8)


def breaks_when_drawn(render_mode: str | None = None) -> gym.Env[Any, Any]:
    return BreaksWhenDrawn(render_mode)


class NoisyEnv(CountEnv):
    """Prints 100 kB in every step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        print("x" * 100_000, flush=True)
        return super().step(action)


def unruly_env() -> gym.Env[Any, Any]:
    """Changes what belongs to its process, and raises now and then."""
    once = () if sys.stdout.closed else ("print", "close_stdout")
    for fault in ("chdir", "signals", "reseed", *once):
        testing.FaultEnv(fault=fault, where="construct")
    return testing.FaultEnv(fault="raise", probability=0.001)


def leaking_env() -> gym.Env[Any, Any]:
    """Keeps 2 MiB in one of 2,000 steps."""
    return testing.FaultEnv(fault="leak", probability=0.0005, num_bytes=2 << 20)
