"""Samplers lend their cores to an evaluation: both ends of the agreement.

Where the learner has its own cores (`--cores separate`), samplers and evaluation share the others.
While an evaluation plays, as many samplers rest as cores are missing, so that its result is known
sooner. The evaluator writes `borrowed_cores` and `borrowed_until_s` on the control wire; samplers
read them before each step.
"""

from __future__ import annotations

from collections.abc import Callable

from spreeze.machine.affinity import cores_beside
from spreeze.settings.config import Config, resolved
from spreeze.wires.control import Control

LOAN_S = 10.0
"""When a loan expires: an episode may never end, and the evaluator may be killed while it holds cores."""


class CoreLending:
    """Which samplers rest while an evaluation plays."""

    def __init__(self, control: Control, now: Callable[[], float]) -> None:
        """`now` is the clock that all roles of the run share."""
        self._evaluator, self._supervisor, self._now = control.evaluator, control.supervisor, now

    def set_size(self, num_cores: int) -> None:
        """Evaluator: every loan from here on is for this many cores."""
        self._evaluator["borrowed_cores"] = num_cores

    def borrow(self) -> None:
        """Evaluator: an evaluation begins."""
        self._evaluator["borrowed_until_s"] = self._now() + LOAN_S

    def give_back(self) -> None:
        """Evaluator: the evaluation has ended."""
        self._evaluator["borrowed_until_s"] = 0

    def is_lent(self, sampler: int) -> bool:
        """Sampler: whether an evaluation holds this sampler's core. At least one sampler continues."""
        if self._now() >= self._evaluator["borrowed_until_s"]:
            return False
        left = self._supervisor["active_samplers"] - self._evaluator["borrowed_cores"]
        return bool(sampler >= max(left, 1))


def missing_cores(config: Config, num_players: int) -> int:
    """How many samplers must rest so that each process that plays has a core; one continues."""
    if config.cores != "separate" or config.serial:
        return 0
    samplers = resolved(config.sampler.processes)
    missing = samplers + num_players - cores_beside(config.learner_cores)
    return min(max(missing, 0), samplers - 1)
