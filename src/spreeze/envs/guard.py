"""What environments do wrong: every step and reset is checked here, counted, and within limits forgiven."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.errors import EnvBroken
from spreeze.faults import Doing
from spreeze.spec import Floats

MIN_FAULTS, RECENT_FAULTS = 20, 100
"""The rate of faults is judged from this many on, unless none is allowed, and over the steps of this many at most."""
ATTEMPTS = 5
"""Resets in a row, or steps of all environments of a process, that may fail without a single good one."""
REPORT_EVERY_S = 5.0
MAX_KINDS = 100
"""A fault is reported if its kind is new, or if the last report is a while ago: logs must stay small."""
FAULT_WORDS = ("env_errors", "rejected", "simulation_resets")
WORDS = ("beats", "doing", "env_calls", *FAULT_WORDS)
SINGLE_NUMBERS = frozenset((float, int, np.float64, np.float32))
"""The usual types of a reward; others are looked at."""
NUMBER_KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}
OTHER, STEP = int(Doing.OTHER), int(Doing.STEP)  # an enum takes four times as long to store

ENV_ERRORS = (Exception, SystemExit)
"""Exceptions that count as the environment's: even sys.exit, but not the user's Ctrl-C."""


class BadOutput(ValueError):
    """An environment returned something that does not fit its spaces."""


def new_record() -> dict[str, NDArray[np.int64]]:
    """Counters that nobody else reads."""
    return {word: np.zeros((), np.int64) for word in WORDS}


class EnvGuard:
    """Counts the faults of the environments of one process; EnvBroken if there are too many."""

    def __init__(
        self,
        record: Mapping[str, Any] | NDArray[Any] | None = None,
        most_errors: float = 0.01,
        largest: float = 1e8,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Count in `record`, by the words of the control wire; `report` takes tracebacks."""
        record = new_record() if record is None else record
        words = {word: record[word] for word in WORDS}  # views: storing in them takes 20 ns
        self.words, self.doing, self._calls = words, words["doing"], words["env_calls"]
        self.doing[()] = OTHER
        self._most_errors, self._report = most_errors, report
        self._largest = np.float32(largest)
        self._squares = min((0.99 * largest) ** 2, 1e38)
        self.steps = 0
        """Env steps of this process; the stepper counts them."""
        self._faults: deque[int] = deque(maxlen=RECENT_FAULTS)
        """The values of `steps` at the newest faults."""
        self._in_a_row, self._all_failed_at = 0, -1
        self._kinds: set[tuple[Any, ...]] = set()
        self._next_report_s = 0.0
        self.newest = ""
        """The newest traceback, or what was wrong with the newest numbers."""

    def with_record(self, record: NDArray[Any]) -> EnvGuard:
        """A guard with the same limits that counts elsewhere, for another process."""
        return EnvGuard(record, self._most_errors, float(self._largest), self._report)

    @property
    def errors(self) -> int:
        """Exceptions in step or reset."""
        return int(self.words["env_errors"])

    @property
    def rejected(self) -> int:
        """Steps and resets with bad numbers."""
        return int(self.words["rejected"])

    @property
    def simulation_resets(self) -> int:
        """How often MuJoCo has reset itself."""
        return int(self.words["simulation_resets"])

    def begin(self, doing: Doing) -> None:
        """A construction or a reset begins: it has its own time limit, so it is also a sign of life."""
        self.doing[()] = doing
        self._calls[()] += 1

    def error(self, error: BaseException) -> None:
        """An environment raised in step or reset."""
        self.words["env_errors"][()] += 1
        self.newest = "".join(traceback.format_exception(error))
        last = traceback.extract_tb(error.__traceback__)[-1:]
        self._tell((type(error), *((frame.filename, frame.lineno) for frame in last)))
        self._count(1)

    def reject(self, num: int, what: str) -> None:
        """That many steps or resets gave bad numbers."""
        self.words["rejected"][()] += num
        self.newest = what
        self._tell(("numbers",))
        self._count(num)

    def simulation_reset(self) -> None:
        """A simulation has diverged: no fault of the environment, so it is counted apart."""
        self.words["simulation_resets"][()] += 1
        self.newest = "MuJoCo diverged and reset itself."

    def all_failed(self, num_envs: int) -> None:
        """No environment of the process made a good step; EnvBroken if that happens again and again."""
        again = self._all_failed_at == self.steps - num_envs
        self._in_a_row = self._in_a_row + 1 if again else 1
        self._all_failed_at = self.steps
        if self._in_a_row >= ATTEMPTS:
            raise self.broken(f"{ATTEMPTS} steps in a row failed")

    def broken(self, why: str) -> EnvBroken:
        """The exception that gives the environment up."""
        return EnvBroken(why, self.newest)

    def all_fine(self, numbers: Floats) -> bool:
        """Whether all numbers are finite and not too large. May say no wrongly, never yes.

        The sum of their squares tells: it is NaN or infinite if any number is, and larger than any square.
        The numbers of frames were checked when they were packed.
        """
        if numbers.dtype == np.uint8:
            return True
        return bool(np.vdot(numbers, numbers) <= self._squares)

    def fine_rows(self, reward: Floats, obs: Floats) -> NDArray[np.bool_]:
        """Which environments gave finite numbers that are not too large."""
        fine: NDArray[np.bool_] = (abs(reward) <= self._largest) & self.fine_obs(obs)
        return fine

    def fine_obs(self, obs: NDArray[Any]) -> NDArray[np.bool_]:
        """The same for observations alone, one per line."""
        return np.asarray((abs(obs) <= self._largest).all(-1))

    def bad_number(self, method: str, obs: Floats, reward: Any = 0.0) -> str:
        """What is wrong with the numbers of one environment."""
        bad = np.flatnonzero(~(abs(obs) <= self._largest))
        found = f"{obs[bad[0]]:g} as observation {bad[0]}" if len(bad) else f"the reward {reward:g}"
        return f"{method} returned {found}; at most {self._largest:g} is allowed."

    def _tell(self, kind: tuple[Any, ...]) -> None:
        """Report the newest fault if its kind is new, or if the last report is a while ago."""
        now = time.monotonic()
        is_new = kind not in self._kinds and len(self._kinds) < MAX_KINDS
        if self._report is None or not (is_new or now >= self._next_report_s):
            return
        self._kinds.add(kind)
        self._next_report_s = now + REPORT_EVERY_S
        self._report(self.newest)

    def _count(self, num: int) -> None:
        self._faults.extend([self.steps] * num)
        recent = len(self._faults)
        began = self._faults[0] if recent == RECENT_FAULTS else 0
        least = MIN_FAULTS if self._most_errors > 0 else 1
        if recent >= least and recent > self._most_errors * (self.steps - began):
            rate = f"{recent} of its last {self.steps - began:,} env steps failed"
            raise self.broken(f"{rate}, more than --limits.env-errors allows")


