"""What the screen shows: the numbers of a run at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from spreeze.run.bottleneck import STARTING, Bottleneck
from spreeze.run.controller import Decision
from spreeze.run.diagnosis import Diagnosis


@dataclass
class Snapshot:
    """A run at one moment."""

    time_s: float = 0.0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    rollout_return: float | None = None
    eval_return: float | None = None
    best_return: float | None = None
    sample_hz: float = 0.0
    update_hz: float = 0.0
    update_frame_hz: float = 0.0
    policy_lag: float = 0.0
    replay_rows: int = 0
    cpu_percent: dict[str, float] = field(default_factory=dict)
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
