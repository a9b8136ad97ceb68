"""The arguments of all commands but `train`: what tyro would refuse is refused in our words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import MISSING
from typing import TypeVar, get_type_hints

import tyro

from spreeze.errors import UsageError
from spreeze.knobs import Knob, flag, knobs_of
from spreeze.text import suggest

POSITIONAL = tyro.conf.Positional[str].__metadata__[0]  # type: ignore[attr-defined]
Arguments = TypeVar("Arguments")


def read_arguments(kind: type[Arguments], words: list[str], command: str) -> Arguments:
    """What was typed after `spreeze COMMAND`; UsageError if something of it does not exist or cannot be read."""
    asks_for_help = {"-h", "--help"} & set(words)
    if not asks_for_help and (problems := list(_problems(kind, words, command))):
        raise UsageError(problems)
    return tyro.cli(kind, args=words, prog=f"spreeze {command}")


def positional(kind: type) -> list[str]:
    """The arguments of a command that have no flag."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        name for name in knobs_of(kind) if POSITIONAL in getattr(hints[name], "__metadata__", ())
    ]


def not_understood(word: str, command: str) -> str:
    """The message for a word that a command has no use for."""
    what = "there is no such flag" if word.startswith("-") else "one word too many"
    return f"{word}: {what}. See: spreeze {command} --help"


def _problems(kind: type, typed: list[str], command: str) -> Iterator[str]:
    """Everything that is wrong with the words after a command."""
    knobs = knobs_of(kind)
    places = [knobs[name] for name in positional(kind)]
    flags = {name: knob for name, knob in knobs.items() if knob not in places}
    words, loose = deque(typed), []
    while words:
        word = words.popleft()
        if word.startswith("--"):
            yield from _flag_problems(flags, word, words)
        elif word.startswith("-"):
            yield not_understood(word, command)
        else:
            loose.append(word)
    if len(places) == 1 and places[0].type == tuple[str, ...]:
        return
    for knob, word in zip(places, loose, strict=False):
        yield from filter(None, [knob.problem_as_typed(knob.name.upper(), word)])
    for knob in places[len(loose) :]:
        if knob.default is MISSING:
            yield _missing(knob, command)
    for word in loose[len(places) :]:
        yield not_understood(word, command)


def _flag_problems(flags: dict[str, Knob], word: str, words: deque[str]) -> Iterator[str]:
    """What is wrong with a flag and its value, which is taken from the words that follow it."""
    name, has_value, value = word[2:].partition("=")
    name = name.replace("-", "_")
    switch = flags.get(name.removeprefix("no_"))
    if switch is not None and switch.type is bool:
        return
    knob = flags.get(name)
    several = knob is not None and knob.type == tuple[str, ...]
    while words and not words[0].startswith("--") and (several or not (has_value or value)):
        value = words.popleft()
    if knob is None:
        yield f"{flag(name)}: there is no such flag.{suggest(flag(name), map(flag, flags))}"
    elif not value:
        yield f"{flag(name)}: a value is missing; it must be {knob.allowed}."
    else:
        yield from filter(None, [knob.problem_as_typed(flag(name), value)])


def _missing(knob: Knob, command: str) -> str:
    """The message for an argument that a command needs."""
    if knob.name == "env":
        return f"which environment? For instance: spreeze {command} Pendulum-v1"
    return f"which {knob.name}? It must be {knob.allowed}."
