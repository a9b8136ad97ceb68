"""What a knob is: a field of a config dataclass, fully described by its metadata.

`knob(...)` states default, help, bounds and effect once. The command line shows the help, the checks
apply type and bounds, the documents list both, and caches and resumed runs ask for the effect.
"""

from __future__ import annotations

import math
import typing
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal

from spreeze.text import suggest

Auto = Literal["auto"]
"""Spreeze chooses the value."""
READERS = {int: int, float: float, tuple[int, ...]: int, tuple[float, float]: float}
"""What reads a value, or the first of several, as it is typed."""


class Effect(Enum):
    """What an algorithm's knob affects, and so what must be rebuilt when it changes."""

    RATE = "rate"
    """An input of every update, also in your own algorithms: nothing is rebuilt."""
    DATA = "data"
    """It affects samplers, rows or the initial state, but the losses of your own algorithm may read it too."""
    UPDATE = "update"
    """It changes what an update computes. This is the safe assumption."""
    NETWORK = "network"
    """It decides the shape of the training state: a checkpoint with another value does not fit."""


def knob(
    default: Any,
    help: str | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    effect: Effect | None = None,
) -> Any:
    """A dataclass field that is a knob. What you leave out is inherited from the base class."""
    facts = {"help": help, "low": low, "high": high, "effect": effect}
    given = {name: value for name, value in facts.items() if value is not None}
    return field(default=default, metadata=given)


class KnobGroup:
    """Base class of configs whose subclasses change defaults: help, bounds and effect are inherited."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Complete the fields of the subclass before `dataclass` reads them."""
        super().__init_subclass__(**kwargs)
        bases = [getattr(base, "__dataclass_fields__", {}) for base in cls.__mro__[:0:-1]]
        inherited = {name: known for base in bases for name, known in base.items()}
        for name, known in inherited.items():
            if (own := vars(cls).get(name, MISSING)) is MISSING:
                continue
            if not isinstance(own, Field):
                own = field(default=own)
            merged = field(default=own.default, metadata={**known.metadata, **own.metadata})
            setattr(cls, name, merged)


@dataclass(frozen=True)
class Knob:
    """One knob of a config class."""

    name: str
    default: Any
    help: str
    effect: Effect
    type: Any
    """What a value may be besides one of `words`; None if there is nothing else."""
    words: tuple[str, ...]
    """Words that are allowed, "auto" among them."""
    optional: bool
    """Whether None is allowed."""
    low: float
    high: float

    @property
    def allowed(self) -> str:
        """What a value may be, for messages and tables."""
        between = f"from {_number(self.low)} to {_number(self.high)}"
        if math.isinf(self.low):
            between = ""
        kind = {
            int: f"a whole number {between}",
            float: f"a number {between}",
            bool: "true or false",
            tuple[int, ...]: f"one or more whole numbers {between}",
            tuple[float, float]: f"two numbers {between}, the smaller first",
        }.get(self.type, "text")
        if self.type is None:
            kind = f"one of {', '.join(self.words)}"
        words = () if self.type is None else self.words
        return ", or ".join([kind.strip(), *words, *(["None"] if self.optional else [])])

    def problem(self, flag: str, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return None
        if self.type is not None and self._fits(value):
            return None
        hint = suggest(str(value), self.words) if self.type is None else ""
        return f"{flag} {_spoken(value)}: must be {self.allowed}.{hint}"

    def problem_as_typed(self, flag: str, text: str) -> str | None:
        """What is wrong with a word on the command line, or None if it can be read as a value."""
        if text in self.words or (self.optional and text == "None"):
            return None
        try:
            READERS.get(self.type, str)(text)
        except ValueError:
            return self.problem(flag, text)
        return self.problem(flag, text) if self.type is None else None

    def _fits(self, value: Any) -> bool:
        """Whether the value is of the knob's type and within its bounds."""
        if self.type is bool:
            return isinstance(value, bool)
        if self.type in (int, float):
            return self._in_bounds(value, self.type is int)
        if self.type is str:  # it may come from a stored run, and is printed
            return isinstance(value, str) and value.isprintable()
        if self.type == tuple[str, ...]:
            return isinstance(value, tuple) and all(isinstance(x, str) for x in value)
        if self.type not in (tuple[int, ...], tuple[float, float]):
            return True
        whole = self.type == tuple[int, ...]
        if not isinstance(value, tuple | list) or not value:
            return False
        if not all(self._in_bounds(part, whole) for part in value):
            return False
        return whole or (len(value) == 2 and value[0] <= value[1])

    def _in_bounds(self, value: Any, whole: bool) -> bool:
        kinds = int if whole else int | float
        number = isinstance(value, kinds) and not isinstance(value, bool)
        return number and -math.inf < value < math.inf and self.low <= value <= self.high


def knobs_of(config: Any) -> dict[str, Knob]:
    """The knobs of a config class by field name; fields that are sections of knobs are left out."""
    return _read_knobs(config)


@cache
def _read_knobs(config: type) -> dict[str, Knob]:
    hints = typing.get_type_hints(config)
    found = {}
    for known in fields(config):
        default = known.default
        if known.default_factory is not MISSING:
            default = known.default_factory()
        if is_dataclass(default):
            continue
        kinds, words, optional = _parts(hints[known.name])
        found[known.name] = Knob(
            name=known.name,
            default=default,
            help=known.metadata.get("help", ""),
            effect=known.metadata.get("effect", Effect.UPDATE),
            type=kinds[0] if kinds else None,
            words=words,
            optional=optional,
            low=known.metadata.get("low", -math.inf),
            high=known.metadata.get("high", math.inf),
        )
    return found


def _parts(hint: Any) -> tuple[list[Any], tuple[str, ...], bool]:
    """The types in a hint, the words, and whether None is allowed."""
    union = typing.get_origin(hint) in (UnionType, typing.Union)
    members = typing.get_args(hint) if union else (hint,)
    literals = [member for member in members if typing.get_origin(member) is Literal]
    words = tuple(word for member in literals for word in typing.get_args(member))
    kinds = [member for member in members if member not in literals and member is not NoneType]
    return kinds, words, NoneType in members


def flag(name: str) -> str:
    """A knob as you type it: `learner.batch_size` is --learner.batch-size."""
    return f"--{name.replace('_', '-')}"


def _number(bound: float) -> str:
    """A bound as people write it."""
    plain = float(bound).is_integer() and abs(bound) < 1e12
    return f"{bound:,.0f}" if plain else f"{bound:g}"


def _spoken(value: Any) -> str:
    """A value as you type it."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
