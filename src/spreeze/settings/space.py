"""The space of a sweep: the knobs that are tried, each with a range or a list of values, from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spreeze.errors import UsageError
from spreeze.knobs import Knob, flag
from spreeze.settings.build import starting_config
from spreeze.settings.config import SECTIONS, all_knobs
from spreeze.settings.defaults import why_unknown
from spreeze.text import suggest

KEYS = ("low", "high", "log", "step", "choices")
EXAMPLE = "algo.lr = { low = 1e-5, high = 1e-2, log = true }"
DIGITS = 6
"""Significant digits of a value between the ends of a range."""


@dataclass(frozen=True)
class Range:
    """All numbers between two."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False
    """Whether the knob takes whole numbers."""

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that are farthest apart."""
        return self.low, self.high

    def value(self, found: Any) -> Any:
        """The value of the knob for a number in the range: one that is short to type."""
        if self.whole:
            return int(found)
        return min(max(float(f"{found:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Choices:
    """Some values."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them."""
        return self.values

    def value(self, found: Any) -> Any:
        """The value of the knob for one that is stored as it is typed."""
        return next(value for value in self.values if typed(value) == found)


Space = Mapping[str, Range | Choices]
"""What is tried, by the names of knobs: `algo.lr`."""


def read_space(text: str, env: str, given: Mapping[str, str], file: str) -> Space:
    """The space in the text of a TOML file; UsageError with everything that is wrong in it.

    `given` are the flags that all trials have, by name: they decide which knobs there are.
    """
    try:
        entries = dict(_entries(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise UsageError([f"--space {file}: not TOML: {error}. For instance: {EXAMPLE}"]) from None
    if not entries:
        raise UsageError([f"--space {file}: it names no knob. For instance: {EXAMPLE}"])
    algos = _texts(entries["algo"]) if "algo" in entries else [given.get("algo")]
    problems: list[str] = []
    space: dict[str, Range | Choices] = {}
    for algo in algos:
        asked = {**given, **dict.fromkeys(entries, "")}
        asked.pop("algo", None)
        try:
            start = starting_config(env, asked if algo is None else asked | {"algo": algo})
        except UsageError as error:
            problems += error.problems
            continue
        knobs = all_knobs(start)
        for name, entry in entries.items():
            if name in given:
                problems.append(f"{flag(name)} is a flag of all trials, and in the space too.")
            elif name not in knobs:
                why = why_unknown(name, knobs, as_typed)
                problems.append(f"there is no knob {as_typed(name)}{why}")
            elif "." not in name and name != "algo":
                problems.append(f"{name} is the same for all trials: give it as {flag(name)}.")
            else:
                found = _dimension(name, knobs[name], entry)
                if isinstance(found, str):
                    problems.append(found)
                else:
                    space[name] = found
    if problems:
        raise UsageError([f"--space {file}: {text}" for text in dict.fromkeys(problems)])
    return space


def as_typed(name: str) -> str:
    """A knob's name as it is typed after the dashes."""
    return flag(name).removeprefix("--")


def typed(value: Any) -> str:
    """A value of a knob as it is typed: several parts have a space between them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """Values of knobs as the words of a command line."""
    words: list[str] = []
    for name, value in values.items():
        section, dot, last = name.rpartition(".")
        if isinstance(value, bool):
            words.append(flag(f"{section}{dot}{'' if value else 'no_'}{last}"))
        else:
            words += [flag(name), *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def _entries(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What a file says of each knob, by its name with underscores."""
    for key, value in table.items():
        name = prefix + key.replace("-", "_")
        is_section = isinstance(value, dict) and not value.keys() & set(KEYS)
        if is_section and (value or name in SECTIONS.values()):
            yield from _entries(value, f"{name}.")
        else:
            yield name, value


def _texts(entry: Any) -> list[str]:
    """The algorithms that are tried."""
    names = entry.get("choices") if isinstance(entry, dict) else entry
    return [str(name) for name in names] if isinstance(names, list) else [str(names)]


def _dimension(name: str, knob: Knob, entry: Any) -> Range | Choices | str:
    """What a file says of one knob, or what is wrong with it."""
    spelled = as_typed(name)
    if isinstance(entry, dict) and (unknown := entry.keys() - set(KEYS)):
        word = min(unknown)
        return f"{spelled}: {word!r} is none of {', '.join(KEYS)}.{suggest(word, KEYS)}"
    if isinstance(entry, dict) and "choices" in entry:
        if len(entry) > 1:
            return f"{spelled}: choices are given alone, without {', '.join(sorted(entry.keys() - {'choices'}))}."
        entry = entry["choices"]
    if isinstance(entry, dict):
        return _range(spelled, knob, entry)
    if not isinstance(entry, list):
        return f"{spelled}: one value is no choice. Give it as {' '.join(as_flags({name: entry}))}, or as a list."
    return _choices(spelled, knob, entry)


def _choices(spelled: str, knob: Knob, entry: list[Any]) -> Choices | str:
    """A list of values, each checked."""
    parts = [tuple(value) if isinstance(value, list) else value for value in entry]
    values = tuple(_number(knob, value) for value in parts)
    if problem := next(filter(None, (knob.problem(spelled, value) for value in values)), None):
        return problem
    if len(set(map(typed, values))) < max(2, len(values)):
        return f"{spelled} {list(map(typed, values))}: must be two or more different values."
    return Choices(values)


def _range(spelled: str, knob: Knob, entry: Mapping[str, Any]) -> Range | str:
    """Two ends, each checked."""
    if knob.type not in (int, float):
        return f"{spelled}: it has no range. Give a list of values; each must be {knob.allowed}."
    if missing := [key for key in ("low", "high") if key not in entry]:
        return f"{spelled}: {' and '.join(missing)} is missing. For instance: {EXAMPLE}"
    low, high, step = (_number(knob, entry.get(key)) for key in ("low", "high", "step"))
    log = entry.get("log", False)
    for value in (low, high):
        if problem := knob.problem(spelled, value):
            return problem
    if isinstance(low, str) or isinstance(high, str) or low >= high:
        return f"{spelled}: low {low} must be a number below high {high}."
    if not isinstance(log, bool) or (log and low <= 0):
        return f"{spelled}: log is true or false, and with true, low must be above 0."
    in_steps = isinstance(step, int | float) and 0 < step <= high - low and not log
    if step is not None and not in_steps:
        return f"{spelled}: step must be a number above 0, up to {high - low:g}, without log."
    return Range(low, high, log, step, knob.type is int)


def _number(knob: Knob, value: Any) -> Any:
    """A whole number that is written as 1e3, if the knob takes whole numbers."""
    whole = knob.type is int and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value
