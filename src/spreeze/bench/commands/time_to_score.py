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
from spreeze.settings.arguments import read_arguments
from spreeze.store.curves import statistic


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the seconds from the command to a mean return, for Spreeze and other frameworks in turns.

    All are judged alike, from outside: the policies that they save play 10 fresh episodes, while their clock is stopped.
    """

    env: tyro.conf.Positional[str]
    """Gymnasium id."""
    target: float | None = None
    """Mean return to reach. Default: Gymnasium's threshold for the task, if there is one."""
    seconds: float = 120.0
    """Time limit of one run."""
    seeds: int = 5
    """Runs of each framework."""
    first_seed: int = 0
    """Seeds are counted from this one."""
    against: str | None = None
    """Comma-separated, such as sb3,rllib; or all. Each gets a virtual environment with locked versions, and the settings that its authors publish."""
    here: bool = False
    """Use the packages of this Python for the others. For machines without a network."""
    every: float = 1.0
    """Seconds between two judgements."""
    warm: bool = False
    """Let Spreeze use what earlier runs have compiled and measured, instead of an empty cache."""
    prepared: bool = False
    """After each run of Spreeze with an empty cache, run it again with what that run has left there."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench time-to-score")
    check_seconds(args.seconds)
    problems = []
    if args.seeds < 1:
        problems.append(f"--seeds {args.seeds}: must be 1 or more.")
    if not 0.1 <= args.every <= args.seconds:
        problems.append(f"--every {args.every}: must be from 0.1 to {args.seconds:g}, the limit.")
    if args.warm and args.prepared:
        problems.append("--warm and --prepared: give only one of them.")
    if problems:
        raise UsageError(problems)
    from spreeze.bench.peers.settings import contestants
    from spreeze.bench.time_to_score import Contest, measure, usual_target
    from spreeze.bench.trial import Task
    from spreeze.envs.inspect import inspect_env

    target = usual_target(args.env) if args.target is None else args.target
    against = []
    if args.against is not None:
        discrete = inspect_env(args.env, args.env).discrete
        against = contestants(args.against, args.env, discrete)
    began = time.monotonic()

    def report(line: str) -> None:
        print(line, file=sys.stderr)

    task = Task(args.env, target, args.seconds, args.every)
    seeds = list(range(args.first_seed, args.first_seed + args.seeds))
    result = measure(Contest(task, seeds, against, not args.warm, args.prepared, args.here), report)
    write_result("time-to-score", arguments, args.json, began, result)
    if args.json != "-":
        _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    middle_of = statistic(len(result["seeds"]))
    columns = ("framework", "reached, s", "95 %", "held, s", "runs", "by seed")
    for column in columns:
        table.add_column(column)
    for name, seconds in result["wall_s"].items():
        middle, low, high = result["iqm_s"][name]
        reached = sum(value is not None for value in seconds)
        by_seed = ", ".join("-" if value is None else f"{value:.1f}" for value in seconds)
        table.add_row(
            *(name, f"{middle:.1f}", f"{low:.1f} to {high:.1f}"),
            f"{result['held_iqm_s'][name][0]:.1f}",
            *(f"{reached} of {len(seconds)}", by_seed),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"Seconds: {middle_of} over the seeds.", style="dim")
