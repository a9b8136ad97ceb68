"""Learning curves of runs and of other frameworks: the middle of the seeds and its interval.

`run_groups` says which runs are seeds of one setting.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spreeze.errors import DamagedFile, UsageError
from spreeze.store.files import open_inside, read_json
from spreeze.store.metrics import is_number, read_records
from spreeze.store.rundir import RunDir
from spreeze.text import plain, plural

Numbers = NDArray[np.float64]
CURVE_AXES = ("time", "steps", "updates")
"""Columns of a curve. A fourth column is the mean return of the evaluation."""
MAX_COMPARISON_BYTES = 64 << 20
RESAMPLES = 2000
"""Bootstrap samples."""


FEW_SEEDS = 4
"""With fewer values, an interquartile mean drops none: it is a mean."""


@dataclass
class Group:
    """The seeds that are drawn as one line or point, or compared as one row."""

    task: str
    label: str
    """The algorithm or framework, and the settings in which it differs from the task's other groups."""
    curves: list[Numbers] = field(default_factory=list)
    """One array per run, with rows (time_s, env_steps, updates, return)."""
    seeds: list[int | None] = field(default_factory=list)
    """The seed of each run, if it is known."""
    states: list[str] = field(default_factory=list)
    """Whether each run has finished, is running, was interrupted ..."""
    seconds: list[float | None] = field(default_factory=list)
    """Time to the target by run, None if it was not reached. Empty if there was no target, or not one for all."""
    target: float | None = None

    def counted(self) -> dict[str, Any]:
        """How many runs and seeds there are, what their middle is, and how many runs have not finished, by state."""
        runs = len(self.curves) or len(self.seconds)
        known = [seed for seed in self.seeds if seed is not None]
        return {
            "runs": runs,
            "seeds": len(set(known)) + runs - len(known),
            "statistic": statistic(runs),
            "unfinished": dict(Counter(state for state in self.states if state != "finished")),
        }


class Estimate(NamedTuple):
    """The middle of the seeds and its 95 % interval."""

    middle: float
    low: float
    high: float


def read_curve(run: RunDir, metric: str = "eval/mean_reward") -> Numbers:
    """Read the evaluations of a run, finished or not."""
    names = ("time_s", "env_steps", "updates", metric)
    rows: list[list[float]] = []
    with (
        contextlib.suppress(FileNotFoundError, DamagedFile),
        open_inside(run.path, "metrics", "evaluator-0.jsonl") as file,
    ):
        for _, record in read_records(file):
            values = [(record or {}).get(name) for name in names]
            if all(is_number(value) for value in values):
                rows.append([float(value or 0) for value in values])
    return np.array(rows, np.float64).reshape(-1, 4)


def read_comparison(file: Path) -> list[Group]:
    """Read results of other frameworks from the JSON of a time-to-score benchmark.

    `wall_s` maps each framework to its seconds to `target` by seed, null if it was not reached.
    `curves` is optional and maps it to a list of rows [time_s, env_steps, updates, return] by seed.
    """
    try:
        data = read_json(file.parent, file.name, limit=MAX_COMPARISON_BYTES)
    except FileNotFoundError:
        raise UsageError([f"--compare {file}: there is no such file."]) from None
    except (DamagedFile, OSError) as error:
        raise UsageError([f"--compare {file}: cannot be read as JSON ({error})."]) from None
    groups = []
    try:
        curves, target = data.get("curves", {}), float(data["target"])
        for name, seconds in data["wall_s"].items():
            group = Group(plain(str(data["env"])[:200]), plain(name[:200]), target=target)
            group.seconds = [None if s is None else float(s) for s in seconds]
            tables = [np.array(c, np.float64).reshape(-1, 4) for c in curves.get(name, [])]
            group.curves = [table for table in tables if len(table)]
            groups.append(group)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(
            [
                f"--compare {file}: not a time-to-score result ({type(error).__name__}: {error}). It needs env, "
                "target and wall_s {framework: [seconds or null by seed]}, and may have curves "
                "{framework: [[[time_s, env_steps, updates, return], ...] by seed]}."
            ]
        ) from None
    return groups


