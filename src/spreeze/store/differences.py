"""The settings in which runs differ, from their stored configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Knobs = dict[str, Any]
"""Values by the name of the knob: `algo`, `learner.batch_size`."""

PREFIXES = {"simulation": "env", "hyper": "algo"}
"""Sections of a stored config whose knobs are named otherwise; the others have the name of their section."""
LIMITS = {"time", "steps", "target", "limits"}
SHOWN = {"name", "runs", "dashboard", "track", "visualizer"}
KEPT = {"checkpoint", "resume", "retune"}
NOT_COMPARED = {"seed", "seeds", *LIMITS, *SHOWN, *KEPT}
"""Knobs and sections that change how long a run goes on, what it shows or what it keeps, but not how it learns."""


def compared_knobs(config: Mapping[str, Any]) -> Knobs:
    """The knobs of a stored config (`config` in config.json) in which runs are compared."""
    knobs: Knobs = {}
    for name, value in config.items():
        if name in NOT_COMPARED:
            continue
        if isinstance(value, dict):
            prefix = PREFIXES.get(name, name)
            knobs |= {f"{prefix}.{knob}": inner for knob, inner in value.items()}
        else:
            knobs[name] = value
    return knobs


def differing_knobs(configs: Sequence[Mapping[str, Any]]) -> list[Knobs]:
    """For each stored config, its values of the knobs that are not the same in all of them."""
    return differing([compared_knobs(config) for config in configs])


def differing(runs: Sequence[Knobs]) -> list[Knobs]:
    """For each run, its values of the knobs that are not the same in all of them.

    A knob that some lack, because they have another algorithm, is compared between those that have it.
    """
    known: Knobs = {}
    names: set[str] = set()
    for knobs in runs:
        for name, value in knobs.items():
            if known.setdefault(name, value) != value:
                names.add(name)
    return [{n: v for n, v in knobs.items() if n in names} for knobs in runs]
