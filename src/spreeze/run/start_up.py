"""The start of a run: when it reached each milestone, from the command to the first finished update."""

from __future__ import annotations

import time
from enum import Enum

from spreeze.wires.control import Control

LONG_START_S = 2.0
"""A start that took longer is mentioned."""


class Milestone(Enum):
    """What is reached during a start, in the usual order."""

    FLAGS = "flags_read"
    ENVIRONMENT = "environment_tried"
    PLAN = "planned"
    FOLDER = "run_folder_made"
    ROLES = "roles_asked_for"
    SAMPLING = "all_samplers_stepping"
    LEARNER = "learner_process_up"
    NETWORKS = "networks_ready"
    WARM_UP = "first_update_begun"
    UPDATE = "first_update_done"


class StartUp:
    """The milestones that the main process has reached, in seconds since the command."""

    def __init__(self, started_s: float) -> None:
        """`started_s`: when the command started, on the monotonic clock."""
        self.started_s = started_s
        self._reached: dict[Milestone, float] = {}

    def reach(self, milestone: Milestone) -> None:
        """It has been reached now."""
        self._reached.setdefault(milestone, time.monotonic() - self.started_s)

    def awaited(self, control: Control, serial: bool) -> Milestone | None:
        """What the roles have not reached yet; None once updates run."""
        learner = control.learner
        reached = {
            Milestone.LEARNER: serial or learner["up_s"] > 0,
            Milestone.NETWORKS: serial or learner["ready_s"] > 0,
            Milestone.SAMPLING: control.env_steps > 0,
            Milestone.WARM_UP: learner["first_update_s"] > 0,
            Milestone.UPDATE: learner["first_updated_s"] > 0,
        }
        return next((milestone for milestone, is_there in reached.items() if not is_there), None)

    def table(self, control: Control, all_sampling_s: float | None) -> dict[str, float]:
        """Seconds by milestone, those of the roles included; one that was not reached is missing."""
        learner = control.learner
        times = self._reached | {
            Milestone.LEARNER: float(learner["up_s"]),
            Milestone.NETWORKS: float(learner["ready_s"]),
            Milestone.SAMPLING: all_sampling_s or 0.0,
            Milestone.WARM_UP: float(learner["first_update_s"]),
            Milestone.UPDATE: float(learner["first_updated_s"]),
        }
        known = {milestone.value: times.get(milestone, 0.0) for milestone in Milestone}
        return {name: round(seconds, 3) for name, seconds in known.items() if seconds > 0}