def iqm(values: Numbers) -> Numbers:
    """Interquartile mean over axis -2: the lowest and the highest quarter of the values are dropped."""
    num = values.shape[-2]
    cut = int(0.25 * num)
    middle: Numbers = np.sort(values, axis=-2)[..., cut : num - cut, :].mean(axis=-2)
    return middle


def statistic(values: int) -> str:
    """What the middle of so many values is."""
    return "one run" if values == 1 else "mean" if values < FEW_SEEDS else "interquartile mean"


def describe_number(counted: Mapping[str, Any]) -> str:
    """How many seeds there are: "3 seeds", "3 runs with 2 seeds, 1 running"."""
    runs, seeds = counted["runs"], plural(counted["seeds"], "seed")
    number = seeds if runs == counted["seeds"] else f"{runs} runs with {seeds}"
    return ", ".join([number, *_unfinished(counted)])


def _unfinished(counted: Mapping[str, Any]) -> list[str]:
    one = counted["runs"] == 1
    return [state if one else f"{num} {state}" for state, num in counted["unfinished"].items()]


def interval(values: Numbers, seed: int = 0) -> tuple[Numbers, Numbers]:
    """95 % bootstrap interval of the interquartile mean over axis 0."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(iqm(values[draws]), [2.5, 97.5], axis=0)
    return low, high


def on_grid(curves: Sequence[Numbers], axis: str, points: int = 200) -> tuple[Numbers, Numbers]:
    """Sample curves at common positions that all have reached. Between evaluations the earlier one counts."""
    column = CURVE_AXES.index(axis)
    ordered = [curve[np.argsort(curve[:, column], kind="stable")] for curve in curves]
    first = max(curve[0, column] for curve in ordered)
    end = min(curve[-1, column] for curve in ordered)
    grid = np.linspace(first, max(end, first), points)
    rows = [
        curve[np.searchsorted(curve[:, column], grid, "right") - 1, 3].astype(np.float64)
        for curve in ordered
    ]
    return grid, np.stack(rows)


def estimate(values: Sequence[float]) -> Estimate:
    """The middle of one number per seed."""
    column = np.array(values, np.float64)[:, None]
    low, high = interval(column)
    return Estimate(float(iqm(column)[0]), float(low[0]), float(high[0]))


def time_to_target(group: Group) -> Estimate | None:
    """Interquartile mean of the seconds and its interval. None if a seed missed the target."""
    seconds = [math.inf if s is None else s for s in group.seconds]
    if not seconds or not all(map(math.isfinite, seconds)):
        return None
    return estimate(seconds)


def standing(group: Group) -> dict[str, Any]:
    """What the seeds of a group have reached: best and last evaluation, and the time to the target."""
    return {
        "task": group.task,
        "label": group.label,
        **group.counted(),
        "best": estimate([float(curve[:, 3].max()) for curve in group.curves]),
        "final": estimate([float(curve[-1, 3]) for curve in group.curves]),
        "target": group.target,
        "reached": sum(s is not None for s in group.seconds),
        "time_to_target": time_to_target(group),
    }


def facts(group: Group, axis: str) -> dict[str, Any]:
    """The numbers that are drawn for a group."""
    out: dict[str, Any] = {"task": group.task, "label": group.label, **group.counted()}
    if group.curves:
        grid, values = on_grid(group.curves, axis)
        low, high = interval(values)
        out |= {"x": grid.tolist(), "middle": iqm(values).tolist()}
        out |= {"low": low.tolist(), "high": high.tolist()}
    if group.seconds:
        out["seconds"], out["time_to_target"] = group.seconds, time_to_target(group)
    return out
