"""`spreeze completion`: prints a script that lets the shell complete commands, flags and their values.

The scripts are plain text: completing starts no Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from shlex import quote
from typing import Any, Literal, NamedTuple

import tyro

from spreeze.algos import ALGORITHMS
from spreeze.bench.commands import BENCHMARKS
from spreeze.cli import COMMANDS
from spreeze.knobs import knobs_of
from spreeze.settings.arguments import positional, read_arguments
from spreeze.settings.config import SECTIONS, Config
from spreeze.settings.presets import PRESETS

WORDS = {
    "algo": ("auto", *ALGORITHMS),
    "checkpoint": ("best", "last"),
    "device": ("auto", "cpu", "cuda", "cuda:0"),
    "preset": ("none", *PRESETS),
}
"""Common values of flags that also take others."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Print a script for your shell: it completes commands, flags and their values."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell. Where to put the script: docs/cli.md."""


class Flag(NamedTuple):
    """A flag as it is completed."""

    name: str
    values: tuple[str, ...] | None = ()
    """Values to choose from; empty: anything, such as a file; None: it takes no value."""
    help: str = ""


Table = dict[str, list[Flag]]
"""Flags by command: `train`, `bench learner`."""


def main(arguments: list[str], _started_s: float) -> int:
    """Print the script."""
    args = read_arguments(Arguments, arguments, "completion")
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](_table()))
    return 0


def _table() -> Table:
    """All commands and their flags."""
    table: Table = {}
    for name in COMMANDS:
        if name == "train":
            table[name] = _train_flags()
        elif name != "bench":
            table[name] = _flags(import_module(f"spreeze.cli.commands.{name}").Arguments)
    own = {flag.name for flag in table["sweep"]}
    table["sweep"] += [flag for flag in table["train"] if flag.name not in own]
    for name in BENCHMARKS:
        module = import_module(f"spreeze.bench.commands.{name.replace('-', '_')}")
        table[f"bench {name}"] = _flags(module.Arguments)
    return table


def _train_flags() -> list[Flag]:
    """The knobs, those of all algorithms included."""
    config = Config()
    flags = [flag for flag in _flags(Config) if flag.name != "--env"]
    for field, prefix in SECTIONS.items():
        kinds = [type(getattr(config, field))]
        if prefix == "algo":
            kinds += [entry.config for entry in ALGORITHMS.values()]
        by_name = {flag.name: flag for kind in kinds for flag in _flags(kind, f"{prefix}.")}
        flags += by_name.values()
    return flags


def _flags(kind: type[Any], prefix: str = "") -> list[Flag]:
    """The flags that a dataclass describes."""
    found = [Flag("--help", None)] if not prefix else []
    without_flag = positional(kind)
    for name, knob in knobs_of(kind).items():
        if name in without_flag:
            continue
        forms = ("", "no_") if knob.type is bool else ("",)
        values = None if knob.type is bool else knob.words or WORDS.get(prefix + name, ())
        found += [
            Flag(f"--{prefix}{form}{name}".replace("_", "-"), values, knob.help) for form in forms
        ]
    return found


def _next_words() -> dict[str, Iterable[str]]:
    """What may come first, and what after `bench` and `completion`."""
    return {"": COMMANDS, "bench": BENCHMARKS, "completion": ("bash", "zsh", "fish")}


def bash(table: Table) -> str:
    """A function for bash's `complete`."""
    cases = [
        f"    {quote(f'{command} {flag.name}')}) words={quote(' '.join(flag.values))} ;;"
        for command, flags in table.items()
        for flag in flags
        if flag.values is not None
    ]
    words = {command: [flag.name for flag in flags] for command, flags in table.items()}
    for command, following in _next_words().items():
        words[command] = [*following, *words.get(command, ())]
    defaults = [
        f"      {quote(command)}) words={quote(' '.join(known))} ;;"
        for command, known in words.items()
    ]
    return "\n".join(
        [
            "# Completes spreeze in bash.",
            "_spreeze() {",
            '  local command="" words="" current=${COMP_WORDS[COMP_CWORD]}',
            "  ((COMP_CWORD > 1)) && command=${COMP_WORDS[1]}",
            '  [[ $command == bench ]] && ((COMP_CWORD > 2)) && command="bench ${COMP_WORDS[2]}"',
            '  case "$command ${COMP_WORDS[COMP_CWORD - 1]}" in',
            *cases,
            '    *) case "$command" in',
            *defaults,
            "    esac ;;",
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _spreeze spreeze",
        ]
    )


def zsh(table: Table) -> str:
    """A function for zsh's completion system, autoloaded or sourced."""

    def described(text: str) -> str:
        return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)

    def argument(flag: Flag) -> str:
        values = "" if flag.values is None else ":value:_files"
        if flag.values:
            values = f":value:({' '.join(map(described, flag.values))})"
        return quote(f"{flag.name}[{described(flag.help)}]{values}")

    commands = " ".join(quote(f"{name}:{described(what)}") for name, what in COMMANDS.items())
    cases = [
        f"    {quote(command)}) _arguments {' '.join(map(argument, flags))} '*:file:_files' ;;"
        for command, flags in table.items()
    ]
    return "\n".join(
        [
            "#compdef spreeze",
            "# Completes spreeze in zsh.",
            "_spreeze() {",
            "  local command=$words[2]",
            f"  local -a commands=({commands})",
            "  if ((CURRENT == 2)); then _describe command commands; return; fi",
            "  if [[ $command == bench ]]; then",
            f"    if ((CURRENT == 3)); then compadd {' '.join(BENCHMARKS)}; return; fi",
            '    command="bench $words[3]"',
            "  fi",
            "  if [[ $command == completion ]]; then compadd bash zsh fish; return; fi",
            "  case $command in",
            *cases,
            "  esac",
            "}",
            'if [[ $funcstack[1] == _spreeze ]]; then _spreeze "$@"; else compdef _spreeze spreeze; fi',
        ]
    )


def fish(table: Table) -> str:
    """Fish's `complete` commands."""

    def text(words: str) -> str:
        return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["# Completes spreeze in fish."]
    lines += [
        f"complete -c spreeze -n __fish_use_subcommand -f -a {name} -d {text(what)}"
        for name, what in COMMANDS.items()
    ]
    for command, following in _next_words().items():
        if command:
            given = text(
                f"__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from {' '.join(following)}"
            )
            lines.append(f"complete -c spreeze -n {given} -f -a {text(' '.join(following))}")
    for command, flags in table.items():
        given = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        for flag in flags:
            takes = ""
            if flag.values is not None:
                takes = f" -x -a {text(' '.join(flag.values))}" if flag.values else " -r -F"
            about = f" -d {text(flag.help)}" if flag.help else ""
            lines.append(
                f"complete -c spreeze -n {text(given)} -l {flag.name.removeprefix('--')}{takes}{about}"
            )
    return "\n".join(lines)
