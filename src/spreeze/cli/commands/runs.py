"""`spreeze runs`: lists the runs in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rich.console import Console
from rich.text import Text

from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments
from spreeze.store.files import write_json
from spreeze.store.rundir import list_runs, run_facts
from spreeze.text import clock, plain, short, suggest


class Column(NamedTuple):
    """A column of the table."""

    fact: str
    form: Callable[[Any], str]
    right: bool = True
    """Whether it is aligned to the right, as numbers are."""


def _text(value: Any) -> str:
    return "-" if value is None else plain(str(value))


COLUMNS = {
    "run": Column("name", _text, right=False),
    "task": Column("env", _text, right=False),
    "state": Column("state", _text, right=False),
    "algo": Column("algo", _text, right=False),
    "seed": Column("seed", _text),
    "best": Column("best_return", short),
    "final": Column("final_return", short),
    "time": Column("wall_s", lambda seconds: clock(seconds or 0)),
    "steps": Column("env_steps", short),
    "updates": Column("updates", short),
    "steps/s": Column("sample_hz", short),
    "updates/s": Column("update_hz", short),
}
"""Columns of the table by title."""
MOST_WANTED = ("run", "best", "state", "time", "task", "algo", "seed", "final", "steps", "updates")
"""The columns for which a narrow terminal has room first."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """List the runs in a folder, newest last."""

    runs: tyro.conf.Positional[str] = "runs"
    """The runs folder."""
    sort: str | None = None
    """Column to sort by, the largest last. Default: by start, the newest last."""
    compare: bool = False
    """Compare settings in place of listing runs: a table per task, with best and final return and time to the target over
    the seeds of each."""
    json: str | None = None
    """Write the table as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Read the runs and print the table."""
    args = read_arguments(Arguments, arguments, "runs")
    if args.sort is not None and args.sort not in COLUMNS:
        hint = suggest(args.sort, COLUMNS)
        raise UsageError([f"--sort {args.sort}: must be one of {', '.join(COLUMNS)}.{hint}"])
    if args.compare and args.sort is not None:
        raise UsageError(
            ["--sort orders the list of runs, and --compare shows none: give one of them."]
        )
    if args.compare:
        return _compare(args)
    facts = [run_facts(run) for run in list_runs(Path(args.runs))]
    if args.sort is not None:
        fact = COLUMNS[args.sort].fact
        facts.sort(key=lambda row: (row[fact] is not None, row[fact]))
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-" and facts:
        _print_table(facts, args.sort)
    elif args.json != "-":
        print(f"No runs in {args.runs}/ yet. Start one: spreeze train Pendulum-v1")
    return 0


def _compare(args: Arguments) -> int:
    """Print the comparison."""
    from spreeze.cli.comparison import compare, print_comparison
    from spreeze.store.curves import Estimate
    from spreeze.store.run_groups import describe_without

    rows, without = compare(list_runs(Path(args.runs)))
    if args.json is not None:
        write_json(
            [
                {
                    name: value._asdict() if isinstance(value, Estimate) else value
                    for name, value in row.items()
                }
                for row in rows
            ],
            args.json,
        )
    if args.json == "-":
        return 0
    if rows:
        print_comparison(rows)
    else:
        print(f"No run in {args.runs}/ has an evaluation yet. Start one: spreeze train Pendulum-v1")
    if rows and without:
        print(describe_without(without))
    return 0


def _print_table(facts: list[dict[str, Any]], sorted_by: str | None) -> None:
    """Print the columns that fit into the terminal, or all of them into a file."""
    columns = {
        title: [title, *(column.form(row[column.fact]) for row in facts)]
        for title, column in COLUMNS.items()
    }
    widths = {title: max(map(len, cells)) for title, cells in columns.items()}
    console = Console(highlight=False)
    titles = list(COLUMNS)
    if console.is_terminal:
        titles = _fitting(widths, console.width, sorted_by)
    for number in range(len(facts) + 1):
        cells = [
            columns[title][number].rjust(widths[title])
            if COLUMNS[title].right
            else columns[title][number].ljust(widths[title])
            for title in titles
        ]
        style = "dim" if number == 0 else ""
        console.print(Text("  ".join(cells).rstrip(), style), soft_wrap=True)
    if hidden := [title for title in COLUMNS if title not in titles]:
        more = f"Not shown: {', '.join(hidden)}. A wider terminal has room for them."
        console.print(Text(more, "dim"), soft_wrap=True)


def _fitting(widths: dict[str, int], room: int, sorted_by: str | None) -> list[str]:
    """The columns that fit, in their order. Names must stay whole to be copied, so none is cut."""
    shown = {"run"}
    used = widths["run"]
    for title in dict.fromkeys((sorted_by or "run", *MOST_WANTED, *COLUMNS)):
        if title not in shown and used + 2 + widths[title] <= room:
            shown.add(title)
            used += 2 + widths[title]
    return [title for title in COLUMNS if title in shown]
