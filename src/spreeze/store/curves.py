"""Learning curves of runs and of other frameworks: the middle of the seeds and its interval."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spreeze.errors import DamagedFile, UsageError
from spreeze.store.differences import Knobs, compared_knobs, differing
from spreeze.store.files import open_inside, read_json
from spreeze.store.metrics import is_number, read_records
from spreeze.store.rundir import RunDir
from spreeze.text import plain

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
    """One array per seed, with rows (time_s, env_steps, updates, return)."""
    seconds: list[float | None] = field(default_factory=list)
    """Time to the target by seed, None if it was not reached. Empty if there was no target, or not one for all."""
    target: float | None = None


class Estimate(NamedTuple):
    """The middle of the seeds and its 95 % interval."""

    middle: float
    low: float
    high: float


def read_curve(run: RunDir) -> Numbers:
    """Read the evaluations of a run, finished or not."""
    names = ("time_s", "env_steps", "updates", "eval/mean_reward")
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


def group_runs(runs: Sequence[RunDir]) -> list[Group]:
    """Group runs by all that defines them but the seed: task, algorithm and settings. A run given twice is one."""
    unique = {run.path.resolve(): run for run in runs}
    kinds: dict[tuple[str, str], list[tuple[RunDir, Knobs]]] = {}
    for run in unique.values():
        knobs = _settings(run)
        kind = plain(str(knobs.pop("env", "?"))[:200]), plain(str(knobs.pop("algo", "?"))[:200])
        kinds.setdefault(kind, []).append((run, knobs))
    groups: dict[tuple[str, str], Group] = {}
    members: dict[tuple[str, str], list[RunDir]] = {}
    for (task, algo), found in kinds.items():
        for (run, _), own in zip(found, differing([knobs for _, knobs in found]), strict=True):
            label = ", ".join(
                [algo, *(f"{name} {plain(_value(own[name]))}" for name in sorted(own))]
            )
            curve = read_curve(run)
            if not len(curve):
                raise UsageError(
                    [f"run {run.path} has no evaluation yet, so there is nothing to draw."]
                )
            group = groups.setdefault((task, label), Group(task, label))
            group.curves.append(curve)
            members.setdefault((task, label), []).append(run)
    for key, group in groups.items():
        _read_times(group, members[key])
    return list(groups.values())


def _read_times(group: Group, runs: Sequence[RunDir]) -> None:
    """When each run reached its target, if all that have ended had the same one."""
    told = [(run.read("config").get("config"), run.read("summary")) for run in runs]
    targets = {config.get("target") if isinstance(config, dict) else None for config, _ in told}
    target = targets.pop() if len(targets) == 1 else None
    if not is_number(target) or not all(summary for _, summary in told):
        return
    group.target = float(target)  # type: ignore[arg-type]
    seconds = [summary.get("time_to_target_s") for _, summary in told]
    group.seconds = [float(s) if is_number(s) else None for s in seconds]  # type: ignore[arg-type]


def _settings(run: RunDir) -> Knobs:
    """What defines a run. What it chose itself for this machine does not: only what was asked for.

    The algorithm's own settings count as they were resolved, whether they came from a flag, a preset or a rule.
    """
    stored = run.read("config")
    config, asked = (
        found if isinstance(found := stored.get(x), dict) else {} for x in ("config", "asked")
    )
    told = {**(asked or config), **{name: config.get(name) for name in ("env", "algo", "hyper")}}
    return {name: value for name, value in compared_knobs(told).items() if name != "preset"}


def _value(value: Any) -> str:
    """A setting in a few words."""
    parts = value if isinstance(value, list) else [value]
    return " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in parts)[:60]


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


def statistic(seeds: int) -> str:
    """What the middle of so many values is."""
    return "one run" if seeds == 1 else "mean" if seeds < FEW_SEEDS else "interquartile mean"


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
        "seeds": len(group.curves),
        "statistic": statistic(len(group.curves)),
        "best": estimate([float(curve[:, 3].max()) for curve in group.curves]),
        "final": estimate([float(curve[-1, 3]) for curve in group.curves]),
        "target": group.target,
        "reached": sum(s is not None for s in group.seconds),
        "time_to_target": time_to_target(group),
    }


def facts(group: Group, axis: str) -> dict[str, Any]:
    """The numbers that are drawn for a group."""
    seeds = len(group.curves) or len(group.seconds)
    out: dict[str, Any] = {"task": group.task, "label": group.label, "seeds": seeds}
    out["statistic"] = statistic(seeds)
    if group.curves:
        grid, values = on_grid(group.curves, axis)
        low, high = interval(values)
        out |= {"x": grid.tolist(), "middle": iqm(values).tolist()}
        out |= {"low": low.tolist(), "high": high.tolist()}
    if group.seconds:
        out["seconds"], out["time_to_target"] = group.seconds, time_to_target(group)
    return out
