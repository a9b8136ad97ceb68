"""Atari: the games of the Arcade Learning Environment, stepped and preprocessed in C++ by ale-py.

Samplers and evaluations see frames of the same code. They play whole games, and their scores are counted as they are;
`TrainingRules` then changes what is learned from. Pictures come from a second emulator in the same state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import HumanRendering
from numpy.typing import NDArray

from spreeze.envs.step_result import StepResult
from spreeze.envs.suites import register_suite
from spreeze.errors import UsageError
from spreeze.text import suggest

ENTRY_POINT = "ale_py.env:AtariEnv"
SEEDS = 2**31 - 2**16
"""Seeds stay below this: ale-py takes 32 bits and gives environment i the seed plus i."""
SCREEN, ENLARGED = (210, 160), 2
"""Height and width of the console's screen, and the factor at which it is drawn."""
FRAMES_PER_S = 60


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a game is played; the names and most defaults are those of ale-py."""

    frameskip: int = 4
    repeat_action_probability: float = 0.25
    """Sticky actions: the console may repeat the action before."""
    full_action_space: bool = False
    max_episode_steps: int = 27_000
    """Steps after which a game is cut off: half an hour."""
    noop_max: int = 30
    use_fire_reset: bool = False
    maxpool: bool = True
    """Whether a frame is the maximum of the last two screens."""
    img_height: int = 84
    img_width: int = 84
    grayscale: bool = True
    episodic_life: bool = True
    """Whether a lost life ends the return, in training."""
    reward_clipping: bool = True
    """Whether rewards are clipped to -1..1, in training."""

    def __str__(self) -> str:
        """In one line, for the start of a run."""
        colour = "grey" if self.grayscale else "colour"
        actions = "all actions" if self.full_action_space else "minimal actions"
        training = [
            *(["a lost life ends the return"] if self.episodic_life else []),
            *(["rewards are clipped to -1..1"] if self.reward_clipping else []),
        ]
        return (
            f"{self.frameskip} frames per step, {self.repeat_action_probability:.0%} sticky actions, {actions}, "
            f"{self.img_height} x {self.img_width} pixels, {colour}. "
            f"In training {' and '.join(training) or 'nothing else changes'}; "
            "returns and evaluations are raw scores of whole games"
        )


class TrainingRules:
    """What training makes of a step of Atari games; evaluations do not."""

    def __init__(self, protocol: Protocol, num_envs: int) -> None:
        """No life is lost yet."""
        self._protocol = protocol
        self._lives = np.zeros(num_envs, np.int64)
        self._lost = np.zeros(num_envs, np.bool_)

    def restart(self, lives: NDArray[Any]) -> None:
        """These lives are left in each game after a reset."""
        self._lives[:], self._lost[:] = lives, False

    def count(self, lives: NDArray[Any], done: NDArray[np.bool_]) -> None:
        """These lives are left in each game after a step; where `done`, the game has ended."""
        self._lost[:] = (lives < self._lives) & ~done
        self._lives[:] = lives

    def apply(self, out: StepResult) -> None:
        """Clip rewards, and end returns where a life was lost. The game goes on."""
        if self._protocol.reward_clipping:
            np.clip(out.reward, -1, 1, out=out.reward)
        if self._protocol.episodic_life and self._lost.any():
            out.terminated |= self._lost & out.valid
            out.any_done_or_invalid = True


class AtariGames(VectorEnv[Any, Any, Any]):
    """Several games of one id, stepped one after the other by one thread of ale-py's."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, env_id: str, num_envs: int = 1, **options: Any) -> None:
        """Load the game; UsageError for an option that is none of `Protocol`'s."""
        protocol = protocol_of(env_id, options)
        self.spec = _registration(env_id, protocol)
        self.num_envs = num_envs
        self.rules = TrainingRules(protocol, num_envs)
        self._games = _load(env_id, protocol, num_envs, AutoresetMode.SAME_STEP)
        self.single_observation_space = _frame_space(protocol)
        self._shape = (num_envs, *_frame_space(protocol).shape)
        self.single_action_space = self._games.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a game in every environment."""
        obs, info = self._games.reset(seed=None if seed is None else seed % SEEDS)
        self.rules.restart(info["lives"])
        return self._frames(obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all games; one that has ended starts again at once."""
        obs, reward, terminated, truncated, info = self._games.step(actions.astype(np.int64))
        done = terminated | truncated
        self.rules.count(info["lives"], done)
        last = {"final_obs": self._frames(info["final_obs"])} if done.any() else {}
        return self._frames(obs), reward, terminated, truncated, last

    def _frames(self, obs: Any) -> Any:
        """The newest frame of each game, in the form of the space."""
        return obs.reshape(self._shape)

    def close(self, **_: Any) -> None:
        """Drop the games; their thread ends with them."""
        self._games = None


