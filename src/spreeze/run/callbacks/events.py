"""Notices what has happened in a run, from the wires: evaluations, checkpoints, and time for the next metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.run.callbacks import EvaluationResult
from spreeze.store.metrics import MetricsReader, is_number
from spreeze.wires.control import Control
from spreeze.wires.documents import Document

LOG_EVERY_S = 1.0
AXES = ("time_s", "env_steps", "updates")


@dataclass(frozen=True)
class Event:
    """A hook that is due, and what it is given beside the run. `on_log` gets the metrics when it is called."""

    hook: str
    arguments: tuple[Any, ...] = ()


class Events:
    """What has happened since the last look."""

    def __init__(
        self, control: Control, evaluation: Document, checkpoints: Path, now: Callable[[], float]
    ) -> None:
        """`now`: seconds; in serial mode counted in env steps, so that a run repeats."""
        self._control, self._evaluation, self._checkpoints = control, evaluation, checkpoints
        self._now, self._logged_s = now, now()
        self._num_saved = 0

    def look(self) -> Iterator[Event]:
        """The hooks that are due now."""
        if self._evaluation.refresh():
            result = as_evaluation(self._evaluation.value)
            yield Event("on_evaluation", (result,))
            if result.is_best:
                yield Event("on_new_best", (result,))
        if (num_saved := int(self._control.learner["checkpoints"])) != self._num_saved:
            self._num_saved = num_saved
            yield Event("on_checkpoint", ((self._checkpoints / "last").resolve(),))
        if self._now() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = self._now()
            yield Event("on_log")


def as_evaluation(value: dict[str, Any]) -> EvaluationResult:
    """An evaluation from the document that the evaluator writes."""
    metrics = {name: number for name, number in value["metrics"].items() if number is not None}
    return EvaluationResult(
        mean_reward=metrics["eval/mean_reward"],
        is_best=value["is_best"],
        time_s=value["time_s"],
        env_steps=value["env_steps"],
        updates=value["updates"],
        metrics=metrics,
    )


class NewestMetrics:
    """The newest value of each metric of a run."""

    def __init__(self, folder: Path) -> None:
        """Read the files in `folder`."""
        self._reader = MetricsReader(folder)
        self._roles: dict[str, dict[str, float]] = {}

    def update(self) -> bool:
        """Read on; returns whether there was anything new."""
        news = False
        for role, record in self._reader.read_new():
            numbers = {k: v for k, v in record.items() if is_number(v) and k not in AXES}
            self._roles.setdefault(role, {}).update(numbers)
            news |= bool(numbers)
        return news

    def values(self) -> dict[str, float]:
        """By name. Of what every sampler records, the mean over the samplers."""
        samplers: dict[str, list[float]] = {}
        others: dict[str, float] = {}
        for role, numbers in sorted(self._roles.items()):
            if role.startswith("sampler-"):
                for name, value in numbers.items():
                    samplers.setdefault(name, []).append(value)
            else:
                others |= numbers
        return {name: sum(found) / len(found) for name, found in samplers.items()} | others
