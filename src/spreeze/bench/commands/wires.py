"""`spreeze bench wires`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from spreeze.bench.result import check_seconds, write_result
from spreeze.settings.arguments import read_arguments
from spreeze.text import short


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure shared memory against queue, pipe and file: rows per second, and how old weights are when they are read."""

    seconds: float = 12.0
    """Time to measure."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench wires")
    check_seconds(args.seconds)
    from spreeze.bench import HALF_CHEETAH
    from spreeze.bench.wires import measure
    from spreeze.rows import row_layout

    print(f"shared memory, queue, pipe and file, {args.seconds:.0f} s ...", file=sys.stderr)
    began = time.monotonic()
    result = measure(row_layout(HALF_CHEETAH), args.seconds)
    write_result("wires", arguments, args.json, began, result)
    if args.json != "-":
        rows, bytes_hz = short(result["rows_hz"]), result["bytes_hz"] / 1e6
        print(
            f"experience: {rows} rows/s ({bytes_hz:,.0f} MB/s); queue "
            f"{short(result['queue_rows_hz'])}, pipe {short(result['pipe_rows_hz'])}, "
            f"files {short(result['file_rows_hz'])}\n"
            f"weights: {result['latency_us']:,.0f} us from publishing to reading; queue "
            f"{result['queue_latency_us']:,.0f}, pipe {result['pipe_latency_us']:,.0f}, "
            f"file {result['file_latency_us']:,.0f}\n"
            f"torn reads: {result['torn_reads']}"
        )
    return 0
