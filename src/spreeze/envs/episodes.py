"""Whole episodes: their return, their length, and the numbers that the environment gave in `info` at their end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

MAX_NAMES, MAX_NAME = 100, 60
"""The most names of numbers that are recorded, and the longest name of one."""
MAX_SAID = 10 * MAX_NAMES
"""The most numbers of one episode that are looked at."""
MAX_NUMBER = 1e100
"""Larger ones count as infinite: their sum may be."""
SUCCESS = "is_success"
NESTED = "metrics"
"""The key in `info` whose entries count as if they were in `info` itself."""
UNTOLD = frozenset(("TimeLimit.truncated", "env_id"))
"""Numbers that wrappers and EnvPool add, and that say nothing about the task."""


Value = TypeVar("Value")


class Episode(NamedTuple):
    """A whole episode."""

    total: float
    """Its return."""
    length: int
    info: dict[str, float]
    """The single numbers in `info` at its last step, and in `info["metrics"]`."""


def numbers_in(info: Any) -> dict[str, float]:
    """The single finite numbers in `info`, truth values as 0 and 1; those of `info["metrics"]` too."""
    if not info or not isinstance(info, Mapping):
        return {}
    found: dict[str, float] = {}
    for name, value in _entries(info):
        number = _as_number(value)
        if number is not None and _is_name(name) and len(found) < MAX_SAID:
            found[name] = number
    return found


class InfoNames:
    """The names that a run records of what its environments say: the first ones, because files and page keep each for ever."""

    def __init__(self) -> None:
        """No name yet."""
        self._kept: set[str] = set()
        self.left_out: set[str] = set()
        """The names that came too late, as far as they are counted."""

    def keep(self, episodes: Iterable[Episode]) -> list[Episode]:
        """The episodes with those of their numbers that are recorded."""
        return [episode._replace(info=self._known(episode.info)) for episode in episodes]

    def _known(self, info: dict[str, float]) -> dict[str, float]:
        for name in info:
            if len(self._kept) < MAX_NAMES:
                self._kept.add(name)
            elif name not in self._kept and len(self.left_out) < MAX_SAID:
                self.left_out.add(name)
        return {name: value for name, value in info.items() if name in self._kept}


def info_of_env(info: Any, i: int, num_envs: int) -> dict[str, Any]:
    """What a vector environment's `info` says of its i-th environment; `_name` says for whom `name` is set."""
    if not isinstance(info, Mapping):
        return {}
    found: dict[str, Any] = {}
    for name, values in info.items():
        if name.startswith("_"):
            continue
        if isinstance(values, Mapping):
            found[name] = info_of_env(values, i, num_envs)
        elif isinstance(values, np.ndarray | list) and len(values) == num_envs:
            is_set = info.get(f"_{name}")
            if is_set is None or is_set[i]:
                found[name] = values[i]
    return found


def mean_info(episodes: Iterable[Episode]) -> dict[str, float]:
    """The mean of each number in `info`, over the episodes that have it."""
    return mean_of(episode.info for episode in episodes)


def mean_of(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number, over the tables that have it."""
    return {name: total / num for name, (total, num) in totals_of(tables).items()}


def totals_of(tables: Iterable[Mapping[str, float]]) -> dict[str, tuple[float, int]]:
    """The sum of each number, and how many tables have it."""
    values: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(name, []).append(value)
    return {name: (math.fsum(numbers), len(numbers)) for name, numbers in values.items()}


def rollout_metrics(info: Mapping[str, Value]) -> dict[str, Value]:
    """What is recorded of sampled episodes."""
    metrics = {f"rollout/info/{name}": value for name, value in info.items() if name != SUCCESS}
    if SUCCESS in info:  # Gymnasium's name and Stable-Baselines3's
        metrics["rollout/is_success"] = metrics["rollout/success_rate"] = info[SUCCESS]
    return metrics


def eval_metrics(info: Mapping[str, float]) -> dict[str, float]:
    """What is recorded of an evaluation."""
    metrics = {f"eval/info/{name}": value for name, value in info.items() if name != SUCCESS}
    if SUCCESS in info:
        metrics["eval/success_rate"] = info[SUCCESS]
    return metrics


def _entries(info: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for name, value in info.items():
        if name == NESTED and isinstance(value, Mapping):
            yield from value.items()
        else:
            yield name, value


def _is_name(name: Any) -> bool:
    usable = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    return usable and name not in UNTOLD and not name.startswith("_")


def _as_number(value: Any) -> float | None:
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= MAX_NUMBER else None