class AtariGame(gym.Env[Any, Any]):
    """One game, which can be drawn. Its frames are those of `AtariGames`."""

    def __init__(self, env_id: str, render_mode: str | None = None, **options: Any) -> None:
        """Load the game; to be drawn, twice."""
        protocol = protocol_of(env_id, options)
        self.spec = _registration(env_id, protocol)
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FRAMES_PER_S / protocol.frameskip,
        }
        self._game = _load(env_id, protocol, 1, AutoresetMode.NEXT_STEP)
        self._screen: Any = None
        if render_mode is not None:
            height, width = SCREEN
            drawn = replace(protocol, grayscale=False, img_height=height, img_width=width)
            self._screen = _load(env_id, drawn, 1, AutoresetMode.NEXT_STEP)
        self._picture = np.zeros((*SCREEN, 3), np.uint8)
        self._seeded = False
        self.observation_space = _frame_space(protocol)
        self.action_space = self._game.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a game. Both emulators get the same seeds and actions, so they are always in the same state."""
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(SEEDS))
        self._seeded = True
        seed = (
            None if seed is None else seed % SEEDS
        )  # a seed loads the game again, which takes 70 ms
        obs, _ = self._game.reset(seed=seed)
        if self._screen is not None:
            self._picture = self._screen.reset(seed=seed)[0][0, 0]
        return obs.reshape(self.observation_space.shape), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game."""
        actions = np.array([action], np.int64)
        obs, reward, terminated, truncated, _ = self._game.step(actions)
        if self._screen is not None:
            self._picture = self._screen.step(actions)[0][0, 0]
        frame = obs.reshape(self.observation_space.shape)
        return frame, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        """The screen in colour, as the policy sees it: where objects flicker, the maximum of two frames."""
        return self._picture.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)

    def close(self) -> None:
        """Drop the game; its thread ends with it."""
        self._game = self._screen = None


def is_atari(target: Any) -> TypeGuard[str]:
    """Whether a target is the id of one of ale-py's games, such as `ALE/Pong-v5`."""
    name = target.rpartition(":")[2] if isinstance(target, str) else ""
    known = gym.registry.get(name)
    return bool(re.fullmatch(r"ALE/\w+-v5", name)) and (
        known is None or known.entry_point == ENTRY_POINT
    )


def make_atari(
    env_id: str, num_envs: int | None = None, render_mode: str | None = None, **options: Any
) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """Make a game, or `num_envs` of them; `gymnasium.error.UnregisteredEnv` if there is no such game."""
    if num_envs is not None:
        return AtariGames(env_id, num_envs, **options)
    if render_mode == "human":
        return HumanRendering(AtariGame(env_id, "rgb_array", **options))
    return AtariGame(env_id, render_mode, **options)


def protocol_of(env_id: str, options: Mapping[str, Any]) -> Protocol:
    """How a game is played, with the user's options; UsageError for one that is unknown or of a wrong type."""
    usual = {field.name: field.default for field in fields(Protocol)}
    problems = []
    for name, value in options.items():
        if name not in usual:
            problems.append(
                f"env {env_id}: there is no argument {name!r}.{suggest(name, usual)} Atari games take "
                f"{', '.join(usual)}. For others, give a function that makes the environment with gymnasium.make."
            )
        elif not _is_like(value, usual[name]):
            problems.append(f"env {env_id}: {name} is {value!r}; usually it is {usual[name]!r}.")
    if problems:
        raise UsageError(problems)
    return Protocol(**options)


def _is_like(value: Any, usual: Any) -> bool:
    """Whether a value has the type of the usual one, and a sensible sign."""
    if isinstance(usual, bool) or isinstance(value, bool):
        return type(value) is type(usual)
    if isinstance(usual, float):
        return isinstance(value, int | float) and 0 <= value <= 1
    return isinstance(value, int) and value >= (usual != Protocol.noop_max)


def _registration(env_id: str, protocol: Protocol) -> Registration:
    return Registration(env_id, max_episode_steps=protocol.max_episode_steps)


def _frame_space(protocol: Protocol) -> gym.spaces.Box:
    """One frame: (1, height, width) as ale-py gives it, or (height, width, 3)."""
    sides = protocol.img_height, protocol.img_width
    return gym.spaces.Box(0, 255, (1, *sides) if protocol.grayscale else (*sides, 3), np.uint8)


def _load(env_id: str, protocol: Protocol, num_envs: int, mode: AutoresetMode) -> Any:
    """ale-py's games, with raw scores and without stacks."""
    register_suite(env_id)
    from ale_py.vector_env import AtariVectorEnv

    options = {field.name: getattr(protocol, field.name) for field in fields(protocol)}
    steps = options.pop("max_episode_steps")
    return AtariVectorEnv(
        gym.spec(env_id).kwargs["game"],
        num_envs,
        **options | {"episodic_life": False, "reward_clipping": False},
        max_num_frames_per_episode=steps * protocol.frameskip,
        stack_num=1,
        autoreset_mode=mode,
        # A sampler has one core: this thread runs while ours sleeps.
        num_threads=1,
    )
