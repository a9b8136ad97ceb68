"""How a run ends: the words of status.json and summary.json."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RunState(StrEnum):
    """The state of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class EndReason(StrEnum):
    """Why a run ended."""

    TARGET = "target"
    TIME = "time"
    STEPS = "steps"
    STOPPED = "stopped"
    ERROR = "error"


class Outcome(NamedTuple):
    """How a run ended, and why."""

    state: RunState
    reason: EndReason


FAILED = Outcome(RunState.FAILED, EndReason.ERROR)
INTERRUPTED = Outcome(RunState.INTERRUPTED, EndReason.STOPPED)
