"""`spreeze bench start-up`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from spreeze.bench.result import check_seconds, write_result
from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure when a run reaches each milestone, from the command to the first finished update."""

    env: tyro.conf.Positional[str]
    """Gymnasium id."""
    runs: int = 5
    """Runs; the medians are shown."""
    seconds: float = 4.0
    """Time of one run."""
    prepared: bool = False
    """Let all runs use what an earlier one has compiled. Without it, each starts with an empty cache."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench start-up")
    check_seconds(args.seconds)
    if args.runs < 1:
        raise UsageError([f"--runs {args.runs}: must be 1 or more."])
    from spreeze.bench.start_up import measure

    began = time.monotonic()

    def report(line: str) -> None:
        print(line, file=sys.stderr)

    result = measure(args.env, args.runs, args.seconds, args.prepared, report)
    write_result("start-up", arguments, args.json, began, result)
    if args.json != "-":
        _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("milestone", "after, s"):
        table.add_column(column)
    for name, seconds in result["median_s"].items():
        table.add_row(name.replace("_", " "), f"{seconds:.2f}")
    Console(highlight=False).print(table)
