"""`spreeze bench ratios`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from spreeze.bench.result import write_result
from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure Spreeze's speed as ratios to the other benchmarks' references, about four minutes. Exit 1 if one is more than 10 % below a kept one."""

    kept: str | None = None
    """Earlier result to compare with."""
    turns: int = 1
    """Measure this often and take the medians, for a result to keep. Not together with --kept."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench ratios")
    if args.turns < 1:
        raise UsageError([f"--turns {args.turns}: must be 1 or more."])
    if args.kept is not None and args.turns != 1:
        raise UsageError(["--turns and --kept: give only one of them."])
    from spreeze.bench.ratios import RATIOS, compare, lost, measure, read_kept

    def report(line: str) -> None:
        print(line, file=sys.stderr)

    began = time.monotonic()
    kept = {} if args.kept is None else read_kept(args.kept)
    now = compare(kept, report) if kept else measure(RATIOS, args.turns, report)
    fallen = lost(kept, now)
    write_result("ratios", arguments, args.json, began, {"ratios": now, "lost": fallen})
    if args.json != "-":
        _show(kept, now, fallen)
    return 1 if fallen else 0


def _show(kept: dict[str, float], now: dict[str, float], fallen: list[str]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("ratio")
    for column in ("kept", "now", "change"):
        table.add_column(column, justify="right")
    for name, value in now.items():
        before = kept.get(name)
        change = "" if before is None else f"{100 * (value / before - 1):+.0f} %"
        shown = "" if before is None else f"{before:.3g}"
        table.add_row(name, shown, f"{value:.3g}", change, style="red" if name in fallen else None)
    console = Console(highlight=False)
    console.print(table)
    if fallen:
        console.print(f"Slower by more than 10 %, measured twice: {'; '.join(fallen)}.")
