"""`spreeze runs`: a table of the runs in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from spreeze.commands import write_json
from spreeze.rundir import list_runs, run_facts
from spreeze.screen import clock, short


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A table of the runs in a folder, the newest last."""

    runs: tyro.conf.Positional[str] = "runs"
    """Folder of the runs."""
    json: str | None = None
    """Write the table as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Print the table."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze runs")
    facts = [run_facts(run) for run in list_runs(Path(args.runs))]
    if args.json is not None:
        write_json(facts, args.json)
    if args.json == "-":
        return 0
    if not facts:
        print(f"No runs in {args.runs}/ yet. Start one: spreeze train Pendulum-v1")
        return 0
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in (
        "run",
        "state",
        "best",
        "final",
        "steps",
        "updates",
        "time",
        "steps/s",
        "updates/s",
    ):
        table.add_column(
            column, justify="left" if column in ("run", "state") else "right", overflow="fold"
        )
    for row in facts:
        table.add_row(
            row["name"],
            row["state"],
            short(row["best_return"]),
            short(row["final_return"]),
            short(row["env_steps"]),
            short(row["updates"]),
            clock(row["wall_s"] or 0),
            short(row["sample_hz"]),
            short(row["update_hz"]),
        )
    Console(highlight=False).print(table)
    return 0
