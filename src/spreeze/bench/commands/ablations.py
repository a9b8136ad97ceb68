"""`spreeze bench ablations`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from spreeze.bench.commands.learner import MAX_BATCH
from spreeze.bench.result import (
    check_seconds,
    find_algorithm_for,
    spec_of,
    whole_numbers,
    write_result,
)
from spreeze.machine.facts import detect_machine
from spreeze.settings.arguments import read_arguments
from spreeze.text import short

MAX_SAMPLERS = 1024
TRANSPORTS = {"shared memory": "", "queue": "queue_", "pipe": "pipe_", "file": "file_"}
"""What a result of `spreeze bench wires` has in front of the names of their figures."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure batch sizes, numbers of samplers, transports, and one device against two, each by its benchmark; and a run with all its parts.

    About four minutes on two cores.
    """

    env: tyro.conf.Positional[str]
    """Gymnasium id, module:Id, or package.module:EnvClass."""
    algo: str | None = None
    """Algorithm of the learner. Default: sac, or dqn for discrete actions."""
    batch_size: str | None = None
    """Batch sizes, such as 256,8192. Default: 256,1024,8192, with a GPU 32768 too."""
    samplers: str | None = None
    """Numbers of samplers, such as 1,2. Default: powers of two up to twice the cores."""
    run_only: bool = False
    """Measure only the run."""
    seconds: float = 12.0
    """Time of each measurement; of the run, twice as much."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench ablations")
    check_seconds(args.seconds)
    given: dict[str, Any] = {}
    if args.batch_size is not None:
        given["batch_sizes"] = whole_numbers("--batch-size", args.batch_size, MAX_BATCH)
    if args.samplers is not None:
        given["samplers"] = whole_numbers("--samplers", args.samplers, MAX_SAMPLERS)
    from spreeze.bench.ablations import measure, measure_run, parts_of

    def report(line: str) -> None:
        print(line, file=sys.stderr)

    began = time.monotonic()
    if args.run_only:
        result = measure_run(args.env, args.seconds, report)
    else:
        spec = spec_of(args.env)
        algo = args.algo or ("dqn" if spec.discrete else "sac")
        entry = find_algorithm_for(algo, spec)
        parts = parts_of(detect_machine(), args.env, algo, entry.config.has_actor)
        result = measure(replace(parts, **given), args.seconds, report)
    write_result("ablations", arguments, args.json, began, result)
    if args.json != "-":
        _show_run(result["run"])
        if not args.run_only:
            _show(result)
    return 0


def _show_run(run: dict[str, Any]) -> None:
    print(
        f"a run: {short(run['sample_hz'])} env steps/s, {short(run['update_hz'])} updates/s, "
        f"{short(run['transition_hz'])} transitions/s through them; CPU {run['cpu_percent']:.0f} % of a core\n"
    )


def _show(result: dict[str, Any]) -> None:
    wires, pair = result["transport"], result["devices"]
    _table(
        ("batch", "updates/s", "frames/s"),
        (
            (str(row["batch_size"]), short(row["update_hz"]), short(row["update_frame_hz"]))
            for row in result["batch_size"]["results"]
        ),
    )
    _table(
        ("samplers", "env steps/s"),
        ((str(row["processes"]), short(row["sample_hz"])) for row in result["samplers"]),
    )
    _table(
        ("transport", "rows/s", "age of weights, us"),
        (
            (name, short(wires[f"{key}rows_hz"]), f"{wires[f'{key}latency_us']:.0f}")
            for name, key in TRANSPORTS.items()
        ),
    )
    if pair is not None:
        _table(
            ("batch", f"updates/s on {pair['device']}", f"on {','.join(pair['devices'])}"),
            (
                (
                    str(row["batch_size"]),
                    short(row["one_device"]["update_hz"]),
                    short(row["two_devices"]["update_hz"]),
                )
                for row in pair["results"]
            ),
        )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in header:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
    print()
