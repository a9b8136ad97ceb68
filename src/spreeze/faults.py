"""Faults: their kinds, what a role does with its environment when one happens, and points to inject them.

A fault point is a named place in the code where a test can make something go wrong:

    SPREEZE_FAULTS=checkpoint.renamed:kill,checkpoint.renamed:full   SPREEZE_FAULTS_FOLDER=/tmp/x

Each entry happens once, however many processes pass the point: a file in the folder marks it as done.
Without the variable a point costs one comparison.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from enum import IntEnum, StrEnum
from pathlib import Path

DELAY_S = 1.5


class Fault(StrEnum):
    """What went wrong; summary.json counts each kind under `faults`."""

    KILLED = "killed"
    """A process was ended by a signal or an exit code."""
    RAISED = "raised"
    """A process ended with an exception."""
    HUNG = "hung"
    """A process made no progress and was replaced."""
    LEAKED = "leaked"
    """A process used far more memory than at its start and was replaced."""
    GIVEN_UP = "given_up"
    """A process failed too often and was not started again."""
    ENV_ERROR = "env_error"
    """An environment raised in `step` or `reset`; its episode ended there and it was made again."""
    BAD_NUMBERS = "bad_numbers"
    """A step or reset gave NaN, infinity or an absurdly large number; it was not stored."""
    SIMULATION_RESET = "simulation_reset"
    """MuJoCo diverged and reset itself within an episode; the step was not stored."""
    ROLLED_BACK = "rolled_back"
    """The networks held NaN or infinity and went back to their last good state."""
    SAVE_FAILED = "save_failed"
    """A checkpoint could not be written."""
    CHECKPOINT_REFUSED = "checkpoint_refused"
    """A stored checkpoint was damaged; an older one was used."""
    OUTPUT_DROPPED = "output_dropped"
    """A line of metrics, a print, a status or a picture could not be written."""
    LOG_CUT = "log_cut"
    """A log was full; its oldest lines were dropped."""
    ROWS_LOST = "rows_lost"
    """Transitions that were overwritten before the learner read them."""


class Doing(IntEnum):
    """What a role does with its environment: each has its own time limit."""

    OTHER = 0
    CONSTRUCT = 1
    RESET = 2
    STEP = 3


class InjectedFault(RuntimeError):
    """Raised at a fault point, by a test."""


_PLAN = os.environ.get("SPREEZE_FAULTS", "")


def fault_point(name: str) -> None:
    """A place where a test may inject a fault."""
    if _PLAN:
        _inject(name)


def _inject(name: str) -> None:
    folder = Path(os.environ["SPREEZE_FAULTS_FOLDER"])
    for entry in _PLAN.split(","):
        point, _, what = entry.partition(":")
        if point != name:
            continue
        try:
            (folder / entry).touch(exist_ok=False)
        except FileExistsError:
            continue
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        if what == "raise":
            raise InjectedFault(name)
        time.sleep(DELAY_S)
        return
