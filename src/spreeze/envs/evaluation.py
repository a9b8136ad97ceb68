"""Whole episodes of a policy, and what they returned."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.episodes import mean_info
from spreeze.envs.guard import EnvGuard
from spreeze.envs.stepping import make_stepper, play_to_end
from spreeze.envs.targets import EnvTarget
from spreeze.errors import UsageError
from spreeze.spec import EnvSpec, Floats

MOST_ENVS, MOST_EPISODES = 10, 100_000


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation, without exploration noise."""

    returns: list[float]
    """The return of each whole episode."""
    lengths: list[int]
    """The steps of each."""
    broken: int = 0
    """Episodes that gave NaN or infinity, or raised; they are not among the others."""
    info: dict[str, float] = field(default_factory=dict)
    """The means of the numbers that the environment gave in `info` at the ends of the episodes."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def min(self) -> float:
        """The lowest return."""
        return min(self.returns)

    @property
    def max(self) -> float:
        """The highest return."""
        return max(self.returns)

    @property
    def mean_length(self) -> float:
        """Mean number of steps."""
        return float(np.mean(self.lengths))

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.std:.4g} over {len(self.returns)} episodes"


def evaluate_policy(
    target: EnvTarget,
    spec: EnvSpec,
    act: Callable[[Floats], NDArray[Any]],
    episodes: int,
    seed: int,
) -> Evaluation:
    """Play this many episodes; UsageError if not one of them is whole."""
    guard = EnvGuard(report=_print_error)
    stepper = make_stepper(target, min(episodes, MOST_ENVS), guard)
    try:
        played = play_to_end(stepper, spec, act, episodes, seed)
    finally:
        stepper.close()
    whole = [episode for episode in played if not np.isnan(episode.total)]
    if not whole:
        raise UsageError(
            [f"{spec.id} gave NaN or infinity in every episode, so there is no return to report."]
        )
    returns, lengths, _ = zip(*whole, strict=True)
    broken = len(played) - len(whole)
    return Evaluation(list(returns), list(lengths), broken, mean_info(whole))


def _print_error(text: str) -> None:
    """Standard error: a command may write its result to standard output."""
    sys.stderr.write(f"{text}\n")


def check_episodes(name: str, episodes: int) -> None:
    """UsageError unless so many episodes can be played; `name` is what the user calls the number."""
    if type(episodes) is not int or not 1 <= episodes <= MOST_EPISODES:
        raise UsageError([f"{name} {episodes}: must be a whole number from 1 to {MOST_EPISODES}."])
