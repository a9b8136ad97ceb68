"""`spreeze runs`: lists the runs in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.text import Text

from spreeze.store.files import write_json
from spreeze.store.rundir import list_runs, run_facts
from spreeze.text import clock, plain, short

COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "run": lambda row: plain(row["name"]),
    "state": lambda row: row["state"] or "-",
    "best": lambda row: short(row["best_return"]),
    "final": lambda row: short(row["final_return"]),
    "time": lambda row: clock(row["wall_s"] or 0),
    "steps": lambda row: short(row["env_steps"]),
    "updates": lambda row: short(row["updates"]),
    "steps/s": lambda row: short(row["sample_hz"]),
    "updates/s": lambda row: short(row["update_hz"]),
}
"""Columns of the table, the most important first."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """List the runs in a folder, newest last."""

    runs: tyro.conf.Positional[str] = "runs"
    """The runs folder."""
    json: str | None = None
    """Write the table as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Read the runs and print the table."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze runs")
    facts = [run_facts(run) for run in list_runs(Path(args.runs))]
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-" and facts:
        _print_table(facts)
    elif args.json != "-":
        print(f"No runs in {args.runs}/ yet. Start one: spreeze train Pendulum-v1")
    return 0


def _print_table(facts: list[dict[str, Any]]) -> None:
    """Print the columns that fit into the terminal, or all of them into a file."""
    columns = [[title, *(form(row) for row in facts)] for title, form in COLUMNS.items()]
    widths = [max(map(len, column)) for column in columns]
    console = Console(highlight=False)
    # Names must stay whole to be copied, so columns that do not fit are dropped from the right.
    room = console.width if console.is_terminal else sum(widths) + 2 * len(widths)
    while len(widths) > 2 and sum(widths) + 2 * (len(widths) - 1) > room:
        widths.pop()
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        style = "dim" if number == 0 else ""
        console.print(Text("  ".join(cells).rstrip(), style), soft_wrap=True)
