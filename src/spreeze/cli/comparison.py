"""The comparison of runs: a table per task, with a line for all seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from spreeze.store.curves import Estimate, group_runs, read_curve, standing
from spreeze.store.rundir import RunDir
from spreeze.text import short

TITLES = ("settings", "seeds", "best return", "final return", "time to target")
FOOTNOTE = "Interquartile means (means below four seeds), and their 95 % intervals over the seeds."


def compare(runs: Sequence[RunDir]) -> tuple[list[dict[str, Any]], int]:
    """A row for each group of runs that differ by the seed alone; and how many runs have no evaluation."""
    able = [run for run in runs if len(read_curve(run))]
    rows = [standing(group) for group in group_runs(able)]
    return sorted(rows, key=lambda row: str(row["task"])), len(runs) - len(able)


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
    if any(row["seeds"] > 1 for row in rows):
        console.print(Text(FOOTNOTE, "dim"), soft_wrap=True)


def _print_line(
    console: Console, words: Sequence[str], widths: Sequence[int], style: str = ""
) -> None:
    padded = [word.ljust(width) for word, width in zip(words, widths, strict=True)]
    console.print(Text(("  " + "  ".join(padded)).rstrip(), style), soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    several = row["seeds"] > 1
    best, final = _estimate(row["best"], several), _estimate(row["final"], several)
    return [row["label"], str(row["seeds"]), best, final, _time(row)]


def _estimate(found: Estimate, several: bool) -> str:
    between = f" [{short(found.low)}, {short(found.high)}]" if several else ""
    return f"{short(found.middle)}{between}"


def _time(row: dict[str, Any]) -> str:
    """Seconds to the target, or how many seeds have reached it."""
    if row["target"] is None:
        return "-"
    if row["time_to_target"] is None:
        return f"{row['reached']} of {row['seeds']} reached {short(row['target'])}"
    return f"{_estimate(row['time_to_target'], row['seeds'] > 1)} s to {short(row['target'])}"
