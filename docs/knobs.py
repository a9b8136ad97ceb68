"""Writes the tables of knobs in the documents from the knobs themselves.

    python docs/knobs.py            write the tables
    python docs/knobs.py --check    change nothing; exit 1 if a table is not current

A table stands between `<!-- knobs: NAME -->` and `<!-- end -->`. NAME is a section of the config, `run` for
knobs without a section, `algorithms` for the list of algorithms, or an algorithm for the knobs that not all have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spreeze.algos import ALGORITHMS
from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.knobs import Knob, flag, knobs_of
from spreeze.settings.config import SECTIONS, Config

ROOT = Path(__file__).parent.parent
OPENING = "<!-- knobs:"
BLOCK = re.compile(r"(<!-- knobs: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = list[list[str]]


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


def tables() -> dict[str, Rows]:
    """All tables by name."""
    config = Config()
    found = {"run": section_table("", knobs_of(Config).values())}
    for name, prefix in SECTIONS.items():
        found[prefix] = section_table(prefix, knobs_of(type(getattr(config, name))).values())
    found["algo"] = shared_table()
    found["algorithms"] = algorithms_table()
    return found | {algo: algorithm_table(algo) for algo in ALGORITHMS}


def rewrite(text: str) -> str:
    """A document with current tables."""
    if len(BLOCK.findall(text)) != text.count(OPENING):
        sys.exit(f"A table has no name or no end: write {OPENING} NAME --> and <!-- end -->.")
    known = tables()

    def table(block: re.Match[str]) -> str:
        opening, name, end = block.groups()
        if name not in known:
            sys.exit(f"There is no table of knobs {name!r}. There are: {', '.join(known)}.")
        header, *body = known[name]
        lines = [header, ["---"] * len(header), *body]
        return opening + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + end

    return BLOCK.sub(table, text)


def stale(root: Path) -> dict[Path, str]:
    """The documents whose tables are not current, and what they should say."""
    texts = {path: path.read_text() for path in sorted((root / "docs").glob("*.md"))}
    return {path: new for path, text in texts.items() if (new := rewrite(text)) != text}


if __name__ == "__main__":
    outdated = stale(ROOT)
    if "--check" in sys.argv[1:] and outdated:
        sys.exit(f"Not current: {', '.join(path.name for path in outdated)}. Run: docs/knobs.py")
    for path, text in outdated.items():
        path.write_text(text)
