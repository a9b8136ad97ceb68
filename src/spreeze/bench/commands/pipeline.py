"""`spreeze bench pipeline`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import tyro

from spreeze.bench.result import checked, or_auto, write_result
from spreeze.settings.arguments import read_arguments
from spreeze.settings.defaults import config_with, default_config
from spreeze.text import short


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the env steps and updates per second of a real run, against each while the other side is stopped."""

    env: tyro.conf.Positional[str]
    """Gymnasium id, module:Id, or package.module:EnvClass."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:0."""
    batch_size: int | None = None
    """Transitions per update. Default: as in a run."""
    processes: int | None = None
    """Number of samplers. Default: as in a run."""
    seconds: float = 12.0
    """Time to measure, after the run has begun to learn."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench pipeline")
    from spreeze.bench.pipeline import measure

    knobs = {
        "device": args.device,
        "learner.batch_size": or_auto(args.batch_size),
        "sampler.processes": or_auto(args.processes),
    }
    print(
        f"{args.env}: a run with one side stopped in turns, about {args.seconds:.0f} s once it learns ...",
        file=sys.stderr,
    )
    began = time.monotonic()
    config = checked(config_with(default_config(env=args.env), knobs), args.seconds)
    result = measure(config, args.seconds)
    write_result("pipeline", arguments, args.json, began, result)
    if args.json != "-":
        for name, what in (("sample", "env steps"), ("update", "updates")):
            print(
                f"{short(result[f'{name}_hz'])} {what}/s together, "
                f"{100 * result[f'{name}_ratio']:.0f} % of {short(result[f'{name}_alone_hz'])} alone"
            )
    return 0
