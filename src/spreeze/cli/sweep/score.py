"""What counts in a sweep: the score of a run, and its value at each part of its way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from spreeze.settings.config import Config
from spreeze.store.curves import Numbers, read_curve
from spreeze.store.metrics import is_number
from spreeze.store.rundir import RunDir

PARTS = 20
"""A run is compared with those of other trials after each of so many equal parts of its time or steps."""
LATE = 2.0
"""A run that misses the target counts as one that took so many times its own time."""


class Score(NamedTuple):
    """What counts: `kind` is best, final or time."""

    kind: str
    metric: str

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Which values are better."""
        return "minimize" if self.kind == "time" else "maximize"

    @property
    def name(self) -> str:
        """In a few words."""
        if self.kind == "time":
            return "seconds to the target"
        what = "return" if self.metric == "eval/mean_reward" else self.metric
        return f"{self.kind} {what}"

    def of_run(self, run: RunDir) -> float | None:
        """The score of a run that has ended; None without an evaluation."""
        if self.kind == "time":
            summary = run.read("summary")
            seconds, wall_s = (_number(summary, x) for x in ("time_to_target_s", "wall_s"))
            return LATE * wall_s if seconds is None and wall_s is not None else seconds
        values = read_curve(run, self.metric)[:, 3]
        if not len(values):
            return None
        return float(values.max() if self.kind == "best" else values[-1])

    def on_the_way(self, run: RunDir, config: Config) -> Iterator[tuple[int, float]]:
        """Each part that the run has completed, and its value then; higher is better, unless times count."""
        curve = read_curve(run, self.metric)
        if not len(curve):
            return
        values = curve[:, 3] if self.kind == "final" else np.maximum.accumulate(curve[:, 3])
        parts = np.floor(PARTS * shares(curve, config, _before_s(run)) + 1e-9).astype(int)
        sign = -1.0 if self.kind == "time" else 1.0
        before = values[0]
        part = 1
        for reached, value in zip(parts, values, strict=True):
            while part <= min(reached, PARTS):
                yield part, sign * float(before)
                part += 1
            before = value


def shares(curve: Numbers, config: Config, before_s: float) -> Numbers:
    """The share of its steps or its time that a run had done at each evaluation, whichever is more."""
    found = np.zeros(len(curve))
    if config.max_steps is not None:
        found = np.maximum(found, curve[:, 1] / config.max_steps)
    if config.time_s is not None:
        found = np.maximum(found, (curve[:, 0] - before_s) / config.time_s)
    return found


def share_done(run: RunDir, config: Config) -> float:
    """The share of its steps or its time that a run has done by now."""
    progress = _progress(run)
    done = [
        (_number(progress, name) or 0.0) / limit
        for name, limit in (("env_steps", config.max_steps), ("training_s", config.time_s))
        if limit is not None
    ]
    return min(1.0, max(done, default=0.0))


def _before_s(run: RunDir) -> float:
    """The seconds from the start of a run's command to the start of its training."""
    progress = _progress(run)
    time_s, training_s = _number(progress, "time_s"), _number(progress, "training_s")
    return 0.0 if time_s is None or training_s is None else time_s - training_s


def _progress(run: RunDir) -> dict[str, Any]:
    progress = run.read("status").get("progress")
    return progress if isinstance(progress, dict) else {}


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if is_number(value) else None  # type: ignore[arg-type]
