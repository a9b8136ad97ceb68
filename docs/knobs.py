"""Writes the tables of knobs in the documents from the knobs themselves.

    python docs/knobs.py            write the tables
    python docs/knobs.py --check    change nothing; exit 1 if a table is not current

A table stands between `<!-- knobs: NAME -->` and `<!-- end -->`. NAME is a section of the config, `run` for
knobs without a section, `algorithms` for the list of algorithms, an algorithm for the knobs that not all have, or a
command: `eval`, `bench-learner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from typing import Any

import markers
from docstrings import field_texts
from markers import Rows

from spreeze.algos import ALGORITHMS
from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.bench.commands import BENCHMARKS
from spreeze.cli import COMMANDS
from spreeze.knobs import Knob, flag, knobs_of
from spreeze.settings.arguments import positional
from spreeze.settings.config import SECTIONS, Config

ROOT = Path(__file__).parent.parent
BLOCK = markers.block("knobs")


def shown(value: Any) -> str:
    """A value as you type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(shown, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def row(prefix: str, knob: Knob) -> list[str]:
    """One knob: flag, default, what is allowed, help."""
    name = "`ENV`" if not prefix and knob.name == "env" else f"`{flag(prefix + knob.name)}`"
    return [name, shown(knob.default), knob.allowed, knob.help]


def section_table(prefix: str, knobs: Iterable[Knob]) -> Rows:
    """The knobs of a section."""
    start = f"{prefix}." if prefix else ""
    return [["knob", "default", "allowed", "what it does"], *(row(start, knob) for knob in knobs)]


def shared_table() -> Rows:
    """The knobs that all or most algorithms have, with the defaults that differ."""
    rows = [["knob", "default", "other defaults", "allowed", "what it does"]]
    for name, knob in knobs_of(OffPolicyConfig).items():
        others: dict[str, list[str]] = {}
        for algo, entry in ALGORITHMS.items():
            own = knobs_of(entry.config).get(name)
            default = "none" if own is None else shown(own.default)
            if default != shown(knob.default):
                others.setdefault(default, []).append(algo)
        said = "; ".join(
            f"not in {', '.join(algos)}" if value == "none" else f"{value} in {', '.join(algos)}"
            for value, algos in others.items()
        )
        cells = row("algo.", knob)
        rows.append([*cells[:2], said, *cells[2:]])
    return rows


def algorithm_table(algo: str) -> Rows:
    """The knobs of one algorithm that not all have."""
    shared = knobs_of(OffPolicyConfig)
    own = [knob for name, knob in knobs_of(ALGORITHMS[algo].config).items() if name not in shared]
    return section_table("algo", own)


def algorithms_table() -> Rows:
    """The registry."""
    rows = [["algorithm", "actions", "in short"]]
    return rows + [
        [f"`{name}`", ", ".join(entry.actions), entry.summary] for name, entry in ALGORITHMS.items()
    ]


def command_tables() -> Iterator[tuple[str, Rows]]:
    """The arguments of each command but `train`, whose flags are the knobs."""
    modules = {name: f"cli.commands.{name}" for name in COMMANDS if name not in ("train", "bench")}
    modules |= {f"bench-{x}": f"bench.commands.{x.replace('-', '_')}" for x in BENCHMARKS}
    for name, module in modules.items():
        arguments = import_module(f"spreeze.{module}").Arguments
        without_flag, helps = positional(arguments), field_texts(arguments)
        rows = []
        for knob in knobs_of(arguments).values():
            place = knob.name.removesuffix("_given").upper()
            said = place if knob.name in without_flag else flag(knob.name)
            default = "" if knob.default in (None, MISSING) else shown(knob.default)
            rows.append(
                [f"`{said}`", default, knob.allowed.removesuffix(", or None"), helps[knob.name]]
            )
        yield name, [["argument", "default", "allowed", "what it does"], *rows]


def tables() -> dict[str, Rows]:
    """All tables by name."""
    config = Config()
    found = {"run": section_table("", knobs_of(Config).values())}
    for name, prefix in SECTIONS.items():
        found[prefix] = section_table(prefix, knobs_of(type(getattr(config, name))).values())
    found["algo"] = shared_table()
    found["algorithms"] = algorithms_table()
    found |= {algo: algorithm_table(algo) for algo in ALGORITHMS}
    return found | dict(command_tables())


def rewrite(text: str) -> str:
    """A document with current tables."""
    return markers.rewrite(text, "knobs", tables())


def stale(root: Path) -> dict[Path, str]:
    """The documents whose tables are not current, and what they should say."""
    return markers.stale(root, rewrite)


if __name__ == "__main__":
    markers.write(stale(ROOT), "docs/knobs.py")
