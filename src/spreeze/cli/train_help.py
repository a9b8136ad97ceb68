"""`spreeze train --help`: examples first, then every knob, one group per section of the config."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from spreeze.knobs import Knob, flag, knobs_of
from spreeze.settings.config import SECTIONS, Config

EXAMPLES = {
    "spreeze train HalfCheetah-v5 --target 5000": "trains until an evaluation returns 5,000 on average",
    "spreeze train path/file.py:MyEnv --time 10m": "your own environment, for ten minutes",
    "spreeze train --resume NAME --steps 5e6": "continues a run, up to five million env steps",
}
TITLES = {"env": "Environment", "algo": "Algorithm"}
"""Sections whose title is not their name."""
VALUES = {int: "N", float: "X", str: "TEXT", tuple[int, ...]: "N...", tuple[float, float]: "X X"}
"""How the value of a knob is written, by its type."""
WIDEST, COLUMN = 100, 30


def print_train_help(config: Config, algo: str) -> None:
    """Print the knobs with their defaults in `config`, which is that of the algorithm `algo`."""
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    console.print("usage: spreeze train ENV [--FLAG VALUE ...]\n")
    _print_rows(console, EXAMPLES.items())
    console.print(f"\n{inspect.getdoc(Config)}")
    run = knobs_of(Config)
    console.print(f"ENV: {run['env'].help}")
    _print_group(console, "Run", "", config, "What to train, for how long, and where.")
    for field, prefix in SECTIONS.items():
        section = getattr(config, field)
        title = TITLES.get(prefix, prefix.capitalize())
        if prefix == "algo":
            title += f" {algo}" if algo != "auto" else ""
        _print_group(console, title, f"{prefix}.", section, inspect.getdoc(type(section)) or "")


def _print_group(console: Console, title: str, prefix: str, config: object, what: str) -> None:
    """Print the knobs of one section."""
    console.print()
    console.print(Text.assemble((title, "bold"), f"  {what}"))
    flags = [knob for knob in knobs_of(type(config)).values() if prefix + knob.name != "env"]
    _print_rows(
        console,
        [(_usage(prefix, knob), _described(knob, getattr(config, knob.name))) for knob in flags],
    )


def _usage(prefix: str, knob: Knob) -> str:
    """The flag and what may follow it."""
    name = flag(prefix + knob.name)
    if knob.type is bool:
        return f"{name}, {flag(f'{prefix}no_{knob.name}')}"
    value = [] if knob.type is None else [VALUES.get(knob.type, "VALUE")]
    return f"{name} {'|'.join((*value, *knob.words))}"


def _described(knob: Knob, default: object) -> str:
    """What a knob does, and its default unless there is none."""
    if default is None:
        return knob.help
    if isinstance(default, bool):
        return f"{knob.help} [{'yes' if default else 'no'}]"
    values = default if isinstance(default, tuple) else (default,)
    return f"{knob.help} [{' '.join(map(str, values))}]"


def _print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print two columns; where the first one is too narrow, the second begins a line below."""
    for usage, what in rows:
        below = len(usage) > COLUMN
        lines = textwrap.wrap(what, console.width - COLUMN - 5) or [""]
        first = "" if below else f"{'':{COLUMN - len(usage)}}  {lines.pop(0)}"
        console.print(Text.assemble("  ", (usage, "cyan"), first), soft_wrap=True)
        for line in lines:
            console.print(Text(f"  {'':{COLUMN}}  {line}"), soft_wrap=True)
