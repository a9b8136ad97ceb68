"""What the screen shows: the numbers of a run at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spreeze.run.bottleneck import STARTING, Bottleneck
from spreeze.run.controller import Decision
from spreeze.run.cpu_meter import CpuUse
from spreeze.run.diagnosis import Diagnosis
from spreeze.run.start_up import Milestone
from spreeze.run.wording import describe_bottleneck
from spreeze.store.metrics import finite


@dataclass
class Snapshot:
    """A run at one moment."""

    time_s: float = 0.0
    """Seconds since the command."""
    training_s: float = 0.0
    """Seconds since all roles were started: what --time counts."""
    awaited: Milestone | None = None
    """What the start waits for; None once updates run."""
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    rollout_return: float | None = None
    eval_return: float | None = None
    best_return: float | None = None
    target_value: float | None = None
    """What the last evaluation found of the metric that `--target` is compared with."""
    sample_hz: float = 0.0
    update_hz: float = 0.0
    update_frame_hz: float = 0.0
    policy_lag: float = 0.0
    replay_rows: int = 0
    compiling: bool = False
    """Whether the learner compiles its update now."""
    cpu: CpuUse | None = None
    gpu_percent: float | None = None
    stall_percent: dict[str, float] = field(default_factory=dict)
    """Share of its time that each role waits."""
    bottleneck: Bottleneck = STARTING
    decision: Decision | None = None
    """The controller's latest decision."""
    diagnosis: Diagnosis | None = None
    """Why the run does not learn, if it does not."""
    open_warnings: list[str] = field(default_factory=list)
    """Conditions that hold now."""
    warnings: list[str] = field(default_factory=list)
    evaluations: list[tuple[float, float]] = field(default_factory=list)
    """(time, mean return) of the evaluations so far; of very many, an even selection."""
    page: str = ""
    """Address of the live page; empty without one."""

    def progress(self, device: str) -> dict[str, Any]:
        """As status.json has it; `device` is the learner's."""
        limit = self.bottleneck
        values = {
            "time_s": self.time_s,
            "training_s": self.training_s,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "sample_hz": self.sample_hz,
            "update_hz": self.update_hz,
            "eval_return": self.eval_return,
            "best_return": self.best_return,
            "bottleneck": describe_bottleneck(limit, device),
            "bottleneck_kind": limit.kind.value,
            "waiting_percent": limit.waiting_percent,
            "other_cores": limit.other_cores,
            "cores": limit.cores,
        }
        return {name: finite(value) for name, value in values.items()}
