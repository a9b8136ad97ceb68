"""`spreeze algos`: lists the algorithms."""

from __future__ import annotations

from dataclasses import dataclass

from spreeze.algos import ALGORITHMS
from spreeze.settings.arguments import read_arguments
from spreeze.store.files import write_json


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """List the algorithms and the spaces that they support."""

    json: str | None = None
    """Write the list as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Print the list."""
    args = read_arguments(Arguments, arguments, "algos")
    facts = {name: {"summary": e.summary, "spaces": e.spaces} for name, e in ALGORITHMS.items()}
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-":
        for name, entry in facts.items():
            print(f"{name:8} {entry['summary']} ({entry['spaces']})")
    return 0
