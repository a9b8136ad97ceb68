"""Durations, counts and arguments as people write them: 5m, 500k, {"goal": 2}."""

from __future__ import annotations

import re
from typing import Any

from spreeze.store.files import loads

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6}
MAX_SEED, MAX_RUNS = 2**32 - 1, 1000
MAX_TRACE_S = 60.0
"""A longer trace is too large for its viewers."""


def parse_duration(text: str, option: str = "--time", most_s: float = 1e9) -> float:
    """Seconds in '90s', '5m', '2h' or a plain number."""
    value = _parse(text, SECONDS)
    if value <= 0:
        raise ValueError(f"{option} {text}: not a duration. Write it as 90s, 5m or 2h.")
    if value > most_s:
        raise ValueError(f"{option} {text}: too long, the longest is {most_s:g}s.")
    return value


def parse_count(text: str) -> int:
    """Steps in '500k', '1e6', '2M' or a plain number."""
    value = _parse(text, COUNTS)
    if not 1 <= value <= 1e15:
        raise ValueError(f"--steps {text}: not a number of steps. Write it as 500k or 1e6.")
    return round(value)


def parse_seeds(text: str, first: int = 0) -> list[int]:
    """The seeds in '1,2,3'; a number alone is how many there are, from `first` on."""
    seeds: list[int] = []
    if re.fullmatch(r"[0-9]{1,4}", text):
        seeds = list(range(first, first + int(text)))
    elif re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10})*,?", text):
        seeds = [int(word) for word in text.split(",") if word]
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    why = f" {twice} is there twice." if twice is not None else ""
    if why or not 1 <= len(seeds) <= MAX_RUNS or max(seeds) > MAX_SEED:
        raise ValueError(
            f"--seeds {text}: must be different seeds such as 1,2,3 (up to {MAX_SEED:,}), or how many there are, "
            f"such as 5 (up to {MAX_RUNS:,}).{why}"
        )
    return seeds


def parse_arguments(text: str, option: str = "--env.kwargs") -> dict[str, Any]:
    """The arguments of an environment in '{"goal": 2}'."""
    why = "not an object"
    try:
        if isinstance(found := loads(text), dict):
            return found
    except ValueError as error:
        why = str(error)
    raise ValueError(
        f"""{option} {text}: must be a JSON object, such as '{{"goal": 2}}' ({why})."""
    )


def _parse(text: str, units: dict[str, float]) -> float:
    """A number with an optional unit; -1 if the text is not one."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]?)\s*", str(text).lower())
    if match is None or match[2] not in units:
        return -1.0
    try:
        return float(match[1]) * units[match[2]]
    except ValueError:
        return -1.0
