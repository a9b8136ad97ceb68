"""Tables in the documents that programs write: between `<!-- KIND: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Rows = list[list[str]]
"""A table: its header, then its body."""


def block(kind: str) -> re.Pattern[str]:
    """What finds the tables of a kind; the second group is their name."""
    return re.compile(rf"(<!-- {kind}: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rewrite(text: str, kind: str, tables: Mapping[str, Rows]) -> str:
    """A document with current tables."""
    opening = f"<!-- {kind}:"
    if len(block(kind).findall(text)) != text.count(opening):
        sys.exit(f"A table has no name or no end: write {opening} NAME --> and <!-- end -->.")

    def table(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name not in tables:
            sys.exit(f"There is no table of {kind} {name!r}. There are: {', '.join(tables)}.")
        header, *body = tables[name]
        lines = [header, ["---"] * len(header), *body]
        return start + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + end

    return block(kind).sub(table, text)


def stale(root: Path, rewritten: Callable[[str], str]) -> dict[Path, str]:
    """The documents whose tables are not current, and what they should say."""
    texts = {path: path.read_text() for path in sorted((root / "docs").glob("*.md"))}
    return {path: new for path, text in texts.items() if (new := rewritten(text)) != text}


def write(outdated: Mapping[Path, str], program: str) -> None:
    """Write what is not current, or exit with its names if the program only checks."""
    if "--check" in sys.argv[1:] and outdated:
        sys.exit(f"Not current: {', '.join(path.name for path in outdated)}. Run: {program}")
    for path, text in outdated.items():
        path.write_text(text)
