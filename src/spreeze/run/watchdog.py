"""The watchdog: finds roles that hang, from the words that they write while they work.

A role hangs if neither its heartbeat nor what it is doing has changed for too long. How long that is
depends on what it is doing: making an environment may take minutes, a step may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spreeze.faults import Doing
from spreeze.settings.config import resolved
from spreeze.settings.sections import LimitsConfig
from spreeze.wires.control import Control, Table

LEARNER_S = 300.0
"""The learner's limit: it may load a large replay, start a GPU or write a large checkpoint."""
TIMES_LONGEST = 10
"""A limit that was chosen automatically is at least this many times the longest time that ended well."""
MOST_S = 3600.0
"""A limit does not adapt beyond this: single stalls must not switch the watchdog off."""
MAX_GAP_S = 0.2
"""More time than this between two looks does not count: then the supervisor itself did not run."""
WORKERS_S = 2.0
"""What the evaluator gets on top: while only its workers play, they report once a second."""
KNOBS = {
    Doing.CONSTRUCT: "limits.construct_s",
    Doing.RESET: "limits.reset_s",
    Doing.STEP: "limits.step_s",
}


class Sign(NamedTuple):
    """What a role shows of its work: any change is progress."""

    beats: int
    """Units of work, and constructions and resets of environments that were begun."""
    doing: Doing


@dataclass(frozen=True)
class Hang:
    """A role that hangs."""

    name: str
    doing: Doing
    seconds: float
    knob: str | None
    """The knob of the limit it has passed, if there is one."""


@dataclass
class _Watched:
    sign: Sign
    since_s: float
    starting: bool = True
    """Whether it has shown nothing yet: then the sign is that of the process before it."""


def signs_of_life(control: Control) -> dict[str, Sign]:
    """The signs of all roles: `sampler-3`, `learner-0`."""

    def sign(table: Table) -> Sign:
        doing = int(table["doing"])  # broken native code may write anything there
        known = Doing(doing) if doing in list(Doing) else Doing.OTHER
        return Sign(int(table["beats"] + table["env_calls"]), known)

    samplers = {f"sampler-{i}": sign(table) for i, table in enumerate(control.samplers)}
    return {
        **samplers,
        "learner-0": Sign(int(control.learner["beats"]), Doing.OTHER),
        "evaluator-0": sign(control.evaluator),
        "visualizer-0": sign(control.visualizer),
        "relay-0": Sign(int(control.relay["beats"]), Doing.OTHER),
        "inference-0": Sign(int(control.inference["beats"]), Doing.OTHER),
    }


class Watchdog:
    """Watches the roles that have been started."""

    def __init__(self, limits: LimitsConfig, chosen: Callable[[str], bool]) -> None:
        """`chosen`: whether a knob was "auto"; only such limits adapt to what the watchdog sees."""
        self._limits_s = {
            Doing.CONSTRUCT: resolved(limits.construct_s),
            Doing.RESET: resolved(limits.reset_s),
            Doing.STEP: resolved(limits.step_s),
        }
        self._adapts = {doing for doing, knob in KNOBS.items() if chosen(knob)}
        self._watched: dict[str, _Watched] = {}
        self._now_s = 0.0
        self._looked_s: float | None = None

    def started(self, name: str, sign: Sign) -> None:
        """Watch a role from now on. `sign` is what it shows at its start, left by the process before it."""
        self._watched[name] = _Watched(sign, self._now_s)

    def ended(self, name: str) -> None:
        """Watch it no longer."""
        self._watched.pop(name, None)

    def look(self, signs: Mapping[str, Sign], clock_s: float) -> list[Hang]:
        """The roles that hang. Call this often: time in which it was not called does not count."""
        gap_s = clock_s - (clock_s if self._looked_s is None else self._looked_s)
        self._looked_s = clock_s
        self._now_s += min(gap_s, MAX_GAP_S)
        hangs = []
        for name, role in self._watched.items():
            seconds = self._now_s - role.since_s
            if signs[name] != role.sign:
                self._learn(role, seconds)
                role.sign, role.since_s, role.starting = signs[name], self._now_s, False
                continue
            doing = Doing.OTHER if role.starting else role.sign.doing
            if seconds > self._limit_s(name, doing):
                hangs.append(Hang(name, doing, seconds, self._knob(name, doing)))
        return hangs

    def _learn(self, role: _Watched, seconds: float) -> None:
        """Remember how long it took, if it took longer than anything before."""
        doing = role.sign.doing
        if doing in self._adapts and not role.starting:
            usual_s = min(TIMES_LONGEST * seconds, MOST_S)
            self._limits_s[doing] = max(self._limits_s[doing], usual_s)

    def _limit_s(self, name: str, doing: Doing) -> float:
        if name == "learner-0":
            return LEARNER_S
        more_s = WORKERS_S if name == "evaluator-0" else 0.0
        return more_s + (self._limits_s.get(doing) or max(self._limits_s.values()))

    def _knob(self, name: str, doing: Doing) -> str | None:
        if name == "learner-0":
            return None
        longest = max(self._limits_s, key=lambda kind: self._limits_s[kind])
        return KNOBS[doing if doing in KNOBS else longest]