def as_obs(value: Any, shape: tuple[int, ...], before: np.dtype[Any] | None = None) -> NDArray[Any]:
    """An observation, or a batch of them, as an array of numbers of this shape; BadOutput if it is none.

    Its numbers are of the same kind as those of type `before`: floats, integers or truth values.
    """
    array = np.asarray(value)
    if array.shape != shape or array.dtype.kind not in "fiub":
        raise BadOutput(
            f"an observation of shape {array.shape} and type {array.dtype}; "
            f"its space says shape {shape}, and numbers"
        )
    if before is not None and NUMBER_KINDS[array.dtype.kind] != NUMBER_KINDS[before.kind]:
        raise BadOutput(f"an observation of type {array.dtype}; earlier ones were {before}")
    return array


def as_number(value: Any) -> Any:
    """A reward; BadOutput if it is not a single number."""
    if np.ndim(value) or np.asarray(value).dtype.kind not in "fiub":
        raise BadOutput(f"the reward {value!r:.80}; a single number is needed")
    return value


def as_flag(value: Any, name: str) -> bool:
    """`terminated` or `truncated`; BadOutput if it is not true or false."""
    if np.ndim(value) or np.asarray(value).dtype.kind not in "biu":
        raise BadOutput(f"{name} = {value!r:.80}; True or False is needed")
    return bool(value)


def as_column(value: Any, num_envs: int, name: str) -> NDArray[Any]:
    """Rewards or flags of a vector environment; BadOutput unless there is one number for each."""
    array = np.asarray(value)
    if array.shape != (num_envs,) or array.dtype.kind not in (
        "fiub" if name == "reward" else "biu"
    ):
        raise BadOutput(
            f"{name} of shape {array.shape} and type {array.dtype}; "
            f"needed is one value for each of {num_envs} environments"
        )
    return array
