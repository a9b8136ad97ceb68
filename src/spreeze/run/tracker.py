"""Tracker: an observer that sends a run's metrics to Weights & Biases or trackio."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
from pathlib import Path
from typing import Any

import cloudpickle
import setproctitle

from spreeze.machine.affinity import run_in_background
from spreeze.store.metrics import MetricsReader
from spreeze.store.rundir import RunDir

LOOK_EVERY_S = 2.0
PROJECT = "spreeze"


def observer_main(payload: bytes, _report_fd: int, ending_fd: int) -> int:
    """Send new records until the supervisor closes its end of the pipe, then the rest."""
    run_path, kind, learner_cores = cloudpickle.loads(payload)
    run_in_background(learner_cores)
    setproctitle.setproctitle(f"spreeze tracker {run_path.name}")
    tracker = Tracker(run_path, kind)
    while not select.select([ending_fd], [], [], LOOK_EVERY_S)[0]:
        tracker.send_new()
    tracker.close()
    return 0


class Tracker:
    """One run at a tracking service. Both services offer the same calls: init, log, finish."""

    def __init__(self, run_path: Path, kind: str) -> None:
        """Start a run there; the service's own offline modes work, such as WANDB_MODE=offline."""
        self._service: Any = importlib.import_module(kind)
        self._metrics = MetricsReader(run_path / "metrics")
        config = RunDir(run_path).read("config").get("config", {})
        place = {"dir": str(run_path)} if kind == "wandb" else {}
        project = os.environ.get("WANDB_PROJECT" if kind == "wandb" else "TRACKIO_PROJECT", PROJECT)
        self._service.init(project=project, name=run_path.name, config=config, **place)
        if kind == "wandb":
            for name in ("rollout", "eval", "train", "perf", "async", "replay"):
                self._service.define_metric(f"{name}/*", step_metric="env_steps")

    def send_new(self) -> None:
        """Send the records written since the last call."""
        for role, record in self._metrics.read_new():
            suffix = "" if role.endswith("-0") else f"/{role}"
            axes = {name: record.get(name) for name in ("time_s", "env_steps", "updates")}
            values = {
                name + suffix: value
                for name, value in record.items()
                if "/" in name and isinstance(value, int | float)
            }
            if values:
                self._service.log(axes | values)

    def close(self) -> None:
        """Send the rest and finish the run there."""
        with contextlib.suppress(OSError):
            self.send_new()
        self._service.finish()
