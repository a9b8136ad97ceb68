"""The comparison of runs: a table per task, with a line for all seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from spreeze.store.curves import Estimate, describe_number, standing
from spreeze.store.run_groups import group_runs
from spreeze.store.rundir import RunDir
from spreeze.text import short

TITLES = ("settings", "runs", "best return", "final return", "time to target")
FOOTNOTE = "Interquartile means (means below four runs), and their 95 % intervals over the runs."


def compare(runs: Sequence[RunDir]) -> tuple[list[dict[str, Any]], list[RunDir]]:
    """A row for each group of runs that differ by the seed alone; and the runs without an evaluation."""
    groups, without = group_runs(runs)
    rows = [standing(group) for group in groups]
    return sorted(rows, key=lambda row: str(row["task"])), without


def print_comparison(rows: Sequence[dict[str, Any]]) -> None:
    """Print the tables."""
    console = Console(highlight=False)
    cells = [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(TITLES, *cells, strict=True)]
    task = None
    for row, words in zip(rows, cells, strict=True):
        if row["task"] != task:
            task = row["task"]
            console.print(Text(str(task), "bold"), soft_wrap=True)
            _print_line(console, TITLES, widths, "dim")
        _print_line(console, words, widths)
    if any(row["runs"] > 1 for row in rows):
        console.print(Text(FOOTNOTE, "dim"), soft_wrap=True)


def _print_line(
    console: Console, words: Sequence[str], widths: Sequence[int], style: str = ""
) -> None:
    padded = [word.ljust(width) for word, width in zip(words, widths, strict=True)]
    console.print(Text(("  " + "  ".join(padded)).rstrip(), style), soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    several = row["runs"] > 1
    best, final = _estimate(row["best"], several), _estimate(row["final"], several)
    return [row["label"], describe_number(row), best, final, _time(row)]


def _estimate(found: Estimate, several: bool) -> str:
    between = f" [{short(found.low)}, {short(found.high)}]" if several else ""
    return f"{short(found.middle)}{between}"


def _time(row: dict[str, Any]) -> str:
    """Seconds to the target, or how many seeds have reached it."""
    if row["target"] is None:
        return "-"
    if row["time_to_target"] is None:
        return f"{row['reached']} of {row['runs']} reached {short(row['target'])}"
    return f"{_estimate(row['time_to_target'], row['runs'] > 1)} s to {short(row['target'])}"
