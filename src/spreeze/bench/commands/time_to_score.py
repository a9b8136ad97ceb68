"""`spreeze bench time-to-score`."""

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
from spreeze.store.curves import statistic


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the seconds from the command to a mean return of 10 episodes, for Spreeze and other frameworks in turns."""

    env: tyro.conf.Positional[str]
    """Gymnasium id."""
    target: float | None = None
    """Mean return to reach. Default: Gymnasium's threshold for the task, if there is one."""
    seconds: float = 120.0
    """Time limit of one run."""
    seeds: int = 5
    """Runs of each framework."""
    frameworks: str | None = None
    """Comma-separated: spreeze, sb3 (Stable-Baselines3), sbx. Default: all that are installed."""
    cold: bool = False
    """Give each run of Spreeze an empty cache, so that it uses nothing an earlier run compiled or measured."""
    prepared: bool = False
    """After each run of Spreeze with an empty cache, run it again with what that run has left there."""
    first_seed: int = 0
    """Seeds are counted from this one."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze bench time-to-score")
    check_seconds(args.seconds)
    if args.seeds < 1:
        raise UsageError([f"--seeds {args.seeds}: must be 1 or more."])
    from spreeze.bench.time_to_score import Task, check_frameworks, measure, usual_target

    frameworks = check_frameworks(args.frameworks)
    target = usual_target(args.env) if args.target is None else args.target
    began = time.monotonic()

    def report(line: str) -> None:
        print(line, file=sys.stderr)

    task = Task(args.env, target, args.seconds, args.cold or args.prepared, args.prepared)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    result = measure(task, seeds, frameworks, report)
    write_result("time-to-score", arguments, args.json, began, result)
    if args.json != "-":
        _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    middle_of = statistic(len(result["seeds"]))
    for column in ("framework", f"seconds ({middle_of})", "95 %", "reached", "by seed"):
        table.add_column(column)
    for name, seconds in result["wall_s"].items():
        middle, low, high = result["iqm_s"][name]
        reached = sum(value is not None for value in seconds)
        by_seed = ", ".join("-" if value is None else f"{value:.1f}" for value in seconds)
        table.add_row(
            *(name, f"{middle:.1f}", f"{low:.1f} to {high:.1f}"),
            *(f"{reached} of {len(seconds)}", by_seed),
        )
    Console(highlight=False).print(table)
