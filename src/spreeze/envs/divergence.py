"""MuJoCo resets a simulation that diverged: it warns, goes back to the initial state and continues.

The numbers of that step are finite, but they lead from one state to an unrelated one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

WARNINGS = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")


def simulation_of(env: Any) -> Any:
    """MuJoCo's data of an environment, whose `time` goes back when MuJoCo resets itself; None without."""
    data = getattr(env.unwrapped, "data", None)
    from_mujoco = type(data).__module__.partition(".")[0] == "mujoco"
    return data if from_mujoco and hasattr(data, "time") else None


def has_diverged(data: Any) -> bool:
    """Whether MuJoCo has reset itself since the environment did. Its reset clears the warnings, then sets one."""
    kinds = sys.modules["mujoco"].mjtWarning
    return any(data.warning[int(getattr(kinds, name))].number for name in WARNINGS)


class Simulations:
    """The MuJoCo simulations of several environments that are stepped together; others are passed over."""

    def __init__(self, envs: Sequence[Any]) -> None:
        """Watch these environments; they have been made and not stepped."""
        self._envs = envs
        self._data = [simulation_of(env) for env in envs]
        self._times = [math.inf] * len(envs)
        """Simulated time after the last step; infinite after a reset, so that the first step is looked at."""

    def restarted(self, which: Iterable[int]) -> None:
        """These environments have been reset, which may make a new simulation."""
        for i in which:
            if self._data and self._data[i] is not None:
                self._data[i], self._times[i] = simulation_of(self._envs[i]), math.inf

    def diverged(self) -> list[int]:
        """Where MuJoCo has reset itself in the last step: its time went back."""
        found = []
        for i, data in enumerate(self._data):
            if data is not None:
                now, before = data.time, self._times[i]
                self._times[i] = now
                if now <= before and has_diverged(data):
                    found.append(i)
        return found
