"""A first look at the flags of `spreeze train`, before tyro parses them.

Environment, algorithm, preset, device and resumed run decide which knobs there are and what their
defaults are. tyro needs these defaults first, so they are read here; tyro then checks every flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import NamedTuple

from spreeze.algos import ALGORITHMS
from spreeze.errors import UsageError
from spreeze.knobs import flag, knobs_of
from spreeze.settings.build import READ_EARLY
from spreeze.settings.config import SECTIONS, Config

ALIASES = {"from": "start_from"}
"""Flags whose names are no names in Python, and their knobs."""
YES_OR_NO = ("true", "false", "yes", "no", "0", "1", "2")
"""What other programs take after a switch."""


class Given(NamedTuple):
    """What a command line gives."""

    env: str
    """The environment; empty if there is none."""
    flags: dict[str, str]
    """The last value of each flag by the knob's name; empty for switches."""


def scan_flags(arguments: list[str]) -> Given:
    """The environment and the flags of a command line."""
    env, flags = "", {}
    words = _Words(arguments)
    for word in words:
        if not word.startswith("--"):
            env = env or ("" if word.startswith("-") else word)
            continue
        typed, has_value, value = word[2:].partition("=")
        name = ALIASES.get(typed, typed.replace("-", "_"))
        switch = name in _switches()
        if switch and (has_value or words.next_is_yes_or_no()):
            section, dot, last = _switches()[name].rpartition(".")
            on, off = flag(f"{section}{dot}{last}"), flag(f"{section}{dot}no_{last}")
            raise UsageError([f"{flag(name)} takes no value; write {on} or {off}."])
        if not (has_value or switch):
            value = words.take_value()
        if name in READ_EARLY and not value:
            raise UsageError([f"--{typed}: which one? It needs a value."])
        flags[_switches().get(name, name)] = value
    return Given(env, flags)


class Split(NamedTuple):
    """A command line in two parts."""

    taken: list[str]
    rest: list[str]


def split_flags(arguments: Iterable[str], flags: Mapping[str, bool]) -> Split:
    """Take these flags out of a command line; each name has whether a value follows it."""
    found = Split([], [])
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if name not in flags:
            found.rest.append(word)
            continue
        found.taken.append(word)
        if flags[name] and not equals:
            found.taken.extend(islice(words, 1))
    return found


class _Words(Iterator[str]):
    """Words of a command line, one after another."""

    def __init__(self, words: list[str]) -> None:
        self._left = words[::-1]

    def __next__(self) -> str:
        if not self._left:
            raise StopIteration
        return self._left.pop()

    def next_is_yes_or_no(self) -> bool:
        """Whether the next word would be a value of a switch elsewhere."""
        return bool(self._left) and self._left[-1].lower() in YES_OR_NO

    def take_value(self) -> str:
        """The value of a flag: the next word, and further numbers after a number."""
        if not self._left or self._left[-1].startswith("--"):
            return ""
        value = self._left.pop()
        while _is_number(value) and self._left and _is_number(self._left[-1]):
            self._left.pop()
        return value


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@cache
def _switches() -> dict[str, str]:
    """Flags without a value, such as `serial` and `algo.no_layer_norm`, and the knobs they set."""
    config = Config()
    groups: list[tuple[str, type]] = [("", Config)]
    groups += [(f"{prefix}.", type(getattr(config, name))) for name, prefix in SECTIONS.items()]
    groups += [("algo.", entry.config) for entry in ALGORITHMS.values()]
    names = [
        (prefix, name)
        for prefix, kind in groups
        for name, knob in knobs_of(kind).items()
        if knob.type is bool
    ]
    return {
        f"{prefix}{no}{name}": f"{prefix}{name}" for prefix, name in names for no in ("", "no_")
    }
