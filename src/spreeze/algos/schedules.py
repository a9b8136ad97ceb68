"""Values that change over a run: from the knob itself to its end, as its schedule says."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]
"""How a value gets to its end: never, evenly, or slowly at first and at last."""


def scheduled(schedule: Schedule, first: float, last: float, share: float) -> float:
    """The value after this share of the run, 0 to 1."""
    if schedule == "constant":
        return first
    if schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return first + (last - first) * share
