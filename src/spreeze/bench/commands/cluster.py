"""`spreeze bench cluster`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass

import tyro

from spreeze.bench.result import check_seconds, write_result
from spreeze.errors import UsageError
from spreeze.text import short

MOST_NODES = 64


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure Ray's object store against a lane, and samplers on several Ray nodes of this machine."""

    seconds: float = 60.0
    """Time to measure; nodes take some more to start."""
    nodes: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of nodes, with one sampler each."""
    step_ms: float = 5.0
    """How long the environment of these samplers sleeps in each step."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze bench cluster")
    check_seconds(args.seconds)
    if wrong := [num for num in args.nodes if not 1 <= num <= MOST_NODES]:
        raise UsageError([f"--nodes {wrong[0]}: must be from 1 to {MOST_NODES}."])
    if not 0.1 <= args.step_ms <= 10_000:
        raise UsageError([f"--step-ms {args.step_ms}: must be from 0.1 to 10,000."])
    from spreeze.settings.cluster import ray_problem

    if (problem := ray_problem(os.environ)) is not None:
        raise UsageError([problem])
    from spreeze.algos import find_algorithm
    from spreeze.bench import HALF_CHEETAH
    from spreeze.bench.cluster import measure_scaling, measure_way
    from spreeze.rows import row_layout

    print("the way through the object store, and a lane ...", file=sys.stderr)
    began, share = time.monotonic(), args.seconds / (2 + len(args.nodes))
    size = (
        find_algorithm("sac").config(hidden=(256, 256)).policy_form(HALF_CHEETAH).size(HALF_CHEETAH)
    )
    with redirect_stdout(sys.stderr):  # the relay says which nodes sample
        way = measure_way(row_layout(HALF_CHEETAH), size, 2 * share)
        print(f"nodes {', '.join(map(str, args.nodes))} ...")
        scaling = measure_scaling(list(args.nodes), args.step_ms, share)
    result = {**way, "step_ms": args.step_ms, "scaling": scaling}
    write_result("cluster", arguments, args.json, began, result)
    if args.json != "-":
        row_ns = way["pack_row_ns"] + way["check_row_ns"] + way["write_row_ns"]
        print(
            f"object store: {short(way['rows_hz'])} rows/s, {way['block_ms']:.1f} ms per block of "
            f"{way['block_rows']:,} rows; a lane: {short(way['lane_rows_hz'])} rows/s\n"
            f"an empty call: {way['call_ms']:.2f} ms; a policy of {way['policy_bytes']:,} bytes: "
            f"{way['policy_ms']:.2f} ms; numpy per row: {row_ns:.0f} ns"
        )
        for found in scaling:
            print(
                f"{found['nodes']:3} nodes: {found['sample_hz']:,.0f} steps/s of at most "
                f"{found['most_hz']:,.0f}; the relay takes {100 * found['relay_share']:.0f} % of a core"
            )
    return 0
