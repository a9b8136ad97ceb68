"""`spreeze bench`: measures, always with its reference in the same run."""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from spreeze.commands import write_json
from spreeze.errors import UsageError
from spreeze.placement import cpu_name, look_around
from spreeze.screen import short

KINDS = {"learner": "updates per second, against plain modules and optimisers"}


@dataclass(frozen=True, kw_only=True)
class LearnerArguments:
    """Updates per second of SAC with two layers of 256, against plain PyTorch and the device's limits."""

    env: tyro.conf.Positional[str | None] = None
    """Environment whose sizes to use. Default: the sizes of HalfCheetah-v5, without making it."""
    algo: str = "sac"
    """Algorithm."""
    batch_size: str = "256"
    """One batch size, or several with commas: 256,8192."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:0."""
    precision: str = "auto"
    """float32, tf32 or bf16. Auto: bf16 where the device has it."""
    threads: int | None = None
    """CPU threads. Default: all cores."""
    seconds: float = 12.0
    """Time to measure, per batch size."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Run the benchmark that is named first."""
    kind = arguments[0] if arguments else "--help"
    if kind in ("-h", "--help"):
        print("Benchmarks, each against its reference in the same run:\n")
        for name, what in KINDS.items():
            print(f"  spreeze bench {name:8} {what}")
        return 0
    if kind not in KINDS:
        raise UsageError([f"there is no benchmark {kind!r}; there are {', '.join(KINDS)}."])
    return _learner(arguments[1:])


def _learner(arguments: list[str]) -> int:
    args = tyro.cli(LearnerArguments, args=arguments, prog="spreeze bench learner")
    sizes = args.batch_size.split(",")
    if not all(size.isdigit() and 0 < int(size) <= 1 << 20 for size in sizes):
        raise UsageError(
            [f"--batch-size {args.batch_size}: whole numbers from 1 to 1048576, such as 256,8192."]
        )
    from spreeze.bench.learner import HALF_CHEETAH, measure
    from spreeze.envs.targets import inspect_env

    machine = look_around()
    spec = HALF_CHEETAH if args.env is None else inspect_env(args.env, args.env)
    device = args.device if args.device != "auto" else "cuda" if machine.gpus else "cpu"
    precision = args.precision
    if precision == "auto":
        precision = "bf16" if device != "cpu" or machine.bfloat16 else "float32"
    threads = args.threads or (machine.cores if device == "cpu" else 1)
    began = time.monotonic()
    rows = []
    for size in map(int, sizes):
        print(
            f"batch {size}: compiling, then {args.seconds:.0f} s of measurement ...",
            file=sys.stderr,
        )
        rows.append(measure(spec, args.algo, size, device, precision, threads, args.seconds))
    facts = {
        "command": ["spreeze", "bench", "learner", *_without_json(arguments)],
        "machine": machine_facts(),
        "seconds": round(time.monotonic() - began, 1),
        "env": spec.id,
        "algo": args.algo,
        "device": device,
        "devices": [device],
        **rows[0],
        "results": rows,
    }
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-":
        _show(rows)
    return 0


def _without_json(arguments: list[str]) -> list[str]:
    """The command less where its result went, which is nobody's business later."""
    if "--json" in arguments:
        i = arguments.index("--json")
        return arguments[:i] + arguments[i + 2 :]
    return arguments


def machine_facts() -> dict[str, Any]:
    """What a result was measured on."""
    machine = look_around()
    return {
        "cpu": cpu_name(),
        "cores": machine.cores,
        "gpu": [gpu.name for gpu in machine.gpus],
        "python": platform.python_version(),
        **{name: version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")},
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("batch", "updates/s", "frames/s", "plain/s", "ratio", "arithmetic", "memory"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["batch_size"]),
            short(row["update_hz"]),
            short(row["update_frame_hz"]),
            short(row["eager_update_hz"]),
            f"{row['ratio']:.2f}",
            f"{100 * row['share_of_arithmetic_limit']:.1f} %",
            f"{100 * row['share_of_memory_limit']:.1f} %",
        )
    Console(highlight=False).print(table)
