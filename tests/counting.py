"""Groups of `fakes.CountEnv`, whose rows can all be checked, in every auto-reset mode."""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

import fakes
from spreeze.envs.group import EnvGroup
from spreeze.envs.inspect import inspect_env
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.stepping import Stepper
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.rows import RowFormat
from spreeze.spec import EnvSpec

GAMMA = 0.9
LENGTHS = (4, 5, 7)
"""Episode length of each environment."""
NUM_ENVS = len(LENGTHS)
MODES = ["plain", "wrapped", *AutoresetMode]


def count_envs(terminate: bool) -> list[partial[fakes.CountEnv]]:
    """Makers of the environments; environment i counts its episodes from 1000 * i + 1."""
    return [
        partial(fakes.CountEnv, length, terminate, first_episode=1000 * i)
        for i, length in enumerate(LENGTHS)
    ]


def count_stepper(mode: Any, terminate: bool) -> Stepper:
    """A stepper for them: plain environments, wrapped ones, or a vector environment."""
    makers = count_envs(terminate)
    if mode == "plain":
        return LoopStepper([make() for make in makers], makers[0])
    if mode == "wrapped":
        return LoopStepper([Autoreset(make()) for make in makers], lambda: Autoreset(makers[0]()))
    vector = partial(SyncVectorEnv, makers, autoreset_mode=mode)
    return VectorStepper(vector(), vector)


def count_group(mode: Any, terminate: bool, **form: Any) -> tuple[EnvGroup, EnvSpec]:
    """A group of them, with rows of this form, and their spec."""
    spec = inspect_env(count_envs(terminate)[0], "CountEnv")
    return EnvGroup(count_stepper(mode, terminate), spec, RowFormat(gamma=GAMMA, **form)), spec
