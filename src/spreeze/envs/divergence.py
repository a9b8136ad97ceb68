"""MuJoCo resets a simulation that diverged: it warns, goes back to the initial state and continues.

The numbers of that step are finite, but they lead from one state to an unrelated one.
"""

from __future__ import annotations

import sys
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
