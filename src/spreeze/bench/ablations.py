"""What each part of Spreeze brings: batch size, number of samplers, transport, a second device. And a whole run beside them.

Each part is measured by its benchmark in a separate process, the run by `spreeze train` with the settings that it chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from spreeze.bench.ratios import run_benchmark
from spreeze.bench.training import steps_per_row, train_for
from spreeze.errors import RunFailed
from spreeze.machine.facts import Machine
from spreeze.store.files import open_inside
from spreeze.store.metrics import read_records
from spreeze.store.rundir import RunDir

RUN_SHARE = 2
"""A run is measured for this many times as long as a part: rates vary in it."""
FROM_SUMMARY = (
    "algo", "device", "batch_size", "sampler_processes", "envs_per_process", "update_form",
    "sample_hz", "update_hz",
)  # fmt: skip
USES = ("perf/cpu_percent", "perf/gpu_percent")
"""Metrics of use; those of the roles begin with the name of the first."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Parts:
    """What is compared."""

    env: str
    algo: str
    batch_sizes: Sequence[int]
    samplers: Sequence[int]
    devices: str | None
    """Two devices with a comma. None for an algorithm without an actor."""
    threads: int
    """CPU threads of each of the two devices."""


def parts_of(machine: Machine, env: str, algo: str, has_actor: bool) -> Parts:
    """What is compared by default on a machine."""
    gpus = len(machine.gpus)
    devices = f"cuda:0,cuda:{min(gpus, 2) - 1}" if gpus else "cpu,cpu"
    return Parts(
        env,
        algo,
        batch_sizes=(256, 1024, 8192, 32_768) if gpus else (256, 1024, 8192),
        samplers=[1 << i for i in range((2 * machine.cores).bit_length())],
        devices=devices if has_actor else None,
        threads=1 if gpus else max(1, machine.cores // 2),
    )


def measure_run(env: str, seconds: float, report: Report) -> dict[str, Any]:
    """The run alone."""
    report(f"spreeze train {env} ...")
    return {"env": env, "run": run_facts(env, RUN_SHARE * seconds)}


def measure(parts: Parts, seconds: float, report: Report) -> dict[str, Any]:
    """The run, then each part in turn."""

    def benchmark(*arguments: str) -> dict[str, Any]:
        arguments = (*arguments, "--seconds", f"{seconds:g}")
        report(f"spreeze bench {' '.join(arguments)} ...")
        result = run_benchmark(arguments)
        del result["machine"]
        return result

    sizes = ",".join(map(str, parts.batch_sizes))
    learner = ("learner", parts.env, "--algo", parts.algo, "--batch-size", sizes)
    pair = ("--devices", str(parts.devices), "--threads", str(parts.threads))
    return {
        **measure_run(parts.env, seconds, report),
        "batch_size": benchmark(*learner),
        "samplers": [
            benchmark("sampling", parts.env, "--processes", str(number))
            for number in parts.samplers
        ],
        "transport": benchmark("wires"),
        "devices": benchmark(*learner, *pair) if parts.devices else None,
    }


def run_facts(env: str, seconds: float) -> dict[str, Any]:
    """Rates and use of a run: what its samplers, learner and evaluator do together."""
    with TemporaryDirectory() as folder:
        run = train_for(seconds, env, Path(folder) / "run", ("--no-dashboard",))
        summary = run.read("summary")
        if not summary["updates"]:
            raise RunFailed(f"the run made no update in {seconds:g} s; try a longer --seconds")
        facts = {name: summary[name] for name in FROM_SUMMARY}
        transition_hz = round(summary["update_frame_hz"] * steps_per_row(run), 1)
        return {"seconds": seconds, **facts, "transition_hz": transition_hz, **use_of(run)}


def use_of(run: RunDir) -> dict[str, float]:
    """CPU and GPU use since the first update, each the mean of what the run has recorded. 100 is one core, or all GPUs."""
    found: dict[str, list[float]] = {}
    with open_inside(run.path, "metrics", "supervisor-0.jsonl") as file:
        for _, record in read_records(file):
            if record and record["updates"]:
                for name in record:
                    if name.startswith(USES):
                        found.setdefault(name.removeprefix("perf/"), []).append(record[name])
    return {name: round(mean(values), 1) for name, values in found.items()}
