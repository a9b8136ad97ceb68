"""`spreeze bench learner`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from spreeze.bench.result import find_algorithm_for, spec_of, whole_numbers, write_result
from spreeze.errors import UsageError
from spreeze.images import EncoderKind
from spreeze.machine.facts import Machine, detect_machine
from spreeze.settings.arguments import read_arguments
from spreeze.settings.auto.images import with_stack
from spreeze.settings.checks import check_devices
from spreeze.text import short

MAX_BATCH = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the updates per second with two layers of 256, against plain PyTorch and the device's limits."""

    env: tyro.conf.Positional[str | None] = None
    """Environment whose sizes to use. Default: those of HalfCheetah-v5, which is not made."""
    algo: str = "sac"
    """Algorithm."""
    batch_size: str = "256"
    """One batch size or several, such as 256,8192."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:0."""
    devices: str | None = None
    """Two devices, such as cuda:0,cuda:1: critic on the first and actor on the second, against the first alone."""
    precision: str = "auto"
    """float32, tf32 or bf16. Auto: bf16 if the device supports it."""
    threads: int | None = None
    """CPU threads. Default: all cores."""
    encoder: EncoderKind = "nature"
    """With images: what reads them."""
    encoder_width: int = 1
    """Factor on the encoder's channels."""
    seconds: float = 12.0
    """Time to measure each batch size."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench learner")
    sizes = whole_numbers("--batch-size", args.batch_size, MAX_BATCH)
    from spreeze.bench import HALF_CHEETAH
    from spreeze.bench.learner import default_key, measure
    from spreeze.learning.compiled.key import ours_is_fastest

    machine = detect_machine()
    spec = HALF_CHEETAH if args.env is None else with_stack(spec_of(args.env), "auto")
    found = find_algorithm_for(args.algo, spec)
    device, second = _devices(args, machine)
    precision = args.precision
    if precision == "auto":
        precision = "bf16" if device != "cpu" or machine.bfloat16 else "float32"
    threads = args.threads or (machine.cores if device == "cpu" else 1)
    began = time.monotonic()
    rows = []
    for size in sizes:
        print(
            f"batch {size}: compiling, then {args.seconds:.0f} s of measurement ...",
            file=sys.stderr,
        )
        key = default_key(spec, args.algo, size, device, precision, threads)
        if spec.images:
            encoder = {"encoder": args.encoder, "encoder_width": args.encoder_width}
            hyper = key.hyper | encoder
            ours = ours_is_fastest(found.config(**hyper), spec, device)
            key = replace(key, hyper=hyper, fused=ours)
        rows.append(measure(key, args.seconds))
        if second is not None:
            from spreeze.bench.two_devices import measure_pair

            rows[-1] |= measure_pair(key, second, args.seconds)
    devices = [device] if second is None else [device, second]
    first = {"env": spec.id, "algo": args.algo, "device": device, "devices": devices, **rows[0]}
    write_result("learner", arguments, args.json, began, {**first, "results": rows})
    if args.json != "-":
        _show(rows)
        if second is not None:
            _show_pair(rows)
    return 0


def _devices(args: Arguments, machine: Machine) -> tuple[str, str | None]:
    """The device to measure, and the device of the actor if two were asked for."""
    if args.devices is None:
        return args.device if args.device != "auto" else "cuda" if machine.gpus else "cpu", None
    from spreeze.algos import find_algorithm
    from spreeze.settings.auto.devices import gpu_index

    # Naming a device twice here is deliberate.
    problems = check_devices(args.devices, same_allowed=True, option="--devices")
    names = args.devices.split(",")
    if not problems and len(names) != 2:
        problems.append(
            f"--devices {args.devices}: must be two with a comma, such as cuda:0,cuda:1."
        )
    if args.device != "auto":
        problems.append(
            f"--device {args.device} and --devices {args.devices}: give only one of them."
        )
    if not problems and any(
        (gpu_index(name) or 0) >= len(machine.gpus) for name in names if name != "cpu"
    ):
        problems.append(f"--devices {args.devices}: this machine has {len(machine.gpus)} GPUs.")
    if not find_algorithm(args.algo).config.has_actor:
        problems.append(f"--devices: {args.algo} has no actor to put on a second device.")
    if problems:
        raise UsageError(problems)
    return names[0], names[1]


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


def _show_pair(rows: list[dict[str, Any]]) -> None:
    """Print two devices against one, and the prediction for two GPUs."""
    for row in rows:
        one, two, model = row["one_device"], row["two_devices"], row["model"]
        print(
            f"\nbatch {row['batch_size']}, {two['way']}\n"
            f"  one device   {short(one['update_hz'])} updates/s, {short(one['update_frame_hz'])} frames/s\n"
            f"  two devices  {short(two['update_hz'])} critic updates/s, {short(two['actor_update_hz'])} "
            f"actor updates/s, {short(two['update_frame_hz'])} frames/s: {row['speedup']:.2f} of one\n"
            f"  computing    critic {100 * two['critic_busy']:.0f} % of the time, actor "
            f"{100 * two['actor_busy']:.0f} %; age {two['exchange_age']:.1f} updates, at most "
            f"{two['exchange_age_max']:.0f} of {two['exchange_age_bound']}"
        )
        for link, predicted in model["links"].items():
            print(
                f"  model, {link:6}  {short(predicted['update_hz'])} updates/s on two GPUs of this kind, "
                f"{predicted['speedup']:.2f} of one; the limit: {predicted['limit']}"
            )
    print("\nThe model assumes:", *rows[0]["model"]["assumptions"], sep="\n  - ")
