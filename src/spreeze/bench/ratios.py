"""Whether Spreeze has become slower: its speed as ratios to the references of other benchmarks.

A ratio to a reference in the same run means the same on a faster or busier machine, so it can be
compared with one that was kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spreeze.errors import RunFailed, UsageError

MAY_LOSE = 0.1
"""A ratio that has lost a larger share counts as a regression."""


@dataclass(frozen=True)
class Ratio:
    """One figure of a benchmark over another."""

    name: str
    benchmark: tuple[str, ...]
    """Arguments of `spreeze bench`."""
    above: str
    below: str
    """Names of the two figures in the benchmark's result. More above is better."""


def _update(batch: int) -> Ratio:
    return Ratio(
        f"updates with batches of {batch:,}, over plain PyTorch",
        ("learner", "--batch-size", str(batch), "--seconds", "24"),
        "update_hz",
        "eager_update_hz",
    )


def _samplers(env: str) -> Ratio:
    return Ratio(
        f"samplers of {env}, over the bare simulator",
        ("sampling", env, "--seconds", "20"),
        "sample_hz",
        "raw_hz",
    )


_WIRES = ("wires", "--seconds", "18")
_PIPELINE = ("pipeline", "HalfCheetah-v5", "--seconds", "40")

RATIOS = (
    _update(256),
    _update(8192),
    _samplers("Pendulum-v1"),
    _samplers("HalfCheetah-v5"),
    Ratio("rows in shared memory, over a queue", _WIRES, "rows_hz", "queue_rows_hz"),
    Ratio("rows in shared memory, over a pipe", _WIRES, "rows_hz", "pipe_rows_hz"),
    Ratio("delay of weights in a file, over shared memory", _WIRES, "file_latency_us", "latency_us"),
    Ratio("env steps beside updates, over env steps alone", _PIPELINE, "sample_hz", "sample_alone_hz"),
    Ratio("updates beside env steps, over updates alone", _PIPELINE, "update_hz", "update_alone_hz"),
)  # fmt: skip


def read_kept(file: str) -> dict[str, float]:
    """The ratios of an earlier result."""
    try:
        kept = json.loads(Path(file).read_text())["ratios"]
        return {str(name): float(value) for name, value in kept.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            [
                f"--kept {file}: is no result of `spreeze bench ratios` ({error}). "
                f"Write one with the version to compare with: spreeze bench ratios --turns 3 --json {file}"
            ]
        ) from None


def measure(ratios: Iterable[Ratio], turns: int, report: Callable[[str], None]) -> dict[str, float]:
    """The median of each ratio over the turns. Ratios of one benchmark share its runs."""
    ratios = list(ratios)
    values: dict[str, list[float]] = {ratio.name: [] for ratio in ratios}
    for _ in range(turns):
        for benchmark in dict.fromkeys(ratio.benchmark for ratio in ratios):
            report(f"spreeze bench {' '.join(benchmark)} ...")
            result = run_benchmark(benchmark)
            for ratio in ratios:
                if ratio.benchmark == benchmark:
                    values[ratio.name].append(result[ratio.above] / result[ratio.below])
    return {name: median(taken) for name, taken in values.items()}


def run_benchmark(arguments: tuple[str, ...]) -> dict[str, Any]:
    """The result of a benchmark in a separate process."""
    command = [sys.executable, "-m", "spreeze", "bench", *arguments, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailed(f"{done.stderr}\nspreeze bench {' '.join(arguments)} failed")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def lost(kept: dict[str, float], now: dict[str, float]) -> list[str]:
    """The ratios that have lost more than they may."""
    return [name for name in now if name in kept and now[name] < (1 - MAY_LOSE) * kept[name]]


def compare(
    kept: dict[str, float], report: Callable[[str], None], ratios: Iterable[Ratio] = RATIOS
) -> dict[str, float]:
    """Measure each ratio, and those that have lost once more: another program may have disturbed them."""
    ratios = list(ratios)
    now = measure(ratios, 1, report)
    if again := lost(kept, now):
        report(f"again, because lower than before: {'; '.join(again)}")
        second = measure([ratio for ratio in ratios if ratio.name in again], 1, report)
        now |= {name: max(now[name], value) for name, value in second.items()}
    return now
